#!/usr/bin/env bash
# Compares what SmolLM2 says under every served policy with one-token decoding. usage: match.sh SECONDS [options of bench match]
# Begins no further run after SECONDS from the call's start. $OUT/match.json is there after each run, and match.log.
# Fitted policies come from .carry/policies/policy.json and joint.json; without these they are fitted first, 20 s.
set -eu -o pipefail
. scripts/gpu/setup.sh
END=$((SECONDS + $1)); shift
HERE=$WORK/match DATA=$HELD/data/prompts NAMES="gsm8k humaneval ifeval mt_bench math500 mbpp mmlu_stem livecodebench"
mkdir -p "$HERE"
recguide() { (cd "$HERE" && "$PYTHON" "$ROOT/scripts/gpu/command.py" "$@"); }
[ ! -d "$CARRIED/policies" ] || cp "$CARRIED"/policies/* "$HERE/"

SET="--limit 8 --output-len 256 --max-concurrency 1,8,32 --requests-each 8 --block-sizes 4,8,16,32 --dtype bf16"
POLICIES="ar fixed:16 overlap:B=16 adaptive:policy.json joint:joint.json fixed:8 recipe fixed:32 tidar"
if [ "$TOY" ]; then
  NAMES="gsm8k mt_bench" POLICIES="ar fixed:8 overlap:B=8 tidar:B=4 adaptive:policy.json joint:joint.json"
  SET="--limit 1 --output-len 8 --max-concurrency 1,2 --block-sizes 4,8,16,32 --dtype bf16 --device cpu"
fi
[ -f "$HERE/joint.json" ] || recguide fit --trace smollm2-135m --profile smollm2-135m-h200 --block-sizes 8,16,32 \
  $(for name in gsm8k mbpp ifeval livecodebench mt-bench; do echo --dataset "$name"; done) \
  --max-concurrency 1,2,4,8,16,32,64,128 --output policy.json --joint joint.json

STATUS=0 LEFT=$((END - SECONDS))
recguide bench match smollm2-135m --adapter smollm2-135m --profile smollm2-135m-h200 $SET \
  $(for name in $NAMES; do echo --dataset-path "$DATA/$name.jsonl"; done) \
  $(for policy in $POLICIES; do echo --policy "$policy"; done) \
  --time-limit $((LEFT > 0 ? LEFT : 0)) --output "$OUT/match.json" "$@" 2>&1 | tee "$OUT/match.log" || STATUS=$?
echo "match.sh: status $STATUS"
exit $STATUS
