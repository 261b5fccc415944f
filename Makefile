# Each target makes .venv when it is missing and installs what it needs: only Python 3.11+ and make must be there.
PYTHON ?= python3
BIN := .venv/bin
# without a GPU the plain build does, pinned so that a wheel already at hand is taken
TORCH ?= $(if $(shell command -v nvidia-smi),torch,torch==2.13.0)

# SGLang has requirements of its own, and so an environment; its processes find what stands in for GPU code on this path
SGLANG := .venv-sglang/bin
SGLANG_ENV := PYTHONPATH=$(CURDIR)/tests/sglang_cpu SGLANG_CUDA_COREDUMP_BEFORE_CRASH=0 OMP_NUM_THREADS=1

.PHONY: demo test test-sglang lint clean

demo: .venv/demo.stamp
	$(BIN)/recguide sweep --trace smollm2-135m --profile smollm2-135m-h200 --num-prompts 512 --output-dir results/demo

# a process a core; the tests of a file share what they set up
test: lint
	$(BIN)/pytest -n auto --dist loadfile

# SGLang warns of much that is not ours; an engine that fails waits a minute for core dumps of a GPU otherwise
test-sglang: .venv-sglang/test.stamp
	$(SGLANG_ENV) $(SGLANG)/pytest -W ignore -n auto --dist loadfile tests/engine/test_sglang_*.py

lint: .venv/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/demo.stamp: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/test.stamp: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e '.[engine,serve,dev]'
	touch $@

.venv-sglang/test.stamp: pyproject.toml tests/sglang_cpu/requirements.txt | .venv-sglang/bin/pip
	$(SGLANG)/pip install --quiet -r tests/sglang_cpu/requirements.txt
	$(SGLANG)/pip install --quiet --no-deps sglang==0.5.17
	$(SGLANG)/pip install --quiet -e '.[engine]'
	touch $@

.venv/bin/pip .venv-sglang/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11 or missing: apt install python3, or make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make a virtual environment: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/pip=)

clean:
	rm -rf .venv .venv-sglang results build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .package/*.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
