#!/usr/bin/env bash
# The whole study on one GPU: bash reproductions/golden_partition_zone/gpu.sh OUT DATA [collect|run [PART…]]
# DATA holds cifar10_train_a.zip, cifar10_train_b.zip, cifar10_test.zip, kmnist_test.npz, mnist.npz and smile_faces64_4000.zip, or some of
# them: what is there is copied to WORK (/tmp/golden_partition_zone) and kept, so the files may come one call after the other ('collect'
# copies and nothing else). 'run' (the default) then works for LIMIT seconds (560) in five lanes side by side and packs what there is; with
# PARTs it runs these one after another in a single lane, so that their seconds are those of a GPU of their own. Call it
# again as often as wanted: networks, even half-trained ones, and results are kept in WORK, and nothing is measured twice.
# A fresh machine goes on from DATA/golden_results.tar.gz and DATA/golden_pictures.tar.gz of an earlier call, if they are there: what they
# hold is not measured again.
# Writes OUT/golden_results.tar.gz (run.jsonl), OUT/golden_pictures.tar.gz (reconstructions as npz) and OUT/golden_lanes.log.
# No lane trains a network that another one trains: it waits for it. What is planned: run.py --plan. Trying it out: DEVICE=cpu MORE=--quick,
# which has a WORK of its own.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with the data} stage=${3:-run}
shift $(($# < 3 ? $# : 3))
here=$(cd "$(dirname "$0")" && pwd)
case " ${MORE:-} " in *" --quick "*) kind=_quick ;; *) kind= ;; esac
work=${WORK:-/tmp/golden_partition_zone$kind}
export PYTHONPATH="$here/../../src:$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-3}
python=${PYTHON:-python3}
. "$here/../mps.sh"
began=$SECONDS
mkdir -p "$out" "$work/data"
for name in cifar10_train_a.zip cifar10_train_b.zip cifar10_test.zip kmnist_test.npz mnist.npz smile_faces64_4000.zip; do
    if [ -f "$data/$name" ] && [ ! -f "$work/data/$name" ]; then cp "$data/$name" "$work/data/$name.part" && mv "$work/data/$name.part" "$work/data/$name"; fi
    [ -f "$work/data/$name" ] || echo "$name: not there yet"
done
if [ ! -f "$work/run.jsonl" ]; then
    for name in golden_results golden_pictures; do [ -f "$data/$name.tar.gz" ] && tar -xzf "$data/$name.tar.gz" -C "$work"; done
fi
[ "$stage" = collect ] && { ls -l "$work/data"; exit; }
if [ -z "$kind" ] && [ ! -f "$work/data/cifar10_train_a.zip" -o ! -f "$work/data/cifar10_train_b.zip" -o ! -f "$work/data/cifar10_test.zip" ]; then
    echo "CIFAR-10 is not complete; give the missing files first" >&2
    exit 2
fi

lane() { # NAME PART ...: one process, which leaves by itself when the time is over
    local name=$1 part left=$((${LIMIT:-560} - (SECONDS - began) - 45)) chosen=()
    shift
    for part in "$@"; do chosen+=(--part "$part"); done
    timeout -k 5 $((left + 38)) "$python" -m reproductions.golden_partition_zone.run --data "$work/data" --results "$work/run.jsonl" --weights "$work/weights" \
        --pictures "$work/pictures" --budget "$left" "${chosen[@]}" ${MORE:-} >>"$work/$name.log" 2>&1
    echo "$name: exit $? after $((SECONDS - began)) s; $(grep -c '^==.*complete' "$work/$name.log") parts complete, $(tail -n 1 "$work/$name.log" | cut -c1-150)"
}

{
    if [ $# -gt 0 ]; then lane alone "$@"; exit; fi
    mps_start "$python"
    # the longest work first; no lane begins with a network that another lane begins with
    lane vgg19 vgg19-curve vgg19-smoothing &
    lane ir152 ir152-curve predictions ir152-epochs &
    lane vit vit-curve &
    lane tables classes enhancements attention &
    lane zone faces auxiliary zone &
    wait
    mps_stop
} | tee "$out/golden_lanes.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 120 "$log" | cut -c1-300; done >>"$out/golden_lanes.log"
[ -f "$work/run.jsonl" ] && tar -czf "$out/golden_results.tar.gz" -C "$work" run.jsonl
[ -d "$work/pictures" ] && tar -czf "$out/golden_pictures.tar.gz" -C "$work" pictures
ls -l "$out"
