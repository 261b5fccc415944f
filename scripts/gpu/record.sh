#!/usr/bin/env bash
# Records the shipped traces, a shard on each GPU, and profiles the shipped models. usage: record.sh LIMIT_PER_DATASET
set -u
. scripts/gpu/setup.sh
D=.carry/data/prompts
FILES=$(for name in gsm8k math500 aime2025 humaneval mbpp livecodebench ifeval mmlu_stem mt_bench; do echo --dataset-path $D/$name.jsonl; done)
GPUS=$(nvidia-smi -L | wc -l)
record() {
  CUDA_VISIBLE_DEVICES=$1 timeout 280 python3 scripts/gpu/command.py record smollm2-135m $FILES --output /tmp/traces/$1 --limit "$2" \
    --adapter /tmp/smollm2-135m.safetensors --max-output-tokens 512 --dtype fp32 --shard $(($1 + 1))/$GPUS > /tmp/record.$1.log 2>&1
}
for gpu in $(seq 0 $((GPUS - 1))); do mkdir -p /tmp/traces/$gpu; record $gpu "$1" & done
wait
tail -n 5 /tmp/record.*.log; ls -lR /tmp/traces | tail -n 30
tar -C /tmp -cf - traces | split -b 15000000 - "$OUT/traces.tar."
