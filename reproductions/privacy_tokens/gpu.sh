#!/usr/bin/env bash
# All parts at full size on one GPU: bash reproductions/privacy_tokens/gpu.sh OUT DATA
# DATA holds cifar10_train_a.zip, smile_faces64_4000.zip and, for LPIPS, lpips_alex.safetensors (there or under weights/).
# Writes OUT/privacy_tokens_results.tar.gz (numbers), OUT/privacy_tokens_pictures.tar.gz and OUT/privacy_tokens.log.
# Four lanes run side by side, each part with a limit of its own, LIMIT (660 s) for all. What was found before a stop is kept;
# files of full-size runs under results/ are taken up again, so that a second call does only what is missing.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with the data}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../../src:$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-3}
mkdir -p "$out"
work=$(mktemp -d)
cp "$here"/results/*.jsonl "$here"/results/*.npz "$work" 2>/dev/null
python=${PYTHON:-python3}
lpips=()
for file in "$data/lpips_alex.safetensors" "$data/weights/lpips_alex.safetensors"; do
    [ -f "$file" ] && lpips=(--lpips "$file")
done
. "$here/../mps.sh"
mps_start "$python"
trap mps_stop EXIT
deadline=$((SECONDS + ${LIMIT:-660})) # seconds for everything; what does not fit is left out and said

part() { # NAME SECONDS
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 15 ]; then echo "$1: no time left"; return; fi
    timeout -k 10 "$(($2 < left ? $2 : left))" "$python" -m reproductions.privacy_tokens.run "$1" --device "${DEVICE:-cuda}" --data "$data" "${lpips[@]}" --out "$work" ${MORE:-} >"$work/$1.log" 2>&1
    echo "$1: exit $? after $((SECONDS - began)) s"
}

lane() { # NAME SECONDS NAME SECONDS ...
    while [ $# -gt 0 ]; do part "$1" "$2"; shift 2; done
}

{
    lane lenet 640 &
    lane alexnet 640 &
    lane cnn 300 mlp 300 batch_sizes_cnn 90 batch_sizes_mlp 90 &
    lane noise 240 batch_sizes_lenet 220 batch_sizes_alexnet 320 &
    wait
} | tee "$out/privacy_tokens.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 40 "$log" | cut -c1-400; done >>"$out/privacy_tokens.log"
tar -czf "$out/privacy_tokens_results.tar.gz" -C "$work" $(cd "$work" && ls | grep '\.jsonl$')
tar -czf "$out/privacy_tokens_pictures.tar.gz" -C "$work" $(cd "$work" && ls | grep '\.npz$' | grep -v part)
ls -l "$out"
