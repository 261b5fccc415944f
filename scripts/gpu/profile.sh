#!/usr/bin/env bash
# Profiles the shipped models, each on a GPU of its own while there is one. usage: profile.sh
set -u
. scripts/gpu/setup.sh
profile() { CUDA_VISIBLE_DEVICES=$1 timeout 250 python3 scripts/gpu/command.py profile "${@:3}" --output /tmp/$2.csv 2>&1 | grep -v -i warn | sed "s/^/$2: /"; }
LAST=$(($(nvidia-smi -L | wc -l) - 1))
(profile 0 smollm2-135m-h200 smollm2-135m --adapter /tmp/smollm2-135m.safetensors; profile 0 nld-8b-h200 nld-8b) &
[ "$LAST" = 0 ] && wait
profile "$LAST" nld-14b-h200 nld-14b &
wait
cp /tmp/*-h200.csv "$OUT/"; wc -l /tmp/*-h200.csv
