# The front door. `make demo` and `make test` set up everything they need below .venv and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint fmt types proto proto-check crash-test bench e2e constraints clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 demo" >&2; exit 2; }
	@echo "setting up $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

venv: $(STAMP) ## the virtual environment

demo: $(STAMP) ## the main job on the embedded cluster: no root, no GPU, no cluster
	@$(BIN)/dra-driver demo $(ARGS)

test: $(STAMP) ## the tests (no root, no GPU, no cluster); ARGS goes to pytest
	@$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP) proto-check ## ruff, mypy --strict, import-linter, drift of the generated stubs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: $(STAMP) ## formats the code and sorts imports
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: $(STAMP) ## mypy --strict alone
	@$(BIN)/mypy

proto: $(STAMP) ## generates dra_driver/wire from proto/
	@$(BIN)/python proto/generate.py

proto-check: $(STAMP)
	@$(BIN)/python proto/generate.py --check

crash-test: $(STAMP) ## kills real node agents at every durable step; prints kills, runs, leaks
	@$(BIN)/python tests/crash/crash_test.py $(ARGS)

bench: $(STAMP) ## the benchmarks; writes build/bench.json and prints a table
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

e2e: $(STAMP) ## the end-to-end suite; CLUSTER=embedded (default) or existing (KUBECONFIG, E2E_IMAGE)
	@CLUSTER=$(or $(CLUSTER),embedded) $(BIN)/python -m pytest -m e2e tests/e2e $(ARGS)

COMPILE := build/pip-tools/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header

constraints: ## renews constraints.txt and deploy/requirements.txt: newest versions, with hashes, no addresses
	@$(PYTHON) -m venv build/pip-tools
	@build/pip-tools/bin/pip install --quiet pip-tools
	@$(COMPILE) --extra dev --all-build-deps --output-file constraints.txt pyproject.toml
	@$(COMPILE) --output-file deploy/requirements.txt pyproject.toml

clean: ## removes what make made
	@rm -rf $(VENV) build dist
