# make demo         build a small real image and check it, end to end; installs an engine where it may
# make test         unit tests, offline once the packages are in; under two minutes
# make test-engine  the same against a real Apptainer, a real loader and a real RCCL
# make fuzz         new inputs for every parser, and the property tests with many more (FUZZ=100 for an hour's worth)
# make corpus       inputs that reach more of the parsers, to be kept (TARGET=name SECONDS=60)
# make audit        licences, files and advisories of the packages that are installed
# make lint         ruff, mypy --strict, shellcheck
# make bench        speed, as ratios against named peers
# make docs         write docs/reference.md from the program and its data

PYTHON ?= python3
FUZZ ?= 10
SECONDS ?= 60
VENV := .venv
BIN := $(VENV)/bin
SCRIPTS := .ci/run .ci/demo .ci/get-engine .ci/slurm .ci/unprivileged
LAYER_SCRIPTS := $(wildcard layers/*/*.sh)

.PHONY: help demo demo-here test test-engine test-engine-here fuzz corpus audit lint bench bench-here docs clean
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
	$(BIN)/python -m tests.fuzz --seconds "$$(awk 'BEGIN { print $(FUZZ) / 5 }')"
	LUMIIMG_FUZZ=$(FUZZ) $(BIN)/pytest -m hypothesis

corpus: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz.grow --seconds $(SECONDS) $(TARGET)

# exit code 3 of the program, where the advisories cannot be asked, is an error to make
audit: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[audit]'
	$(BIN)/python -m tests.audit

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
	$(BIN)/python -m tests.reference > docs/reference.md
	$(BIN)/python -m tests.compatibility > docs/compatibility.md

clean:
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
