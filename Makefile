# The developer's tasks. Set-up happens by itself: a target that needs the virtual environment makes it,
# from the lock files, and makes it anew when they or pyproject.toml changed.
#
#   make test                                            the newest lock, Python 3.11 where there is one
#   make test ARGS="tests/steps -x"                      arguments for pytest
#   make test-slow                                       gigabytes, and hundreds of processes that are killed
#   make test VENV=.venv-3.13 PYTHON=/path/to/python3.13     another interpreter, in a directory of its own
#   make servers test                                    with what more S3 servers pip installs
#   make bench JSON=results                              one JSON file a benchmark, beside the tables
#   make lock UPGRADE=1                                  new versions; without UPGRADE only what pyproject.toml asks for

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
ARGS ?=
JSON ?=
UPGRADE ?=

# An interpreter is chosen by running it: on a machine with several, a command may exist and yet refuse to run,
# and Debian's python3 comes without the modules that make a virtual environment.
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell \
    for name in python3.11 python3 python3.14 python3.13 python3.12; do \
        echo "$$PATH" | tr ':' '\n' | while read -r folder; do \
            if [ -x "$$folder/$$name" ] && "$$folder/$$name" -c '$(SUITABLE)' 2>/dev/null; then \
                echo "$$folder/$$name"; break; \
            fi; \
        done; \
    done | head -n 1)

# Whoever names an interpreter means it: an environment that was made with another one is not used in silence.
ifneq ($(filter command environment,$(origin PYTHON)),)
ifneq ($(wildcard $(VENV)/bin/python),)
VERSION := import sys; print(sys.version)
ifneq ($(shell $(PYTHON) -c '$(VERSION)'),$(shell $(VENV)/bin/python -c '$(VERSION)'))
$(error $(VENV) was not made with $(PYTHON): name another directory with VENV=..., or remove it)
endif
endif
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
SERVERS_READY := $(VENV)/.ready-servers

# What resolves the lock files; it is no dependency of anything else, and lives in an environment of its own.
UV := .venv-lock/bin/uv
UV_VERSION := 0.13.9
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-emit-find-links --annotation-style line $(if $(UPGRADE),--upgrade)

.PHONY: help demo test test-servers test-processes test-rest test-slow test-slow-servers test-slow-rest test-exhaustive servers check bench format lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    while IFS='|' read -r target text; do printf '%-24s%s\n' "$$target" "$$text"; done

demo: $(READY) ## a session over files of this machine, one call for each kind of outcome
	@$(BIN)/coatcheck demo

# Three parts at once: two that wait for servers and processes most of their time, and all the rest.
SERVERS := tests/s3
PROCESSES := tests/service tests/deploy tests/cli tests/readers tests/test_benchmarks.py

test: $(READY) ## run the suite (ARGS="..." for pytest, PYTHON=... VENV=... for another interpreter)
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory --jobs 3 --keep-going test-servers test-processes test-rest
else
	$(BIN)/python -m pytest $(ARGS)
endif

test-servers:
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/servers $(SERVERS)

test-processes:
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/processes $(PROCESSES)

test-rest:
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/rest $(patsubst %,--ignore=%,$(SERVERS) $(PROCESSES))

test-slow: $(READY) ## run what the suite leaves out because it takes long (ARGS="..." for pytest)
ifeq ($(strip $(ARGS)),)
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-slow-servers test-slow-rest
else
	$(BIN)/python -m pytest -m "slow and not exhaustive" $(ARGS)
endif

test-slow-servers:
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/servers -m "slow and not exhaustive" $(SERVERS)

test-slow-rest:
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/rest -m "slow and not exhaustive" $(SERVERS:%=--ignore=%)

test-exhaustive: $(READY) ## run what takes half an hour: every step and request of the S3 store is failed and cancelled
	$(BIN)/python -m pytest -m exhaustive $(ARGS)

servers: $(SERVERS_READY) ## install more S3 servers for the tests, which run on those they find

# Pyright comes with its program and with Node.js from the lock; the variable keeps it from looking for a newer one.
# To verify a package it asks the first `python` on the path where that package is installed.
check: $(READY) ## format, lint, types, public types, and which room imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright --verifytypes coatcheck --ignoreexternal
	$(BIN)/lint-imports

bench: $(BENCH_READY) ## run every benchmark (JSON=DIR writes one file each)
	@set -e; for file in benchmarks/[!_]*.py; do \
	    $(BIN)/python "$$file" $(if $(JSON),--json "$(JSON)/$$(basename "$$file" .py).json"); echo; \
	done

format: $(READY) ## format, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(UV) ## resolve the lock files (UPGRADE=1 for new versions)
	$(COMPILE) --extra cli --extra http --extra jwt --extra readers --extra s3 --extra sql --group dev pyproject.toml --output-file requirements.lock
	$(COMPILE) --group build --constraint requirements.lock --output-file requirements-build.lock
	$(COMPILE) --group servers --constraint requirements.lock --output-file requirements-servers.lock
	$(COMPILE) --extra bench --constraint requirements.lock pyproject.toml --output-file requirements-bench.lock

clean: ## remove caches and builds (a virtual environment stays: remove its directory)
	rm -rf build dist .hypothesis .*_cache
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backends first: what comes as source, this project included, is built with locked versions, too.
$(READY): requirements.lock requirements-build.lock pyproject.toml
	@$(BIN)/python -c '$(SUITABLE)' 2>/dev/null || { \
	    python='$(PYTHON)'; \
	    if [ -z "$$python" ]; then \
	        echo 'coatcheck needs CPython 3.11 or newer with its venv module, and found none.' >&2; \
	        echo 'On Debian: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3.11' >&2; \
	        exit 1; \
	    fi; \
	    echo "making $(VENV) with $$python"; \
	    "$$python" -m venv --clear $(VENV); \
	}
	@echo 'installing what requirements.lock names into $(VENV)'
	@$(PIP) install --require-hashes --requirement requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_READY): requirements-bench.lock $(READY)
	@echo 'installing what requirements-bench.lock names into $(VENV)'
	@$(PIP) install --require-hashes --no-build-isolation --requirement requirements-bench.lock
	@touch $@

$(SERVERS_READY): requirements-servers.lock $(READY)
	@echo 'installing what requirements-servers.lock names into $(VENV)'
	@$(PIP) install --require-hashes --requirement requirements-servers.lock
	@touch $@

$(UV): Makefile
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check --no-input -qq install uv==$(UV_VERSION)
	@touch $@
