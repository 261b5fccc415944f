#!/usr/bin/env bash
# The serving engine on one GPU: its tests, then its steps and rounds timed. usage: engine.sh "PART SECONDS [OPTIONS]" ...
# PARTs: tests SECONDS [PYTEST'S OPTIONS]; compile SECONDS, side by side; all others are those of time_engine.py, which
# runs those that follow each other in one process. Results and logs lie in $OUT. TOY=1 runs on a CPU.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${PYTHON:=python3}" "${TOY:=}" "${COMPILERS:=12}" "${MODEL:=nld-8b}"
OUT=$(realpath -m "$OUT"); mkdir -p "$OUT"
SITE=$(echo "$PWD"/.carry/whl/*.whl | tr ' ' :)
export TOY PYTHONPATH="$PWD/.package:$PWD/tests:$SITE" PYTHONUNBUFFERED=1

run_tests() { # run_tests SECONDS options
  local seconds=$1; shift
  timeout "$seconds" "$PYTHON" -m pytest -q --maxfail 6 -m gpu -p no:cacheprovider -p no:benchmark -o filterwarnings=default "$@" \
    tests/engine/test_serving_gpu.py tests/engine/test_profiling.py > "$OUT/tests.log" 2>&1
  echo "$(date +%T) tests: status $?: $(tail -n 1 "$OUT/tests.log")"
}
compile() { # every process compiles its share into Triton's cache, which all later ones use
  for i in $(seq 0 $((COMPILERS - 1))); do
    timeout "$1" "$PYTHON" scripts/gpu/time_engine.py "$MODEL" "$OUT" "compile $1 $i/$COMPILERS" > "$OUT/compile.$i.log" 2>&1 &
  done
  wait
  cat "$OUT"/compile.*.log > "$OUT/compile.log"; rm "$OUT"/compile.*.log
  echo "$(date +%T) compiled: $(grep -c compiled "$OUT/compile.log") of $COMPILERS"
  grep -A 30 Traceback "$OUT/compile.log" | head -60
}
PARTS=()
flush() {
  [ ${#PARTS[@]} = 0 ] || timeout "${LIMIT:-400}" "$PYTHON" scripts/gpu/time_engine.py "$MODEL" "$OUT" "${PARTS[@]}" 2>&1 \
    | tee -a "$OUT/parts.log" | cut -c 1-400
  PARTS=()
}
for part in "$@"; do
  set -- $part
  case $1 in
    tests) flush; run_tests "${@:2}" ;;
    compile) flush; compile "$2" ;;
    *) PARTS+=("$part") ;;
  esac
done
flush
ls -l "$OUT"
