#!/usr/bin/env bash
# What Table 1, the batches and the widths still lack, on one GPU: bash reproductions/april/gpu_table1.sh OUT DATA [small|imagenet|rest|all]
# DATA holds mnist.npz, CIFAR-10 and imagenet.npz (see README.md); what lacks its data waits. One thing after another, the most valuable
# first: processes side by side slow each other down by more than taking turns would (measured in practical_feasibility).
#   small     the attacks on MNIST and CIFAR-10, batches but for the largest, widths
#   imagenet  the attacks on ViT-Base in turn, PIECE (24) images each, so that a stopped run has all attacks on the same images
#   rest      the batch of 24 on ViT-Base, the attacks on a trained model, why_batches
# A call takes at most LIMIT (560) seconds. Call it as often as needed: it goes on where it was, in the midst of an attack too. Results are
# kept in WORK (/tmp/april_table1), and those under results/ are taken up: on another machine unpack the archive of the call before into
# results/, and put its states (*.pt) into DATA. Writes OUT/april_table1_results.tar.gz (numbers, figures),
# OUT/april_table1_pictures.tar.gz, OUT/april_table1.log and the state of the attack that was stopped, in parts of 15 MiB where it is larger
# (not on the trained model, which stays in WORK); put all parts into DATA. PLAN=1 prints only what is left and its seconds; PIECE is the number of ImageNet
# images at a time; MORE is given to every script, such as --quick; FRESH=1 begins without the results of full-size runs, as a quick try must.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with MNIST, CIFAR-10 and ImageNet} stage=${3:-all}
case $stage in small | imagenet | rest | all) ;; *) echo "the stage is small, imagenet, rest or all, got $stage" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/april_table1}
export PYTHONPATH="$here/../../src:$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
python=${PYTHON:-python3}
mkdir -p "$out" "$work"
if [ -z "${FRESH:-}" ]; then
    for name in table1 table1_pieces width batches why_batches; do
        for file in "$here/results/$name.jsonl" "$here/results/$name.npz"; do
            [ -f "$file" ] && [ ! -f "$work/$(basename "$file")" ] && cp "$file" "$work"
        done
    done
    for file in "$data"/*.[0-9].pt; do
        [ -f "$file" ] && [ ! -f "$work/$(basename "$file")" ] && cp "$file" "$work"
    done
    for file in "$data"/*.[0-9].pt.aa; do
        [ -f "$file" ] && [ ! -f "$work/$(basename "${file%.aa}")" ] && cat "${file%.aa}".?? >"$work/$(basename "${file%.aa}")"
    done
fi
if [ "${PLAN:-}" ]; then "$python" -m reproductions.april.plan --work "$work"; exit; fi
deadline=$((SECONDS + ${LIMIT:-560}))

script() { # LOG FILE NAME ARGUMENTS...: one script that needs this file of DATA, with as many seconds as are left
    local log=$1 file=$2 name=$3 began=$SECONDS left=$((deadline - SECONDS)) status
    shift 3
    if [ ! -f "$data/$file" ]; then echo "$log: waits for $file"; return; fi
    if [ "$left" -lt 20 ]; then echo "$log: no time left"; return; fi
    timeout -k 15 "$left" "$python" -m "reproductions.april.$name" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --within $((left - 15)) "$@" ${MORE:-} >>"$work/$log.log" 2>&1
    status=$?
    echo "$log: exit $status after $((SECONDS - began)) s"
}

cifar=cifar10_test.zip training=cifar10_train_a.zip # or the binary version
if [ -f "$data/test_batch.bin" ]; then cifar=test_batch.bin training=data_batch_1.bin; fi
{
    case $stage in small | all)
        script small $cifar table1 --datasets mnist,cifar10
        script batches $cifar batches --first 5
        script width $training width
        ;;
    esac
    case $stage in imagenet | all) script imagenet imagenet.npz table1 --datasets imagenet ${PIECE:+--piece "$PIECE"} ;; esac
    case $stage in rest | all)
        script batches $cifar batches
        script trained $training table1 --datasets cifar10_trained
        script why_batches $cifar why_batches
        ;;
    esac
} | tee "$out/april_table1.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/april_table1.log"
(cd "$work" && tar -czf "$out/april_table1_results.tar.gz" $(ls | grep -E '\.(jsonl|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/april_table1_pictures.tar.gz" $pictures)
find "$work" -maxdepth 1 -name '*.[0-9].pt' ! -name '*_trained_*' -size -16M -exec cp {} "$out" \;
find "$work" -maxdepth 1 -name '*.[0-9].pt' ! -name '*_trained_*' -size +15M -size -61M -exec sh -c 'split -b 15M "$1" "$2/$(basename "$1")."' _ {} "$out" \;
ls -l "$out"
