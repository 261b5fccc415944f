#!/usr/bin/env bash
# SGLang with the plugin on one GPU. usage: sglang.sh SECONDS PART [OPTIONS OF bench sglang]
# PARTs: shape, the engines of $MODEL start and serve in turn, acceptance forced from $FORCED: `paper`, the trace that is
# calibrated to the paper, or a shipped one's name. Without options: AR, fixed:16 and overlap at C=1,
# recipe and fitted blocks at C=2 to 64. smollm2, outputs of SmolLM2 with its adapter are held against those of
# SGLang's own decoding, in bf16, for its kernels take no fp32, and its acceptance against our engine's. small, the same of
# the tiny model of the tests. Comes back: PART.json, its log, and what belongs to them. .carry/sglang holds SGLang and
# what it needs as parts of a tar.xz; TOY=1 runs on a CPU.
# An engine of nld-8b takes 16 GiB of weights (19 while it is made), 7 of keys and about a GiB beside them, and half a GiB
# more while it times its products: 25 GiB, so that five start together on 140 GiB. That is worked out; what was measured
# is 38 GiB, when what SGLang's Ministral 3 makes and replaces was still there: three.
set -u -o pipefail
: "${OUT:=/tmp/out}" "${WORK:=/tmp/recguide}" "${PYTHON:=python3}" "${TOY:=}" "${MODEL:=nld-8b}" "${MORE:=}" "${FORCED:=paper}"
LIMIT=$1 PART=$2 BEGAN=$SECONDS GIVEN=${PYTHONPATH:-}; shift 2
[ "$PART" = smollm2 ] || SHAPES_ONLY=yes
. scripts/gpu/setup.sh
SITE=$WORK/sglang
mkdir -p "$SITE" "$WORK/run"
say() { echo "$(date +%T) $*"; }
if ls .carry/sglang/*.tar.xz* > /dev/null 2>&1 && [ ! -f "$SITE/.there" ]; then
  cat .carry/sglang/*.tar.xz* | "$PYTHON" -c 'import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz") as packed: packed.extractall(sys.argv[1], filter="data")' "$SITE"
  touch "$SITE/.there"
  say "SGLang is unpacked"
fi
# our own engine runs without what SGLang brings
PLAIN=$PYTHONPATH
# a package that SGLang only has to find is a stub there
export PYTHONPATH="$PWD/.package:$WORK/site:$SITE${GIVEN:+:$GIVEN}"
# an engine that fails waits a minute for core dumps otherwise
export SGLANG_CUDA_COREDUMP_BEFORE_CRASH=0
export RECGUIDE_COMMIT="${RECGUIDE_COMMIT:-unknown}" TMPDIR=$WORK/run
recguide() { "$PYTHON" "$ROOT/scripts/gpu/command.py" "$@"; }
left() { echo $((LIMIT - SECONDS + BEGAN - ${1:-0})); }

TRACE=$FORCED POLICY=$WORK/$FORCED-policy.json FITTED="gsm8k mbpp ifeval" CROSS=""
if [ "$FORCED" = paper ]; then
  TRACE=$WORK/paper.parquet
  # a toy has room for the shortest requests alone
  [ "$PART" != shape ] || [ -f "$TRACE" ] || "$PYTHON" -c "from dataclasses import replace; from pathlib import Path; from sys import argv
from recguide.sim.paper.acceptance import paper_trace; from recguide.traces.files import write_trace
trace = paper_trace('8b')
if argv[2]:
    short = sorted(trace.requests, key=lambda each: each.prompt_tokens + each.output_tokens)[:6]
    trace = replace(trace, requests=tuple(short))
write_trace(trace, Path(argv[1]), compression_level=1)" "$TRACE" "$TOY"
else
  FITTED="gsm8k mbpp ifeval livecodebench mt-bench" CROSS=--cross-model
fi
BOUND="${DRAFTS:=} --set attention_backend=triton --set mem_fraction_static=0.95 --set log_level=info"
case $PART in
  shape)
    LOAD="$MODEL --force-acceptance $TRACE --profile nld-8b-h200 --requests-each 3 --least-requests 6 --set max_total_tokens=53248 $BOUND"
    if [ "$TOY" ]; then
      LOAD="tests/sglang_cpu/model --force-acceptance $TRACE --requests-each 2 --dtype fp32 --device cpu"
      [ $# -gt 0 ] || set -- --block-sizes 4,8 --policy sglang:ar@1 --policy fixed:8@1 --policy overlap:B=8@1,2
    else
      [ -f "$POLICY" ] || recguide fit --trace "$TRACE" --profile nld-8b-h200 $CROSS --block-sizes 8,16,32 \
        $(for name in $FITTED; do echo --dataset "$name"; done) --max-concurrency 1,2,4,8,16,32,64,128 \
        --output "$POLICY" > "$OUT/fit.log" 2>&1 || say "fit: status $?"
      [ $# -gt 0 ] || set -- --block-sizes 8,16,32 --policy sglang:ar@1,8,64 --policy fixed:16@1 \
        --policy overlap:B=16@1 --policy recipe@2,8,32,64 --policy "adaptive:$POLICY@2,8,32,64"
    fi ;;
  smollm2)
    for name in gsm8k humaneval ifeval mt_bench; do head -n 8 "$HELD/data/prompts/$name.jsonl"; done > "$WORK/mixed.jsonl"
    LOAD="smollm2-135m --adapter smollm2-135m --dataset-path $WORK/mixed.jsonl --output-len 256"
    LOAD="$LOAD --requests-each 4 --least-requests 32"
    OURS="$LOAD" LOAD="$LOAD --set max_total_tokens=32768 $BOUND"
    [ ! "$TOY" ] || LOAD="$LOAD --dtype fp32 --device cpu"
    [ $# -gt 0 ] || set -- --max-concurrency 1,8 --policy sglang:ar --policy fixed:16 --policy overlap:B=16 ;;
  small)
    LOAD="tests/sglang_cpu/model --random-input-len 40 --output-len 96 --ignore-eos --requests-each 4"
    if [ "$TOY" ]; then LOAD="$LOAD --dtype fp32 --device cpu"; else LOAD="$LOAD --set max_total_tokens=8192 $BOUND"; fi
    [ $# -gt 0 ] || set -- --max-concurrency 1,4 --policy sglang:ar --policy fixed:8 --policy overlap:B=8 ;;
  *) echo "sglang.sh: found part $PART, allowed: shape, smollm2, small" >&2; exit 2 ;;
esac

recguide bench sglang $LOAD --result-dir "$WORK/run/$PART-$FORCED" --together --time-limit "$(left 15)" "$@" $MORE \
  > "$OUT/$PART.json" 2> "$OUT/$PART.log"
say "$PART: status $?"
tail -n 6 "$OUT/$PART.log"
tar -C "$WORK/run" -cJf "$OUT/$PART-$FORCED.tar.xz" "$PART-$FORCED"
if [ "$PART" = smollm2 ] && [ ! "$TOY" ]; then
  OURS=$(echo "$OURS" | sed 's/--requests-each 4 --least-requests 32//')
  for policy in fixed:16 overlap:B=16; do
    PYTHONPATH=$PLAIN recguide bench serve --model $OURS ${DRAFTS:---no-merge-drafts} --policy $policy --max-concurrency 8 --save-result \
      --result-dir "$OUT" --result-filename "ours-${policy%%:*}.json" > "$OUT/ours.log" 2>&1
    say "our engine, $policy: status $?"
  done
fi
"$PYTHON" - "$OUT/$PART.json" "$OUT"/ours-*.json <<'PYEOF'
import json, sys
from pathlib import Path
FIGURES = ("output_throughput", "steady_output_throughput", "mean_tpot_ms", "accept_length", "tpf", "mean_step_ms", "mean_forward_ms",
           "mean_host_ms", "median_between_steps_ms", "same_outputs", "failed")
for path in map(Path, sys.argv[1:]):
    text = path.read_text() if path.exists() else ""
    found = json.loads(text) if text.strip() else []
    for run in found if isinstance(found, list) else [found]:
        shown = {name: round(run[name], 3) for name in FIGURES if run.get(name) is not None}
        print(path.stem, run["policy"], "C", run.get("max_concurrency"), shown)
PYEOF
ls -l "$OUT"
