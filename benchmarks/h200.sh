#!/usr/bin/env bash
# The GPU figures of docs/engine.md, in one run: bash benchmarks/h200.sh FOLDER   (torch and numpy; transformers for two rows)
set -u
out=${1:?give the folder for the results}
export PYTHONPATH=src PYTHONWARNINGS=ignore
bench() { timeout 150 python3 -m benchmarks.engine --rounds 5 --seconds 0.3 "$@" --out "$out/part.jsonl" && cat "$out/part.jsonl" >> "$out/engine.jsonl"; }
bench --cases vit,resnet18_pre --restarts 1,8,32,128 --precisions fp32,tf32
bench --cases convnet --restarts 1,8,32,128 --precisions fp32,tf32
bench --cases resnet18_pre --restarts 512 --precisions tf32
bench --cases resnet18_224,vit_b16_224 --restarts 32 --precisions fp32,tf32,bf16
bench --cases swin_t_224,convnext_t_224 --restarts 32 --precisions fp32,tf32
bench --cases resnet18_pre_train_b4 --restarts 32 --precisions fp32,tf32
bench --cases vit,resnet18_pre,convnet --distances l2 --restarts 32 --precisions fp32
bench --cases resnet18_224,vit_b16_224 --distances l2 --restarts 32 --precisions fp32
bench --cases vit --restarts 256 --precisions fp32,tf32 --own
timeout 100 python3 -m benchmarks.same_reconstruction --out "$out/same_reconstruction.jsonl"
rm -f "$out/part.jsonl"
