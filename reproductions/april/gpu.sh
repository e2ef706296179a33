#!/usr/bin/env bash
# All studies of this folder at full size on one GPU: bash reproductions/april/gpu.sh OUT DATA
# DATA holds mnist.npz and CIFAR-10 (see README.md). Writes OUT/april_results.tar.gz (numbers, figures),
# OUT/april_pictures.tar.gz (images, to draw the figures again) and OUT/april_studies.log.
# Up to three studies run at a time, each with a time limit of its own, LIMIT (480 s) for all; one that is stopped keeps its rows.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with MNIST and CIFAR-10}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src:$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
mkdir -p "$out"
work=$(mktemp -d)
python=${PYTHON:-python3}
. "$here/../mps.sh"
mps_start "$python"
trap mps_stop EXIT
deadline=$((SECONDS + ${LIMIT:-480})) # seconds for everything; what does not fit is left out and said

study() { # NAME SECONDS
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "$1: no time left"; return; fi
    left=$(($2 < left ? $2 : left))
    timeout -k 15 "$left" "$python" -m "reproductions.april.$1" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --within $((left - 15)) ${MORE:-} >"$work/$1.log" 2>&1
    echo "$1: exit $? after $((SECONDS - began)) s"
}

lane() { # NAME SECONDS NAME SECONDS ...
    while [ $# -gt 0 ]; do study "$1" "$2"; shift 2; done
}

{
    lane positions 260 noise 120 &
    lane without_encoder 150 architecture_a 240 closed_form_batches 80 &
    lane width 240 batches 240 progress 240 &
    wait
} | tee "$out/april_studies.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/april_studies.log"
tar -czf "$out/april_results.tar.gz" -C "$work" --exclude='*.log' --exclude='*.npz' --exclude='*.part*' .
tar -czf "$out/april_pictures.tar.gz" -C "$work" --exclude='*.part*' $(cd "$work" && ls | grep '\.npz$' | grep -v part)
ls -l "$out"
