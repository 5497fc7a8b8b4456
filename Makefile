# make demo         build a small real image and check it, end to end; installs an engine where it may
# make test         unit tests, offline once the packages are in; under two minutes
# make test-engine  the same against a real Apptainer, a real loader and a real RCCL
# make fuzz         the property tests with many more inputs (FUZZ=100 for an hour's worth)
# make lint         ruff, mypy --strict, shellcheck
# make bench        speed, as ratios against named peers
# make docs         write what comes from the program, run the commands in the documents, build docs/_build/html

PYTHON ?= python3
FUZZ ?= 10
VENV := .venv
BIN := $(VENV)/bin
SCRIPTS := .ci/run .ci/demo .ci/get-engine .ci/slurm .ci/unprivileged
LAYER_SCRIPTS := $(wildcard layers/*/*.sh)

.PHONY: help demo demo-here test test-engine test-engine-here fuzz lint bench bench-here docs clean
help:
	@sed -n 's/^# make/make/p' Makefile

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lumiimg needs Python 3.11 or newer: make PYTHON=/path/to/python3.x"; exit 4; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo:
	.ci/get-engine || echo "going on with the part that needs no engine"
	.ci/unprivileged make demo-here

demo-here: $(VENV)/.installed
	.ci/demo

test: $(VENV)/.installed
	$(BIN)/pytest --numprocesses auto --dist worksteal

test-engine:
	.ci/unprivileged make test-engine-here

test-engine-here: $(VENV)/.installed
	$(BIN)/pytest -m engine tests/engine

fuzz: $(VENV)/.installed
	LUMIIMG_FUZZ=$(FUZZ) $(BIN)/pytest -m hypothesis

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	shellcheck --external-sources --shell=bash $(SCRIPTS) $(LAYER_SCRIPTS)

bench:
	.ci/unprivileged make bench-here

bench-here: $(VENV)/.installed
	$(BIN)/pip install --quiet '.[bench]'
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench_build
	$(BIN)/python -m tests.bench_nodes

docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/python -m tests.reference
	$(BIN)/python -m tests.compatibility
	$(BIN)/python -m tests.rooms
	$(BIN)/pytest --numprocesses auto --dist worksteal -m documents tests/unit/test_documents.py
	rm -rf docs/_build
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --nitpicky --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html
	$(BIN)/python -m tests.site docs/_build/html

clean:
	rm -rf build dist docs/_build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
