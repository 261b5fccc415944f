#!/usr/bin/env bash
# Distils training text and runs adapter trials, one a GPU. usage: trials.sh SECONDS "NAME key=value ..." ...
set -u
. scripts/gpu/setup.sh
SECONDS_EACH=$1; shift
DATA=/tmp/corpora; mkdir -p $DATA /tmp/trials; PROMPTS=.carry/data/train_prompts.jsonl.gz
distil() { [ -f "$2" ] || CUDA_VISIBLE_DEVICES=$1 python3 scripts/gpu/distil.py smollm2-135m "$2" "${@:3}"; }
(distil 0 $DATA/given.npz 70 192 256 1024 0 0 $PROMPTS; distil 0 $DATA/long.npz 45 640 512 512 150 0 $PROMPTS) &
distil 1 $DATA/own.npz 115 192 256 1024 0 24000 &
wait
cp $DATA/*.npz "$OUT/"; ls -l $DATA
gpu=0
for trial in "$@"; do
  set -- $trial; name=$1; shift
  CUDA_VISIBLE_DEVICES=$gpu python3 scripts/gpu/adapt_trials.py smollm2-135m /tmp/trials/$name.json \
    $DATA/given.npz,$DATA/own.npz,$DATA/long.npz .carry/data/prompts seconds=$SECONDS_EACH "$@" > /tmp/trials/$name.log 2>&1 &
  gpu=$((1 - gpu)); [ $gpu = 0 ] && wait
done
wait
cat /tmp/trials/*.json > "$OUT/trials.json"
for log in /tmp/trials/*.log; do echo "== $log"; grep -v Warn "$log" | tail -n 5 | cut -c1-1400; done
