#!/usr/bin/env bash
# What Table 1 and the study of widths still lack, on one GPU: bash reproductions/april/gpu_table1.sh OUT DATA [small|imagenet|all]
# DATA holds mnist.npz, CIFAR-10 and, for stage imagenet, imagenet.npz (see README.md). Stage small runs MNIST, CIFAR-10 and the widths in
# three lanes side by side; stage imagenet runs ViT-Base alone, since it fills a GPU by itself. Each stage takes at most LIMIT (560)
# seconds: a piece of a cell that would not be done by then is not begun, and what was begun but not done is begun again the next time.
# Call it as often as needed. Results are kept in WORK (/tmp/april_table1), and those under results/ are taken up: on another machine
# unpack the archive of the call before into results/. Writes OUT/april_table1_results.tar.gz (numbers, figures),
# OUT/april_table1_pictures.tar.gz and OUT/april_table1.log. MORE is given to every script, such as --quick.
set -u
out=${1:?give the folder for the results} data=${2:?give the folder with MNIST, CIFAR-10 and ImageNet} stage=${3:-all}
case $stage in small | imagenet | all) ;; *) echo "the stage is small, imagenet or all, got $stage" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/april_table1}
export PYTHONPATH="$here/../../src${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
python=${PYTHON:-python3}
mkdir -p "$out" "$work"
if [ -z "${FRESH:-}" ]; then # FRESH=1 begins without the results of full-size runs, as a quick try must
    for file in "$here"/results/table1*.jsonl "$here"/results/table1.npz "$here"/results/width.jsonl "$here"/results/width.npz; do
        [ -f "$file" ] && [ ! -f "$work/$(basename "$file")" ] && cp "$file" "$work"
    done
fi
. "$here/../mps.sh"

cells() { # LANE DATASET ATTACKS: cells of the table, one after another
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "$2 $3: no time left"; return; fi
    timeout -k 15 "$left" "$python" "$here/table1.py" --device "${DEVICE:-cuda}" --data "$data" --out "$work" --datasets "$2" --attacks "$3" --within $((left - 5)) ${MORE:-} >>"$work/$1.log" 2>&1
    echo "$2 $3: exit $? after $((SECONDS - began)) s"
}

widths() {
    local began=$SECONDS left=$((deadline - SECONDS))
    if [ "$left" -lt 20 ]; then echo "width: no time left"; return; fi
    if head -n 1 "$work/width.jsonl" 2>/dev/null | grep -q '"complete": true'; then echo "width: done before"; return; fi
    timeout -k 15 "$((left - 5))" "$python" "$here/width.py" --device "${DEVICE:-cuda}" --data "$data" --out "$work" ${MORE:-} >>"$work/width.log" 2>&1
    echo "width: exit $? after $((SECONDS - began)) s"
}

small() {
    { cells first mnist ig; cells first cifar10 april,ig; } &
    { cells second cifar10 dlg,tag; cells second cifar10_trained april,dlg,tag,ig; } &
    widths &
    wait
}

{
    trap mps_stop EXIT
    if [ "$stage" != imagenet ]; then
        deadline=$((SECONDS + ${LIMIT:-560}))
        mps_start "$python"
        small
        mps_stop
    fi
    if [ "$stage" != small ]; then
        deadline=$((SECONDS + ${LIMIT:-560}))
        cells imagenet imagenet april,dlg,tag,ig
    fi
} | tee "$out/april_table1.log"
for log in "$work"/*.log; do printf '\n== %s\n' "$(basename "$log")"; tail -n 60 "$log" | cut -c1-400; done >>"$out/april_table1.log"
(cd "$work" && tar -czf "$out/april_table1_results.tar.gz" $(ls | grep -E '\.(jsonl|svg|png)$'))
(cd "$work" && pictures=$(ls | grep '\.npz$' | grep -v part) && [ "$pictures" ] && tar -czf "$out/april_table1_pictures.tar.gz" $pictures)
ls -l "$out"
