#!/usr/bin/env bash
# Records the shipped traces, a shard on each GPU. usage: record.sh SECONDS LIMIT [options of `recguide record` ...]
# What is finished comes back as $OUT/traces.tar.*, all the time and when SECONDS are over. With those files in .carry/
# the next run goes on from there, if nothing about it has changed: commit, machine, options, SHARDS.
set -eu -o pipefail
. scripts/gpu/setup.sh
END=$((SECONDS + $1)) LIMIT=$2; shift 2
: "${SHARDS:=2}" "${DATASETS:=gsm8k math500 aime2025 humaneval mbpp livecodebench ifeval mmlu_stem mt_bench}"
FILES=$(for name in $DATASETS; do echo --dataset-path "$HELD/data/prompts/$name.jsonl"; done)
[ "$TOY" ] && set -- --max-output-tokens 6 --block-sizes 2,4 "$@"

# a machine that has not gone away has newer ones of its own
if [ ! -d "$WORK/traces" ] && ls "$HELD"/traces.tar.* > /dev/null 2>&1; then
  cat "$HELD"/traces.tar.* | tar -C "$WORK" -xf -
fi
mkdir -p "$WORK/traces"
pack() {
  rm -rf "$WORK/packed"; mkdir "$WORK/packed"
  # a part may come while its folder is read
  tar -C "$WORK" --exclude '.*.tmp' --warning no-file-changed -cf - traces | split -a 1 -b 14000000 - "$WORK/packed/traces.tar." || true
  rm -f "$OUT"/traces.tar.*; mv "$WORK"/packed/* "$OUT/"
}
shards() { # shards GPU: every GPUS-th shard, one after the other; parts of a finished one are gone, so it is marked
  for shard in $(seq $(($1 + 1)) "$GPUS" "$SHARDS"); do
    local mark="$WORK/traces/done.${shard}of$SHARDS" what="$DATASETS $LIMIT ${*:2}"
    [ "$(cat "$mark" 2> /dev/null)" != "$what" ] || { echo "$shard/$SHARDS: was done before"; continue; }
    CUDA_VISIBLE_DEVICES=$1 timeout $((END > SECONDS ? END - SECONDS : 1)) "$PYTHON" scripts/gpu/command.py \
      record smollm2-135m $FILES --output "$WORK/traces/smollm2-135m" --limit "$LIMIT" --adapter smollm2-135m \
      --dtype fp32 --shard "$shard/$SHARDS" "${@:2}" 2>&1 | sed -u "s|^|$shard/$SHARDS: |" \
      && echo "$what" > "$mark" && echo "$shard/$SHARDS: done" || echo "$shard/$SHARDS: not finished, status $?"
  done
}
while sleep 20 < /dev/null > /dev/null 2>&1; do pack; done & PACKING=$!
finish() { trap - EXIT; kill $PACKING 2> /dev/null; wait $PACKING 2> /dev/null || true; pack; ls -lR "$WORK/traces" | tail -n 40; ls -l "$OUT"; }
trap finish EXIT
trap 'exit 1' TERM INT
for gpu in $(seq 0 $((GPUS - 1))); do shards "$gpu" "$@" & RUNNING="${RUNNING:-} $!"; done
wait $RUNNING
