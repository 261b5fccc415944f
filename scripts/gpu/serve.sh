#!/usr/bin/env bash
# Serves a model under policies and concurrencies, one run of `recguide bench serve` each.
# usage: serve.sh SECONDS_EACH MODEL "CONCURRENCY POLICY [options of bench serve]" ...
# Each run leaves $OUT/serve-MODEL-cCONCURRENCY-POLICY.json, which is there, marked as not complete, when its time is over.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}"
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
export PYTHONPATH="$PWD/.package" PYTHONUNBUFFERED=1
seconds=$1 model=$2; shift 2
for run in "$@"; do
  set -- $run
  name="serve-$(basename "$model")-c$1-$(echo "$2" | tr -c 'A-Za-z0-9.\n' _)"
  timeout -s KILL "$seconds" "$PYTHON" scripts/gpu/command.py bench serve --model "$model" --max-concurrency "$1" \
    --policy "$2" --save-result --result-dir "$OUT" --result-filename "$name.json" "${@:3}" > "$OUT/$name.log" 2>&1
  echo "$(date +%T) $name: status $?"
done
ls -l "$OUT"
