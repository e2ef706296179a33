#!/usr/bin/env bash
# Parts at full size on one GPU, one after another: bash reproductions/practical_feasibility/gpu.sh OUT DATA [PART ...]
# DATA is the folder made by pack.py (A with B copied into it). Without names all parts are run, accuracy first: it trains the networks
# that small, controlled and shared_statistics attack. A call takes at most LIMIT (560) seconds: a case that would not be done by then
# is not begun, and the next call goes on with it. Nothing runs beside it: four parts at once made each step of a small network eight
# times as long, more than taking turns would have.
# Writes OUT/feasibility_results.tar.gz (numbers), OUT/feasibility_pictures.tar.gz (images, to draw the figures) and
# OUT/feasibility_parts.log. Results and weights are kept in WORK (/tmp/practical_feasibility): a case that has its line there is not
# run again. KEPT is a folder with the results of earlier calls on other machines, which are taken up, but for accuracies, whose weights
# are not there; WEIGHTS a folder of trained weights (WORK/weights), which may be those of another machine. PLAN=1 prints only what is
# planned; MORE=--quick DEVICE=cpu tries the whole chain on a CPU.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder made by pack.py}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/practical_feasibility}
export PYTHONPATH="$here/../../src:$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- accuracy small controlled detection shared_statistics large freeze_thresholds freeze_layout
if [ "${PLAN:-}" ]; then
    for part in "$@"; do "$python" -m "reproductions.practical_feasibility.$part" --plan | tail -n 1; done
    exit
fi
mkdir -p "$out" "$work"
weights=${WEIGHTS:-$work/weights}
case " ${MORE:-} " in *" --quick "*) weights=$work/quick_weights ;; esac
for file in "$here/results/thresholds.json" ${KEPT:+"$KEPT"/*.jsonl "$KEPT"/*.npz}; do
    name=$(basename "$file")
    [ "$name" != accuracy.jsonl ] && [ -f "$file" ] && [ ! -f "$work/$name" ] && cp "$file" "$work"
done
for part in "$@"; do
    case $part in
    accuracy) break ;; # it makes what the parts after it need
    small | controlled | shared_statistics)
        if ! ls "$weights"/*.safetensors >/dev/null 2>&1; then
            echo "no trained weights in $weights: run accuracy before $part, or give their folder as WEIGHTS" >&2
            exit 1
        fi
        ;;
    esac
done

deadline=$((SECONDS + ${LIMIT:-560}))
part() { # NAME
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "$1: no time left"; return; fi
    timeout -k 15 "$left" "$python" -m "reproductions.practical_feasibility.$1" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --weights "$weights" --until $(($(date +%s) + left - 5)) ${MORE:-} >>"$work/$1.log" 2>&1
    echo "$1: exit $? after $((SECONDS - began)) s"
}

for part in "$@"; do part "$part"; done | tee "$out/feasibility_parts.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/feasibility_parts.log"
(cd "$work" && tar -czf "$out/feasibility_results.tar.gz" $(ls | grep -E '\.(jsonl|json|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/feasibility_pictures.tar.gz" $pictures)
ls -l "$out"
