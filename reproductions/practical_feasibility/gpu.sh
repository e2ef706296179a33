#!/usr/bin/env bash
# All parts at full size on one GPU: bash reproductions/practical_feasibility/gpu.sh OUT DATA [1|2|3|all]
# DATA is the folder made by pack.py (A with B copied into it). Stage 1 trains the networks, with nothing beside it; stage 2 runs the
# attacks in four lanes side by side, the most important cases first (and trains before them what stage 1 had no time for); stage 3 goes on with what stage 2 had no time for (it is stage
# 2 once more). Each stage takes at most LIMIT (560) seconds: a case that would not be done by then is not begun.
# Writes OUT/feasibility_results.tar.gz (numbers), OUT/feasibility_pictures.tar.gz (images, to draw the figures) and
# OUT/feasibility_parts.log. Results and weights are kept in WORK (/tmp/practical_feasibility): a case that has its line there is not
# run again, so a stopped run goes on, and the later stages find the weights of stage 1 on the same machine; without them they do not
# begin. Results of full-size runs under results/ are taken up too, but for accuracies, whose weights are not there. PLAN=1 prints
# only what is planned; MORE=--quick DEVICE=cpu tries the whole chain on a CPU.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder made by pack.py} stage=${3:-all}
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/practical_feasibility}
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
python=${PYTHON:-python3}
if [ "${PLAN:-}" ]; then
    for part in accuracy freeze_thresholds small large shared_statistics controlled detection; do "$python" "$here/$part.py" --plan | tail -n 1; done
    exit
fi
mkdir -p "$out" "$work"
weights=$work/weights
case " ${MORE:-} " in
*" --quick "*) weights=$work/quick_weights ;;
*)
    for file in "$here"/results/*.jsonl "$here"/results/*.npz "$here"/results/thresholds.json; do
        name=$(basename "$file")
        [ "$name" != accuracy.jsonl ] && [ -f "$file" ] && [ ! -f "$work/$name" ] && cp "$file" "$work"
    done
    ;;
esac
if [ "$stage" != 1 ] && [ "$stage" != all ] && ! ls "$weights"/*.safetensors >/dev/null 2>&1; then
    echo "no trained weights in $weights: run stage 1 on this machine first" >&2
    exit 1
fi
. "$here/../mps.sh"

part() { # NAME
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "$1: no time left"; return; fi
    timeout -k 15 "$left" "$python" "$here/$1.py" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --weights "$weights" --until $(($(date +%s) + left - 5)) ${MORE:-} >>"$work/$1.log" 2>&1
    echo "$1: exit $? after $((SECONDS - began)) s"
}

lane() { # NAME ...
    local name
    for name in "$@"; do part "$name"; done
}

attacks() {
    lane small &
    lane large &
    lane shared_statistics controlled &
    lane accuracy freeze_thresholds detection &
    wait
}

{
    trap mps_stop EXIT
    for one in 1 2 3; do
        [ "$stage" = all ] || [ "$stage" = "$one" ] || continue
        deadline=$((SECONDS + ${LIMIT:-560}))
        if [ "$one" = 1 ]; then part accuracy; continue; fi
        mps_start "$python"
        attacks
        mps_stop
    done
} | tee "$out/feasibility_parts.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/feasibility_parts.log"
(cd "$work" && tar -czf "$out/feasibility_results.tar.gz" $(ls | grep -E '\.(jsonl|json|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/feasibility_pictures.tar.gz" $pictures)
ls -l "$out"
