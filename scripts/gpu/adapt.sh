#!/usr/bin/env bash
# Trains an adapter of SmolLM2 on all GPUs of this machine. usage: adapt.sh SECONDS [options of `recguide adapt` ...]
# Text comes from $WORK/corpora, where trials.sh left it, else from .carry/corpora; the adapter as $OUT/adapter.part.*
set -eu -o pipefail
. scripts/gpu/setup.sh
TIME=$1; shift
TEXTS=$WORK/corpora
[ -d "$TEXTS" ] || TEXTS=$CARRIED/corpora
ADAPTER=$WORK/smollm2-135m.safetensors
[ "$TOY" ] && set -- --steps 2 --shared-rank 2 --draft-rank 2 --block-tokens 16 --tokens-per-step 300 "$@"
CORPORA=$(for file in "$TEXTS"/*.npz; do echo --corpus "$file"; done)
"$PYTHON" -m torch.distributed.run --nproc_per_node "$GPUS" scripts/gpu/command.py adapt smollm2-135m \
  --output "$ADAPTER" $CORPORA --seconds "$TIME" "$@" 2>&1 | grep --line-buffered -v -i warn
ls -l "$ADAPTER"
split -b 14000000 "$ADAPTER" "$OUT/adapter.part."
