# make demo         build a small real image and check it, end to end; where none can be built, say what gets what is missing (exit code 4)
# make test         unit tests, offline once the packages are in; some two minutes on two cores
# make coverage     how much of elf/, image/, joblog/ and fabric/ their unit tests take, lines and branches, and the floor of each
# make test-core    the engine tests that CI runs: demo, each strategy, kill and resume, check, four nodes, a job; some eight minutes
# make test-engine  all tests against a real Apptainer, a real loader and a real RCCL
# make test-gpu     real collectives and real failures on an NVIDIA GPU, on which CUDA stands in for HIP (NCCL="2.31.2 2.30.7": of these versions)
# make test-all     both, make coverage and make fuzz, with all of what is exhaustive, of which they take a tenth
# make fuzz         new inputs for every parser, and the property tests with many more (FUZZ=100 for an hour's worth; SEED=N for the same again)
# make rehearse     each row of the catalogue against the real package index and on stand-ins, into the ledger; hours (ROWS=vllm,jax: these alone)
# make corpus       inputs that reach more of the parsers, to be kept (TARGET=name SECONDS=60)
# make audit        requirements and advisories of the packages that are installed
# make lint         ruff, mypy --strict, shellcheck
# make bench        speed, as ratios against named peers
# make docs-site    write the pages that come from the program (they are not in git), build docs/_build/html: to read them
# make docs         the same, run the commands in the documents, and look the site over in a browser
#                   (DOCUMENTS='documents and core': the commands of README.md and the tutorials only)
# make test-lowest  tests of what packages are used for, with the oldest versions that pyproject.toml allows
# make dist         wheel, sdist, the one file for login nodes and its easyconfig, into dist/
# make requirements the newest versions that the one file may carry, into .ci/requirements.txt
# make written      what this version writes, for later ones to read, into tests/fixtures/written

PYTHON ?= python3
FUZZ ?= 10
NCCL ?= 2.28.9 2.27.7
SECONDS ?= 60
DOCUMENTS ?= documents
VENV := .venv
BIN := $(VENV)/bin
SCRIPTS := docs/support/fabric-prolog.sh $(addprefix .ci/,demo engine-tests get-engine run slurm try-demo unprivileged)
LAYER_SCRIPTS := $(wildcard layers/*/*.sh)

LOWEST_TESTS := $(addprefix tests/unit/test_,cli.py downloads.py foreign.py image_squashfs.py lock.py joblog_files.py registry.py wheels.py)
# lines and branches together, in percent; a floor is raised when a room stays above it, and never lowered for a change
FLOORS := elf=95 image=93 joblog=97 fabric=95
COVERAGE_TESTS = $(wildcard $(addprefix tests/unit/test_,elf_*.py fabric*.py image_*.py joblog_*.py check_static.py compare.py fuzz.py ldd.py log_command.py provider.py steps.py merge.py))

# each process would compile the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test coverage test-core test-core-here test-engine test-engine-here test-gpu test-all test-lowest fuzz corpus rehearse audit lint bench bench-here docs docs-site dist requirements written clean
help:
	@sed -n 's/^# make/make/p' Makefile

# the program alone, for the demo
$(VENV)/.program: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lumiimg needs Python 3.11 or newer: make PYTHON=/path/to/python3.x"; exit 4; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments"; echo "next, as root:  apt-get install python3-venv"; exit 4; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed: $(VENV)/.program
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# what one target needs beside that
$(VENV)/.docs $(VENV)/.audit: $(VENV)/.%: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[$*]'
	touch $@

demo:
	@.ci/demo

test: $(VENV)/.installed
	# the same inputs each time; `make fuzz` has others
	# three processes for two cores, as some tests wait
	$(BIN)/pytest --numprocesses $$(($$(nproc) * 3 / 2)) --dist worksteal --hypothesis-seed=1

coverage: $(VENV)/.installed
	# the floors are of what `make test` runs, also as a part of `make test-all`
	env -u LUMIIMG_ALL $(BIN)/coverage run --data-file=build/coverage --branch --source=lumiimg -m pytest -q $(COVERAGE_TESTS)
	@for floor in $(FLOORS); do \
	    printf '%s/, floor %s %%: ' $${floor%=*} $${floor#*=}; \
	    $(BIN)/coverage report --data-file=build/coverage --include="lumiimg/$${floor%=*}/*" --format=total --fail-under=$${floor#*=} || exit 1; \
	done

test-core:
	.ci/unprivileged make test-core-here

test-core-here: $(VENV)/.installed
	.ci/engine-tests 'engine and core'

test-engine:
	.ci/unprivileged make test-engine-here

test-engine-here: $(VENV)/.installed
	.ci/engine-tests engine

test-gpu: $(VENV)/.installed
	mkdir -p build/gpu
	NCCL='$(NCCL)' $(BIN)/pytest -v -m gpu tests/gpu

test-all: export LUMIIMG_ALL = 1
test-all: test coverage fuzz test-engine

test-lowest: $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/lowest
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra docker --output-file build/lowest.txt pyproject.toml
	$(BIN)/uv pip install --quiet --python build/lowest/bin/python --requirements build/lowest.txt pip pytest hypothesis jsonschema pyelftools
	build/lowest/bin/python -m pytest $(LOWEST_TESTS)

# the newest commit's time: the same commit gives the same bytes
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
dist: $(VENV)/.installed
	rm -rf dist
	$(BIN)/python -m tools.pages
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python .ci/zipapp.py dist/lumiimg-*.whl
	cd dist && sha256sum lumiimg-* > SHA256SUMS

# without uv, a program of each machine: pip fetches it where it is not on PATH
requirements: $(VENV)/.installed
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-header --no-annotate \
	    --no-emit-package uv --python-version 3.11 --output-file .ci/requirements.txt pyproject.toml

written: $(VENV)/.installed
	$(BIN)/python -m tests.written

fuzz: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz --seconds "$$(awk 'BEGIN { print $(FUZZ) / 5 }')" $(if $(SEED),--seed $(SEED))
	LUMIIMG_FUZZ=$(FUZZ) $(BIN)/pytest -m hypothesis --numprocesses auto --dist worksteal $(if $(SEED),--hypothesis-seed=$(SEED))

# what is made stays in build/rehearse, several gigabytes
rehearse: $(VENV)/.installed
	$(BIN)/python -m tools.rehearse --record $$(echo '$(ROWS)' | tr , ' ')

corpus: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz.grow --seconds $(SECONDS) $(TARGET)

# --strict: a package that no advisories can be had about is an error, too
audit: $(VENV)/.audit
	$(BIN)/python -m pip check
	$(BIN)/pip-audit --local --strict

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy .ci/zipapp.py .ci/zipapp_main.py
	shellcheck --external-sources --shell=bash $(SCRIPTS) $(LAYER_SCRIPTS)

bench:
	.ci/unprivileged make bench-here

bench-here: $(VENV)/.installed
	$(BIN)/pip install --quiet '.[bench]'
	$(BIN)/python -m tools.bench
	$(BIN)/python -m tools.bench_build

docs-site: $(VENV)/.docs
	$(BIN)/python -m tools.pages
	rm -rf docs/_build
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --nitpicky --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html

docs: docs-site
	$(BIN)/pytest --numprocesses auto --dist worksteal -m '$(DOCUMENTS)' tests/unit/test_documents.py
	$(BIN)/pytest -m documents tests/unit/test_site.py

clean:
	rm -rf build dist docs/_build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
