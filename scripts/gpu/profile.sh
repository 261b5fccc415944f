#!/usr/bin/env bash
# Profiles models, each on a GPU of its own while there is one. usage: profile.sh SECONDS_EACH [MODEL ...]
# $OUT/MODEL-h200.csv is there after a model's second pass, and better after each further one. SUFFIX names another GPU.
set -eu -o pipefail
. scripts/gpu/setup.sh
EACH=$1; shift
[ $# -gt 0 ] || set -- nld-14b nld-8b smollm2-135m
: "${SUFFIX:=h200}" "${OPTIONS:=--contexts 64,512,2048}"
[ "$TOY" ] && OPTIONS="--requests 1,2 --contexts 8 --block-sizes 4 --prefill 8 --layout-requests 1 --layouts rows --repeats 2 --least-ms 1 --warm-ms 0 --dtype fp32"

profile() { # profile GPU MODEL; loading and capturing come on top of the seconds
  local adapter=""
  [ "$2" != smollm2-135m ] || adapter="--adapter smollm2-135m"
  # named without its folder: the command in the profile should be one that anybody can give
  (cd "$OUT" && CUDA_VISIBLE_DEVICES=$1 timeout $((EACH + 120)) "$PYTHON" "$ROOT/scripts/gpu/command.py" \
    profile "$2" $adapter $OPTIONS --seconds "$EACH" --output "$2-$SUFFIX.csv" 2>&1 | sed -u "s|^|$2: |") \
    || echo "$2: not finished, status $?"
}
models() { # models GPU MODEL ...: every GPUS-th of them, one after the other
  local gpu=$1 index=0; shift
  for model in "$@"; do
    [ $((index++ % GPUS)) != "$gpu" ] || profile "$gpu" "$model"
  done
}
for gpu in $(seq 0 $((GPUS - 1))); do models "$gpu" "$@" & done
wait
wc -l "$OUT"/*.csv
