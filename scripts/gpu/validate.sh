#!/usr/bin/env bash
# Measures a campaign on one GPU, and holds the simulator against it. usage: validate.sh SECONDS CAMPAIGN
# CAMPAIGN: smollm2 (real acceptance), nld-8b or nld-14b (real shapes, acceptance forced from the paper-calibrated trace),
# or these with -ours behind (the same from the shipped trace of SmolLM2). Ends after SECONDS; the same call goes on. What
# is measured comes back as $OUT/campaigns.tar.*, and with those files in .carry/ another machine goes on; the report lies
# in $OUT/CAMPAIGN as soon as nothing lacks, or whatever lacks with REPORT=yes, and never with REPORT=no.
# PROFILE_SECONDS measures a profile of this machine first, which then stands for the shipped one; PROFILING are further
# options of it. POINTS are policies, with @C,C where not at all LEVELS, instead of those of the campaign.
# DRAFTS=--no-merge-drafts is of all of it, profile included; without a profile of this machine the shipped one's is.
set -eu -o pipefail
[ "${TOY:-}" ] || [ "$2" = smollm2 ] || SHAPES_ONLY=yes
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
: "${MARGIN:=15}" "${REPORT:=complete}" "${PROFILE_SECONDS:=}" "${REPEATS:=3}" "${STEADY:=1.25}"
: "${LEVELS:=1,2,4,8,16,32,64,128}" "${HELD_OUT:=20 40 80}" "${APART_AT:=8 64}" "${HELD_POLICIES:=}"
BLOCKS="8 16 32" EFFORT="--steady-seconds $STEADY --warm-seconds ${WARM:=0.6} --anchor fixed:16@16 --pin"
# above its switch regime is adaptive, and overlap is for a few requests
FEW="overlap@1,2,4 regime:file=policy.json@${REGIME_AT:=1,2,4,8,32} joint:joint.json@${JOINT_AT:=1,2,4,8,32}"
PROMPTS=""; for name in gsm8k math500 aime2025 humaneval mbpp livecodebench ifeval mmlu_stem mt_bench; do
  PROMPTS="$PROMPTS --dataset-path $HELD/data/prompts/$name.jsonl"
done
GRID="--requests 1,2,3,4,6,8,12,16,24,32,48,64,96,128 --contexts 64,512,2048 --layout-requests ${LAYOUT_REQUESTS:=32}"
OURS="gsm8k mbpp ifeval livecodebench mt-bench"
case $NAME in
  smollm2)
    MODEL=smollm2-135m TRACE=smollm2-135m FITTED=$OURS APART="math-500 humaneval" CROSS=""
    SERVING="--adapter smollm2-135m --acceptance model --kv-tokens 262144 $PROMPTS" LIMITS="--max-mean-error 0.05"
    # a small model's steps are short, and never at the GPU's power limit
    GRID="--adapter smollm2-135m $GRID --warm-ms 20 --least-ms 30" ;;
  nld-8b | nld-14b)
    MODEL=$NAME TRACE=paper.parquet FITTED="gsm8k mbpp ifeval" APART="math500 humaneval"
    CROSS="" SERVING="--acceptance forced --kv-tokens 131072" LIMITS="" ;;
  nld-8b-ours | nld-14b-ours)
    MODEL=${NAME%-ours} TRACE=smollm2-135m FITTED=$OURS APART="math-500 humaneval" CROSS=--cross-model
    SERVING="--acceptance forced --kv-tokens 262144" LIMITS="" ;;
  *) echo "validate.sh: found campaign $NAME, allowed: smollm2, nld-8b, nld-14b, nld-8b-ours, nld-14b-ours" >&2; exit 2 ;;
esac
[ "$PROFILE_SECONDS" ] || [ -f "$HERE/$MODEL.csv" ] || [ "${DRAFTS:-}" ] \
  || grep -q "^# drafts: .* merged" "sim/profiles/$MODEL-h200.csv" || DRAFTS=--no-merge-drafts
