#!/usr/bin/env bash
# Times logit statistics, fused kernels and the idle time between forwards of rounds on one GPU.
# usage: round.sh "PART SECONDS" ...      PARTs: check statistics tune fused rounds
# Each part leaves $OUT/PART.csv, with what it had when its time was over. TOY=1 runs on a CPU.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}"
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
export TOY PYTHONPATH="$PWD/.package" PYTHONUNBUFFERED=1
[ ! "$TOY" ] || export TRITON_INTERPRET=1
for part in "$@"; do
  set -- $part
  timeout $(($2 + 30)) "$PYTHON" scripts/gpu/time_rounds.py "$1" "$2" "$OUT/$1.csv" 2>&1 | tee "$OUT/$1.log" | cut -c 1-300
  echo "$(date +%T) $1: status $?"
done
ls -l "$OUT"
