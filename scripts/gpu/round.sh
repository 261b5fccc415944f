#!/usr/bin/env bash
# Times logit statistics, fused kernels and the idle time between forwards of rounds on one GPU.
# usage: round.sh "PART SECONDS" ...      PARTs: tests check tune statistics fused rounds
# Each part leaves $OUT/PART.csv (tests: tests.log), with what it had when its time was over. Statistics take the best
# tilings of a tune before them. TOY=1 runs on a CPU, where kernels are interpreted.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}" "${COMPILERS:=8}"
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
export TOY PYTHONPATH="$PWD/.package${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TUNED="$OUT/tune.csv"
[ ! "$TOY" ] || export TRITON_INTERPRET=1
TESTS="tests/kernels/test_logit_statistics.py tests/kernels/test_accept.py tests/kernels/test_fused.py tests/kernels/test_page_tables.py"

run_tests() { # run_tests SECONDS
  local many=""
  "$PYTHON" -c 'import xdist' 2> /dev/null && [ ! "$TOY" ] && many="-n 12 -p no:benchmark"
  timeout "$1" "$PYTHON" -m pytest -q -p no:cacheprovider $many $TESTS > "$OUT/tests.log" 2>&1
  echo "$(date +%T) tests: status $?: $(tail -n 1 "$OUT/tests.log")"
}
compile_tilings() { # each process compiles its share into Triton's cache, which all of them use
  for i in $(seq 0 $((COMPILERS - 1))); do
    SHARE=$i/$COMPILERS timeout 60 "$PYTHON" scripts/gpu/time_rounds.py tune 60 "$(mktemp)" > "$OUT/compile.$i.log" 2>&1 &
  done
  wait
}
for part in "$@"; do
  set -- $part
  if [ "$1" = tests ]; then run_tests "$2"; continue; fi
  [ "$1" != tune ] || [ "$TOY" ] || compile_tilings
  timeout $(($2 + 30)) "$PYTHON" scripts/gpu/time_rounds.py "$1" "$2" "$OUT/$1.csv" 2>&1 | tee "$OUT/$1.log" | cut -c 1-300
  echo "$(date +%T) $1: status $?"
done
ls -l "$OUT"
