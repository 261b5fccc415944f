#!/usr/bin/env bash
# Trains an adapter of SmolLM2 on all GPUs of this machine. usage: adapt.sh SECONDS [options of `recguide adapt` ...]
# Text comes from $WORK/corpora, where trials.sh left it, else from .carry/corpora; the adapter as $OUT/adapter.part.*
set -eu -o pipefail
. scripts/gpu/setup.sh
TIME=$1; shift
[ -d "$WORK/corpora" ] || cp -r "$HELD/corpora" "$WORK/"
[ "$TOY" ] && set -- --steps 2 --shared-rank 2 --draft-rank 2 --block-tokens 64 --tokens-per-step 300 "$@"
cd "$WORK"
CORPORA=$(for file in corpora/*.npz; do echo --corpus "$file"; done)
"$PYTHON" -m torch.distributed.run --nproc_per_node "$GPUS" "$ROOT/scripts/gpu/command.py" adapt smollm2-135m \
  --output smollm2-135m.safetensors $CORPORA --seconds "$TIME" "$@" 2>&1 | grep --line-buffered -v -i warn
ls -l smollm2-135m.safetensors
split -b 14000000 smollm2-135m.safetensors "$OUT/adapter.part."
