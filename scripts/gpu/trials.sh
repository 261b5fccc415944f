#!/usr/bin/env bash
# Distils training text and runs adapter trials, one a GPU. usage: trials.sh SECONDS_EACH "NAME key=value ..." ...
# Keys are fields of engine/adapt.py's Recipe. Text comes back as $OUT/*.npz, results as $OUT/trials.json.
set -eu -o pipefail
. scripts/gpu/setup.sh
EACH=$1; shift
DATA=$WORK/corpora TRIALS=$WORK/trials PROMPTS=$HELD/data/train_prompts.jsonl.gz; mkdir -p "$DATA" "$TRIALS"
# seconds, longest prompt, longest response, requests together, shortest prompt, prompts of the model's own
GIVEN="70 192 256 1024 0 0" LONG="45 640 512 512 150 0" OWN="115 192 256 1024 0 24000" LESS=""
[ "$TOY" ] && zcat "$PROMPTS" | sed -n 1,60p > "$WORK/few.jsonl" && PROMPTS=$WORK/few.jsonl \
  GIVEN="1 64 12 2 0 0" LONG="1 120 12 2 60 0" OWN="1 128 12 8 0 2" \
  LESS="steps=2 shared_rank=2 draft_rank=2 block_tokens=64 tokens_per_step=300 per_set=1 max_response=12"

distil() { # distil GPU NAME NUMBERS PROMPTS; text that is there already is taken
  [ -f "$DATA/$2.npz" ] || CUDA_VISIBLE_DEVICES=$1 "$PYTHON" scripts/gpu/distil.py smollm2-135m "$DATA/$2.npz" $3 $4
}
(distil 0 given "$GIVEN" "$PROMPTS"; distil 0 long "$LONG" "$PROMPTS") & FIRST=$!
distil $((GPUS - 1)) own "$OWN" ""
wait $FIRST
cp "$DATA"/*.npz "$OUT/"; ls -l "$DATA"

trial() { # trial GPU NAME key=value ...
  CUDA_VISIBLE_DEVICES=$1 "$PYTHON" scripts/gpu/adapt_trials.py smollm2-135m "$TRIALS/$2.json" \
    "$DATA/given.npz,$DATA/own.npz,$DATA/long.npz" "$HELD/data/prompts" seconds="$EACH" $LESS "${@:3}" > "$TRIALS/$2.log" 2>&1 \
    || echo "$2: failed, status $?"
}
next=0
for words in "$@"; do
  # in front of the call: a background job counts in a shell of its own
  gpu=$((next % GPUS)); next=$((next + 1))
  trial $gpu $words &
  [ $((next % GPUS)) != 0 ] || wait
done
wait
for log in "$TRIALS"/*.log; do echo "== $log"; grep -v Warn "$log" | tail -n 5 | cut -c1-1400; done
cat "$TRIALS"/*.json > "$OUT/trials.json"
