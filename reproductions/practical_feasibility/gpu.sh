#!/usr/bin/env bash
# All parts at full size on one GPU: bash reproductions/practical_feasibility/gpu.sh OUT DATA [1|2|all]
# DATA is the folder made by pack.py (A with B copied into it). Stage 1 trains the networks, freezes the thresholds and attacks the detector;
# stage 2 attacks the rest. Writes OUT/feasibility_results.tar.gz (numbers), OUT/feasibility_pictures.tar.gz (images, to draw
# the figures) and OUT/feasibility_parts.log. Results and weights are kept in WORK (/tmp/practical_feasibility): a case that has its
# line there is not run again, so a stopped run goes on, and stage 2 finds the weights of stage 1 on the same machine.
# Each part has a time limit; a part that is stopped keeps the cases it has. Only what is planned: PLAN=1.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder made by pack.py} stage=${3:-all}
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/practical_feasibility}
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
python=${PYTHON:-python3}
if [ "${PLAN:-}" ]; then
    for part in accuracy freeze_thresholds detection small large shared_statistics controlled; do "$python" "$here/$part.py" --plan | tail -n 1; done
    exit
fi
mkdir -p "$out" "$work"
deadline=$((SECONDS + ${LIMIT:-560})) # seconds for one stage; what does not fit is left out and said

part() { # NAME SECONDS
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "$1: no time left"; return; fi
    timeout -k 15 "$(($2 < left ? $2 : left))" "$python" "$here/$1.py" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --weights "$work/weights" ${MORE:-} >"$work/$1.log" 2>&1
    echo "$1: exit $? after $((SECONDS - began)) s"
}

lane() { # NAME SECONDS NAME SECONDS ...
    while [ $# -gt 0 ]; do part "$1" "$2"; shift 2; done
}

{
    if [ "$stage" != 2 ]; then
        lane accuracy 540 &
        lane freeze_thresholds 120 detection 260 &
        wait
    fi
    if [ "$stage" != 1 ]; then
        [ "$stage" = all ] && deadline=$((SECONDS + ${LIMIT:-560}))
        lane small 420 &
        lane large 500 &
        lane shared_statistics 240 controlled 220 &
        wait
    fi
} | tee "$out/feasibility_parts.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/feasibility_parts.log"
(cd "$work" && tar -czf "$out/feasibility_results.tar.gz" $(ls | grep -E '\.(jsonl|json|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/feasibility_pictures.tar.gz" $pictures)
ls -l "$out"
