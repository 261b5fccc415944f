#!/usr/bin/env bash
# Measures a campaign on one GPU, and holds the simulator against it. usage: validate.sh SECONDS CAMPAIGN
# CAMPAIGN: smollm2 (real acceptance), nld-8b (real shapes, acceptance forced from the paper-calibrated trace), or
# nld-8b-ours (the same from the shipped trace of SmolLM2). Ends after SECONDS; the same call goes on. What is measured
# comes back as $OUT/campaigns.tar.*, and with those files in .carry/ another machine goes on; the report lies in
# $OUT/CAMPAIGN as soon as nothing lacks.
set -eu -o pipefail
. scripts/gpu/setup.sh
END=$((SECONDS + $1)) NAME=$2
HERE=$WORK/campaigns/$NAME
if [ ! -d "$HERE" ] && ls "$HELD"/campaigns.tar.* > /dev/null 2>&1; then
  cat "$HELD"/campaigns.tar.* | tar -C "$WORK" -xf -
fi
mkdir -p "$HERE"
# policy files and traces are named without their folder, so that the campaign can be looked at elsewhere
recguide() { (cd "$HERE" && "$PYTHON" "$ROOT/scripts/gpu/command.py" "$@"); }

# a run that has begun goes to its end
: "${MARGIN:=60}" "${LEVELS:=1,2,4,8,16,24,32,48,64,96,128}" "${FEW:=1,2,4}" "${HELD_OUT:=8,64}" "${REPEATS:=3}"
BLOCKS="8 16 32" OVERLAP=overlap REGIME=regime:file=policy.json EFFORT="--steady-seconds 8 --anchor fixed:16@16"
PROMPTS=""; for name in gsm8k math500 aime2025 humaneval mbpp livecodebench ifeval mmlu_stem mt_bench; do
  PROMPTS="$PROMPTS --dataset-path $HELD/data/prompts/$name.jsonl"
done
OURS="gsm8k mbpp ifeval livecodebench mt-bench"
case $NAME in
  smollm2)
    MODEL=smollm2-135m TRACE=smollm2-135m PROFILE=smollm2-135m-h200 FITTED=$OURS APART="math-500 humaneval" CROSS=""
    SERVING="--adapter smollm2-135m --acceptance model --kv-tokens 262144 $PROMPTS" LIMITS="--max-mean-error 0.05" ;;
  nld-8b)
    MODEL=nld-8b TRACE=paper.parquet PROFILE=nld-8b-h200 FITTED="gsm8k mbpp ifeval" APART="${APART:-math500 humaneval}"
    CROSS="" SERVING="--acceptance forced --kv-tokens 131072" LIMITS="" ;;
  nld-8b-ours)
    MODEL=nld-8b TRACE=smollm2-135m PROFILE=nld-8b-h200 FITTED=$OURS APART="math-500 humaneval" CROSS=--cross-model
    SERVING="--acceptance forced --kv-tokens 262144" LIMITS="" ;;
  *) echo "validate.sh: found campaign $NAME, allowed: smollm2, nld-8b, nld-8b-ours" >&2; exit 2 ;;
esac
if [ "$TOY" ]; then
  MODEL=smollm2-135m TRACE=toy.parquet PROFILE=toy.csv FITTED=gsm8k APART=mbpp CROSS="" BLOCKS="2 4"
  LEVELS=2 FEW=2 HELD_OUT=1 OVERLAP=overlap:B=4 MARGIN=5 REPEATS=1
  EFFORT="--requests-each 1 --least-requests 2 --dtype fp32 --device cpu --kv-tokens 2048 --anchor fixed:4@2"
  SERVING="--acceptance forced"
  LIMITS="--max-mean-error 9 --max-worst-error 9 --max-per-request-error 9 --max-tpot-error 9"
  LIMITS="$LIMITS --max-hypervolume-error 99 --min-tau -1 --min-agreement 0.99 --min-repeats 1"
  [ "$NAME" != smollm2 ] || SERVING="--adapter smollm2-135m --acceptance model"
  [ -f "$HERE/toy.parquet" ] || recguide record smollm2-135m --dataset-path "$HELD/data/prompts/gsm8k.jsonl" \
    --dataset-path "$HELD/data/prompts/mbpp.jsonl" --limit 2 --max-output-tokens 8 --block-sizes 2,4 --dtype fp32 \
    --device cpu --adapter smollm2-135m --with-token-ids --output toy.parquet
  [ -f "$HERE/toy.csv" ] || recguide profile smollm2-135m --adapter smollm2-135m --requests 1,2 --contexts 8 \
    --block-sizes 4 --prefill 8 --layout-requests 1 --repeats 2 --least-ms 1 --seconds 20 --dtype fp32 \
    --device cpu --output toy.csv
elif [ "$TRACE" = paper.parquet ] && [ ! -f "$HERE/paper.parquet" ]; then
  "$PYTHON" -c "from pathlib import Path; from sys import argv
from recguide.sim.paper.acceptance import paper_trace; from recguide.traces.files import write_trace
write_trace(paper_trace('8b'), Path(argv[1]), compression_level=3)" "$HERE/paper.parquet"
fi
SIZES=$(echo $BLOCKS | tr ' ' ,)
# a toy trace has too few rounds to fit anything to
[ "$TOY" ] || [ -f "$HERE/policy.json" ] || recguide fit --trace "$TRACE" --profile "$PROFILE" $CROSS \
  --block-sizes "$SIZES" $(for name in $FITTED; do echo --dataset "$name"; done) --max-concurrency "$LEVELS" --output policy.json

pack() {
  rm -rf "$WORK/packed"; mkdir "$WORK/packed"
  tar -C "$WORK" --exclude '.*.tmp' --warning no-file-changed -cf - campaigns \
    | split -a 2 -b 14000000 - "$WORK/packed/campaigns.tar." || true
  rm -f "$OUT"/campaigns.tar.*; mv "$WORK"/packed/* "$OUT/"
}
trap 'trap - EXIT; pack; ls -l "$OUT"' EXIT

FIXED=$(for size in $BLOCKS; do echo --policy "fixed:$size"; done)
ALL="--policy ar $FIXED --policy recipe --policy adaptive:policy.json --policy $REGIME"
[ ! "$TOY" ] || ALL="--policy ar --policy fixed:4"
LACKS=""
measure() { # measure CONCURRENCIES options: runs of these points, as far as there is time
  local status=0 left=$((END - SECONDS - MARGIN))
  [ $left -gt 0 ] || { LACKS=yes; return 0; }
  recguide measure "$MODEL" --trace "$TRACE" --profile "$PROFILE" --output-dir . --max-concurrency "$1" \
    --repeats "$REPEATS" --time-limit $left $EFFORT $SERVING "${@:2}" || status=$?
  [ $status = 0 ] || [ $status = 75 ] || exit $status
  [ $status = 0 ] || LACKS=yes
}
measure "$LEVELS" $ALL
measure "$FEW" --policy "$OVERLAP"
measure "$HELD_OUT" $ALL $(for name in $APART; do echo --dataset "$name"; done)
if [ "$LACKS" ]; then
  echo "validate.sh: runs are still to be made, the same call goes on"
else
  recguide validate . --trace "$TRACE" --profile "$PROFILE" $CROSS $LIMITS --output-dir "$OUT/$NAME" \
    || echo "validate.sh: status $?"
fi