GRID="$GRID ${PROFILING:=} ${DRAFTS:=}" SERVING="$SERVING $DRAFTS"
PROFILE=$MODEL-h200 EACH="adaptive:policy.json allocation:policy.json"
if [ "$TOY" ]; then
  MODEL=smollm2-135m TRACE=toy.parquet CROSS="" BLOCKS="4" LEVELS=2 HELD_OUT=1 APART=mbpp APART_AT=1 EACH=""
  FEW=overlap:B=4@2 MARGIN=5 REPEATS=1 PROFILE_SECONDS=1
  GRID="--adapter smollm2-135m --requests 1,2 --contexts 8 --block-sizes 4 --prefill 8,16 --layout-requests 1
    --layouts rows --repeats 1 --least-ms 1 --warm-ms 0 --dtype fp32 --device cpu"
  EFFORT="--steady-seconds 5 --requests-each 2 --least-requests 2 --dtype fp32 --device cpu --kv-tokens 2048 --anchor fixed:4@2"
  SERVING="--acceptance forced"
  LIMITS="--max-mean-error 9 --max-worst-error 9 --max-per-request-error 9 --max-tpot-error 9"
  LIMITS="$LIMITS --max-hypervolume-error 99 --min-tau -1 --min-agreement 0.99 --min-repeats 1"
  [ "$NAME" != smollm2 ] || SERVING="--adapter smollm2-135m --acceptance model"
  [ -f "$HERE/toy.parquet" ] || recguide record smollm2-135m --dataset-path "$HELD/data/prompts/gsm8k.jsonl" \
    --dataset-path "$HELD/data/prompts/mbpp.jsonl" --limit 1 --max-output-tokens 8 --block-sizes 4 --dtype fp32 \
    --device cpu --adapter smollm2-135m --with-token-ids --output toy.parquet
elif [ "$TRACE" = paper.parquet ] && [ ! -f "$HERE/paper.parquet" ]; then
  "$PYTHON" -c "from pathlib import Path; from sys import argv
from recguide.sim.paper.acceptance import paper_trace; from recguide.traces.files import write_trace
write_trace(paper_trace(argv[2]), Path(argv[1]), compression_level=1)" "$HERE/paper.parquet" "${MODEL#nld-}"
fi
pack() {
  rm -rf "$WORK/packed"; mkdir "$WORK/packed"
  # the calibrated trace is made anew wherever it is needed
  tar -C "$WORK" --exclude '.*.tmp' --exclude paper.parquet --warning no-file-changed -cf - campaigns \
    | split -a 2 -b 14000000 - "$WORK/packed/campaigns.tar." || true
  rm -f "$OUT"/campaigns.tar.*; mv "$WORK"/packed/* "$OUT/"
}
WATCH=""
trap 'trap - EXIT; [ ! "$WATCH" ] || kill "$WATCH" || true; pack; ls -l "$OUT"' EXIT
if command -v nvidia-smi > /dev/null && [ ! "$TOY" ]; then
  # whether the GPU slowed down, and why, while the profile is measured and after
  nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,clocks_event_reasons.active --format=csv,noheader -lms 200 \
    >> "$OUT/clocks.csv" 2>&1 &
  WATCH=$!
fi
if [ "$PROFILE_SECONDS" ] && [ ! -f "$HERE/$MODEL.csv" ]; then
  recguide profile "$MODEL" $GRID --pin --seconds "$PROFILE_SECONDS" --output "$MODEL.csv"
  cp "$HERE/$MODEL.csv" "$OUT/"
fi
[ ! -f "$HERE/$MODEL.csv" ] || PROFILE=$MODEL.csv
SIZES=$(echo $BLOCKS | tr ' ' ,)
# a toy trace has too few rounds to fit anything to
[ "$TOY" ] || [ -f "$HERE/policy.json" ] || recguide fit --trace "$TRACE" --profile "$PROFILE" $CROSS \
  --block-sizes "$SIZES" $(for name in $FITTED; do echo --dataset "$name"; done) --max-concurrency "$LEVELS" \
  --joint joint.json --output policy.json

FIXED=$(for size in $BLOCKS; do echo "fixed:$size"; done)
ALL="ar $FIXED $EACH"; [ "$TOY" ] || FEW="$FEW recipe${RECIPE_AT:+@$RECIPE_AT}"
: "${POINTS:=$ALL $FEW}"
MORE=$(for count in $HELD_OUT; do for policy in ${HELD_POLICIES:-$ALL}; do echo "$policy@$count"; done; done
  for count in $APART_AT; do for data in $APART; do for policy in ${HELD_POLICIES:-$ALL}; do
    echo "$policy@$count@$data"; done; done; done)
STATUS=0 LEFT=$((END - SECONDS - MARGIN))
[ $LEFT -gt 0 ] || { echo "validate.sh: no time is left, the same call goes on"; exit; }
recguide measure "$MODEL" --trace "$TRACE" --profile "$PROFILE" --output-dir . --max-concurrency "$LEVELS" \
  $(for policy in $POINTS; do echo --policy "$policy"; done) $(for point in $MORE; do echo --more "$point"; done) \
  --repeats "$REPEATS" --time-limit $LEFT $EFFORT $SERVING || STATUS=$?
[ $STATUS = 0 ] || [ $STATUS = 75 ] || exit $STATUS
[ $STATUS = 0 ] || echo "validate.sh: runs are still to be made, the same call goes on"
if [ "$REPORT" = yes ] || { [ "$REPORT" = complete ] && [ $STATUS = 0 ]; }; then
  recguide validate . --trace "$TRACE" --profile "$PROFILE" $CROSS $LIMITS --output-dir "$OUT/$NAME" \
    || echo "validate.sh: status $?"
fi
