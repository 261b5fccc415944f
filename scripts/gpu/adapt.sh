#!/usr/bin/env bash
# Trains the shipped adapter on all GPUs of this machine. usage: adapt.sh SECONDS [options of `recguide adapt` ...]
set -eu
. scripts/gpu/setup.sh
SECONDS_OF_TRAINING=$1; shift
C=/tmp/corpora
torchrun --nproc_per_node "$(nvidia-smi -L | wc -l)" scripts/gpu/command.py adapt smollm2-135m --output /tmp/smollm2-135m.safetensors \
  --corpus $C/given.npz --corpus $C/own.npz --corpus $C/long.npz --seconds "$SECONDS_OF_TRAINING" "$@" 2>&1 | grep -v -i warn
ls -l /tmp/smollm2-135m.safetensors
split -b 15000000 /tmp/smollm2-135m.safetensors "$OUT/adapter.part."
