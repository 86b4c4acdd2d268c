# Every target does its own set-up and may be run again at any time.

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3) python3.11)
READY := $(VENV)/.ready
INSTALL := $(PY) -m pip install --progress-bar off -c constraints.txt -e '.[test,dev]'

# Tests run side by side, a file a worker, with one worker more than cores for what mostly waits. Those of real processes run
# after the others, NETWORK_WORKERS files at a time (more get into each other's way on two cores), the longest first, all that
# share a swarm by one worker; then those in a browser.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8)))
NETWORK_WORKERS ?= 2
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
WAITING := tests/network/test_outage.py
LONGEST := $(addprefix tests/network/test_,commands.py chaos.py leaving.py volunteer.py server_life.py)
# With ARGS a selection may leave a run without a test (pytest's exit code 5).
MAYBE_NONE = $(if $(ARGS),|| test $$? -eq 5)
CHECKED := swarm $(wildcard benchmarks)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_RETRIES ?= 8
export PIP_DEFAULT_TIMEOUT ?= 60

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv model tools demo test lint format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY)  ## create .venv with the tested versions of everything
	@echo "ready: . $(VENV)/bin/activate"

# The stamp is written last: an interrupted installation is taken up again.
$(READY): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python cannot make virtual environments: install its venv package" >&2; exit 1; }
	$(INSTALL) || { echo "once more, in case the network hiccuped" >&2; $(INSTALL); }
	@touch $@

model: $(READY)  ## fetch and convert the demo model (once, about 93 MB)
	$(PY) -m swarm fetch demo

tools:  ## see to curl and a Chromium, which tests need (Debian's, as root or by sudo)
	@.ci/tools

demo: $(READY)  ## three servers on this machine answer a prompt together
	$(PY) -m swarm demo

# One compute thread per process: three servers on few cores would fight, and results stay comparable.
test: export OMP_NUM_THREADS ?= 1
# Else each of hundreds of processes compiles our modules anew.
test: export PYTHONDONTWRITEBYTECODE :=
test: model tools  ## run the tests (ARGS="-k name" passes options to pytest)
	$(PY) -m pytest -n $(WORKERS) $(SIDE_BY_SIDE) $(WAITING) tests/swarm tests/unit $(ARGS) $(MAYBE_NONE)
	$(PY) -m pytest -n $(NETWORK_WORKERS) $(SIDE_BY_SIDE) --durations 25 $(LONGEST) tests/network --ignore $(WAITING) $(ARGS) $(MAYBE_NONE)
	$(PY) -m pytest -n 2 $(SIDE_BY_SIDE) tests/browser $(ARGS) $(MAYBE_NONE)

lint: $(READY)  ## check style, types, who imports whom, and the container file
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(CHECKED:%=-p %)
	$(VENV)/bin/lint-imports --no-logo --no-cache
	@$(VENV)/bin/hadolint --version > /dev/null || { echo "hadolint does not run on this platform: lint on Linux or macOS" >&2; exit 1; }
	$(VENV)/bin/hadolint packaging/container/Containerfile

format: $(READY)  ## format the code and mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove .venv and everything that was generated here (the demo model stays in its cache)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find swarm tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
