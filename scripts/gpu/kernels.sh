#!/usr/bin/env bash
# Tests, tunes and times row attention on one GPU. usage: kernels.sh SECONDS_TESTS SECONDS_TUNE SECONDS_BENCH
# A part that gets 0 seconds is left out, and one that is cut leaves what it had: $OUT/tests.log, sanitizer.*.log,
# tune.csv, kernels.csv, kernels-flex.csv. ROW_SHAPES random shapes are tested (10000). TOY=1 runs on a CPU, in Triton's interpreter.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}"
TESTS=$1 TUNE=$2 BENCH=$3 ROOT=$PWD
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
export TOY PYTHONPATH="$PWD/.package${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
[ ! "$TOY" ] || export TRITON_INTERPRET=1
say() { echo "$(date +%T) $*"; }

run_tests() {
  local many=""
  "$PYTHON" -c 'import xdist' 2> /dev/null && [ ! "$TOY" ] && many="-n 15 -p no:benchmark"
  timeout "$TESTS" "$PYTHON" -m pytest -q -p no:cacheprovider $many tests/kernels/test_row_*.py ${TOY:+-k every_token} \
    > "$OUT/tests.log" 2>&1
  say "tests: status $?: $(tail -n 1 "$OUT/tests.log")"
}
sanitize() { # sanitize TOOL
  command -v compute-sanitizer > /dev/null || { say "compute-sanitizer is not there"; return; }
  timeout "$TESTS" compute-sanitizer --tool "$1" "$PYTHON" scripts/gpu/rows_once.py > "$OUT/sanitizer.$1.log" 2>&1
  say "$1: status $?: $(tail -n 1 "$OUT/sanitizer.$1.log")"
}
compile_others() { # FlashInfer compiles its kernels when they are first called, which takes a minute
  "$PYTHON" -c 'import flashinfer' 2> /dev/null || return 0
  for layout in verify-16 rows-16; do
    (cd "$OUT" && timeout 120 "$PYTHON" "$ROOT/scripts/gpu/command.py" bench kernels --output "compile.$layout.csv" \
      --methods flashinfer --models nld-8b --requests 1 --prefixes 1024 --layouts $layout) > "$OUT/compile.$layout.log" 2>&1 &
  done
}
if [ "$TESTS" != 0 ]; then
  [ "$BENCH" = 0 ] || compile_others
  sanitize memcheck & sanitize racecheck & run_tests; wait
fi
if [ "$TUNE" != 0 ]; then
  timeout $((TUNE + 20)) "$PYTHON" scripts/gpu/tune_rows.py "$TUNE" "$OUT/tune.csv" 2>&1 | tee "$OUT/tune.log"
  say "tuning: status $?"
fi
bench() { # bench SECONDS NAME [options of `recguide bench kernels`]
  (cd "$OUT" && timeout $(($1 + 20)) "$PYTHON" "$ROOT/scripts/gpu/command.py" \
    bench kernels --output "$2.csv" --seconds "$1" "${@:3}") 2>&1 | tee "$OUT/$2.log" | cut -c 1-110
  say "$2: status $?"
}
if [ "$BENCH" != 0 ] && [ "$TOY" ]; then
  bench "$BENCH" kernels --models smollm2-135m --requests 1 --prefixes 32 --layouts verify-8,rows-16
elif [ "$BENCH" != 0 ]; then
  bench "$BENCH" kernels --methods row-attention,plan,launch-a-row,sdpa,flashinfer
  # every shape is compiled for it, which takes longer than all else
  bench $((BENCH / 2)) kernels-flex --methods row-attention,sdpa,flex --models nld-8b --requests 1,32 \
    --prefixes 4096,16384 --layouts verify-16,rows-16
fi
ls -l "$OUT"
