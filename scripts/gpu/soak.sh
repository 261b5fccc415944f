#!/usr/bin/env bash
# The soak on a machine that has compiled nothing yet. usage: soak.sh SECONDS REQUESTS [POLICY [CONTEXT]]
# First some processes serve a model of the same shapes but two layers for WARM seconds, so that what kernels the real one
# needs are in Triton's cache; then soak.py serves SmolLM2's shape with random weights. Comes back: soak.json.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}" "${WARM:=45}" "${COMPILERS:=10}"
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
SITE=$(echo "$PWD"/.carry/whl/*.whl | tr ' ' :)
export TOY PYTHONPATH="$PWD/.package:$PWD/tests:$SITE" PYTHONUNBUFFERED=1
SECONDS_OF=$1 REQUESTS=$2; shift 2
[ $# -gt 0 ] || set -- window 256
scratch=$(mktemp -d)
for i in $(seq "$COMPILERS"); do
  SEED=$i timeout $((WARM + 60)) "$PYTHON" scripts/gpu/soak.py random:smollm2-135m:2 100000 "$WARM" "$scratch/$i.json" "$@" \
    > "$scratch/$i.log" 2>&1 &
done
wait
echo "$(date +%T) warm: $(cat "$scratch"/*.log | grep -c '"complete": true') of $COMPILERS"
rm -r "$scratch"
"$PYTHON" scripts/gpu/soak.py random:smollm2-135m "$REQUESTS" "$SECONDS_OF" "$OUT/soak.json" "$@" 2>&1 | tail -n 45
echo "$(date +%T) soak: status $?"
