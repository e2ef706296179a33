#!/usr/bin/env bash
# What Table 1, the widths and the batches still lack, on one GPU: bash reproductions/april/gpu_table1.sh OUT DATA [small|imagenet|all]
# DATA holds mnist.npz, CIFAR-10 and imagenet.npz (see README.md); what lacks its data waits. Lanes run side by side: one for each attack,
# first on MNIST and CIFAR-10 (stage small), then on ImageNet (stage imagenet), five images at a time, so that a stopped run has all
# attacks on the same images; and one with the widths, the batches and the trained model (stage small). A call takes at most LIMIT (560) s.
# Call it as often as needed: it goes on where it was, in the midst of an attack too. Results are kept in WORK (/tmp/april_table1), and
# those under results/ are taken up: on another machine unpack the archive of the call before into results/, and put its states (*.pt)
# into DATA. Writes OUT/april_table1_results.tar.gz (numbers, figures), OUT/april_table1_pictures.tar.gz, OUT/april_table1.log and the
# states of attacks that were stopped, as far as they are small (not the batch of 24, nor those on the trained model, which stays in WORK).
# PLAN=1 prints only what is left and its seconds; PIECE is the number of ImageNet images at a time; MORE is given to every script, such
# as --quick; FRESH=1 begins without the results of full-size runs, as a quick try must.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with MNIST, CIFAR-10 and ImageNet} stage=${3:-all}
case $stage in small | imagenet | all) ;; *) echo "the stage is small, imagenet or all, got $stage" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/april_table1}
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-3}
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
fi
if [ "${PLAN:-}" ]; then "$python" "$here/plan.py" --work "$work"; exit; fi
deadline=$((SECONDS + ${LIMIT:-560}))
. "$here/../mps.sh"

script() { # LOG NAME ARGUMENTS...: one script, with as many seconds as are left
    local log=$1 name=$2 began=$SECONDS left=$((deadline - SECONDS)) status
    shift 2
    if [ "$left" -lt 20 ]; then echo "$log: no time left"; return; fi
    timeout -k 15 "$left" "$python" "$here/$name.py" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --within $((left - 15)) "$@" ${MORE:-} >>"$work/$log.log" 2>&1
    status=$?
    echo "$log: exit $status after $((SECONDS - began)) s"
}

cells() { # ATTACK: its cells of the table, as the stage says
    if [ "$stage" != imagenet ]; then script "small_$1" table1 --datasets mnist,cifar10 --attacks "$1"; fi
    if [ "$stage" = small ]; then return; fi
    if [ ! -f "$data/imagenet.npz" ]; then echo "imagenet_$1: waits for imagenet.npz"; return; fi
    script "imagenet_$1" table1 --datasets imagenet --attacks "$1" ${PIECE:+--piece "$PIECE"}
}

studies() {
    [ "$stage" != imagenet ] || return
    local training=yes
    [ -f "$data/cifar10_train_a.zip" ] || [ -f "$data/data_batch_1.bin" ] || training=
    if [ "$training" ]; then script width width; else echo "width: waits for CIFAR-10's training images"; fi
    script batches batches
    script why_batches why_batches
    if [ "$training" ]; then script trained table1 --datasets cifar10_trained; else echo "trained: waits for CIFAR-10's training images"; fi
}

{
    trap mps_stop EXIT
    mps_start "$python"
    for attack in april dlg tag ig; do cells "$attack" & done
    studies &
    wait
    mps_stop
} | tee "$out/april_table1.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/april_table1.log"
(cd "$work" && tar -czf "$out/april_table1_results.tar.gz" $(ls | grep -E '\.(jsonl|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/april_table1_pictures.tar.gz" $pictures)
find "$work" -maxdepth 1 -name '*.[0-9].pt' ! -name '*_trained_*' -size -16M -exec cp {} "$out" \;
ls -l "$out"
