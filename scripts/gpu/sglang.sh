#!/usr/bin/env bash
# SGLang with the plugin on one GPU, in one call. usage: sglang.sh SECONDS [OPTIONS OF bench sglang]
# Outputs of a small trained model are held against those of SGLang's own decoding, in bf16, for its kernels take no fp32
# (ties between two tokens may be broken otherwise). Meanwhile the engines of a shape start, and serve in turn, acceptance
# forced from the trace that is calibrated to the paper. Without options: AR, fixed:16 and overlap at C=1, recipe and
# fitted blocks at C=8 and 32. Comes back: small.json, shape.json, and what belongs to them. .carry/sglang holds SGLang
# and what it needs as parts of a tar.xz; TOY=1 runs on a CPU.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${WORK:=/tmp/recguide}" "${PYTHON:=python3}" "${TOY:=}" "${MODEL:=nld-8b}" "${MORE:=}"
OUT=$(realpath -m "$OUT") SITE=$WORK/sglang START=$SECONDS LIMIT=$1; shift
mkdir -p "$OUT" "$SITE" "$WORK/run"
say() { echo "$(date +%T) $*"; }
if ls .carry/sglang/*.tar.xz* > /dev/null 2>&1 && [ ! -f "$SITE/.there" ]; then
  cat .carry/sglang/*.tar.xz* | "$PYTHON" -c 'import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz") as packed: packed.extractall(sys.argv[1], filter="data")' "$SITE"
  touch "$SITE/.there"
  say "SGLang is unpacked"
fi
WHEELS=$(ls .carry/whl/*.whl 2> /dev/null | sed "s|^|$PWD/|" | tr '\n' ':')
export PYTHONPATH="$PWD/.package:$SITE:$WHEELS${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# an engine that fails waits a minute for core dumps otherwise
export SGLANG_CUDA_COREDUMP_BEFORE_CRASH=0
export RECGUIDE_CACHE="${RECGUIDE_CACHE:-$WORK/cache}" RECGUIDE_COMMIT="${RECGUIDE_COMMIT:-unknown}" TMPDIR=$WORK/run
recguide() { "$PYTHON" "$PWD/scripts/gpu/command.py" "$@"; }
left() { echo $((LIMIT - SECONDS + START - ${1:-0})); }

TRACE=$WORK/paper.parquet POLICY=$WORK/policy.json SMALL_AT=1,4
# a toy has room for the shortest requests alone
[ -f "$TRACE" ] || "$PYTHON" -c "from dataclasses import replace; from pathlib import Path; from sys import argv
from recguide.sim.paper.acceptance import paper_trace; from recguide.traces.files import write_trace
trace = paper_trace('8b')
if argv[2]:
    short = sorted(trace.requests, key=lambda each: each.prompt_tokens + each.output_tokens)[:6]
    trace = replace(trace, requests=tuple(short))
write_trace(trace, Path(argv[1]), compression_level=1)" "$TRACE" "$TOY"
SMALL="--random-input-len 40 --output-len 96 --ignore-eos --requests-each 4"
SHAPE="--requests-each 4 --least-requests 4 --set max_total_tokens=40960 --set mem_fraction_static=0.95"
SHAPE="$SHAPE --set attention_backend=triton --set log_level=info"
if [ "$TOY" ]; then
  MODEL=tests/sglang_cpu/model SHAPE="--requests-each 2 --dtype fp32 --device cpu" SMALL="$SMALL --dtype fp32 --device cpu" SMALL_AT=2
  [ $# -gt 0 ] || set -- --block-sizes 4,8 --policy sglang:ar@1 --policy fixed:8@1 --policy overlap:B=8@1,2
else
  SMALL="$SMALL --set attention_backend=triton --set max_total_tokens=8192 --set mem_fraction_static=0.9"
  recguide fit --trace "$TRACE" --profile nld-8b-h200 --block-sizes 8,16,32 --max-concurrency 1,2,4,8,16,32,64,128 \
    --dataset gsm8k --dataset mbpp --dataset ifeval --output "$POLICY" > "$OUT/fit.log" 2>&1 || say "fit: status $?"
  say "fitted"
  [ $# -gt 0 ] || set -- --block-sizes 8,16,32 --policy sglang:ar@1 --policy fixed:16@1 --policy overlap:B=16@1 \
    --policy recipe@8,32 --policy "adaptive:$POLICY@8,32"
fi

(recguide bench sglang tests/sglang_cpu/model $SMALL --result-dir "$WORK/run/small" --together --max-concurrency $SMALL_AT \
  --policy sglang:ar --policy fixed:8 --policy overlap:B=8 --time-limit "$(left 20)" > "$OUT/small.json" 2> "$OUT/small.log"
  say "small: status $?") &
recguide bench sglang "$MODEL" $SHAPE --force-acceptance "$TRACE" --result-dir "$WORK/run/shape" --together \
  --time-limit "$(left 20)" "$@" $MORE > "$OUT/shape.json" 2> "$OUT/shape.log"
say "shape: status $?"
wait
for name in small shape; do
  tail -n 5 "$OUT/$name.log"
  tar -C "$WORK/run" -cJf "$OUT/$name.tar.xz" $name 2> /dev/null
  "$PYTHON" - "$OUT/$name.json" <<'PYEOF'
import json, sys
from pathlib import Path
FIGURES = ("output_throughput", "mean_tpot_ms", "accept_length", "tpf", "mean_forward_ms", "mean_host_ms",
           "median_between_steps_ms", "same_outputs", "failed")
text = Path(sys.argv[1]).read_text()
for run in json.loads(text) if text.strip() else []:
    shown = {name: round(run[name], 3) for name in FIGURES if run.get(name) is not None}
    print(run["policy"], "C", run.get("max_concurrency"), shown)
PYEOF
done
ls -l "$OUT"
