# The front door. `make demo` and `make test` set up everything they need below .venv and build/.

PYTHON ?= python3
VENV := .venv
# Not BIN: that is the folder of `make e2e CLUSTER=local BIN=DIR`.
VENV_BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More than there are processors where they are few, because tests of processes and sockets wait as long as they compute;
# no more than that, because each collects all tests and starts servers of its own, about four seconds of a processor.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 1 ? 5 : 2)))

# Container images like to set it. Each of the hundreds of processes that tests start would compile us again.
unexport PYTHONDONTWRITEBYTECODE

# None of these tests meets a certificate of the machine's authorities, and whatever speaks HTTP would begin by reading all
# of them: hundreds of processes, 30 ms each.
TRUST_NOBODY := SSL_CERT_FILE=/dev/null

.DEFAULT_GOAL := help
.PHONY: account-table help venv demo test test-long test-nightly lint lint-workflows fmt types proto proto-check crash-test fault-test stop-test attack bench compare autoscaler-test e2e upgrade-test chart-test page-test manifests wheel image sbom release-dry-run docs constraints clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.12 demo" >&2; exit 2; }
	@echo "setting up $(VENV) (once)"
	@test -x $(VENV_BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(VENV_BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	@$(VENV_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

venv: $(STAMP) ## the virtual environment

demo: $(STAMP) ## the main job on the embedded cluster: no root, no GPU, no cluster
	@$(VENV_BIN)/dra-driver demo $(ARGS)

test: $(STAMP) ## the tests (no root, no GPU, no cluster), on JOBS processors; ARGS goes to pytest
	@$(TRUST_NOBODY) $(VENV_BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

# Those of the chart and of the page have targets of their own.
LONG := HYPOTHESIS_PROFILE=thorough $(VENV_BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --ignore=tests/chart

test-long: $(STAMP) ## the long tests: crashes, faults, attacks, crowds of connections, all examples of properties; CI runs them as well
	@$(LONG) --ignore=tests/unit/controller/web -m 'long and not nightly' $(ARGS)

test-nightly: $(STAMP) ## the longest tests: searches over many cases, of which the long tests try a part; CI runs them every night
	@$(LONG) -m nightly $(ARGS)

lint: $(STAMP) proto-check ## ruff, mypy --strict (tests too), import-linter, drift of the generated stubs
	@$(VENV_BIN)/ruff check .
	@$(VENV_BIN)/ruff format --check .
	@$(VENV_BIN)/mypy
	@$(VENV_BIN)/lint-imports

build/workflows-venv/.installed: .github/requirements.txt
	@test -x build/workflows-venv/bin/python || $(PYTHON) -m venv build/workflows-venv
	@build/workflows-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .github/requirements.txt
	@touch $@

lint-workflows: build/workflows-venv/.installed ## zizmor: what in the workflows somebody could attack
	@build/workflows-venv/bin/zizmor --offline --no-progress --quiet .github

fmt: $(STAMP) ## formats the code and sorts imports
	@$(VENV_BIN)/ruff check --fix-only --quiet .
	@$(VENV_BIN)/ruff format .

types: $(STAMP) ## mypy --strict alone, tests included
	@$(VENV_BIN)/mypy

proto: $(STAMP) ## generates dra_driver/wire from proto/
	@$(VENV_BIN)/python proto/generate.py

proto-check: $(STAMP)
	@$(VENV_BIN)/python proto/generate.py --check

crash-test: $(STAMP) ## kills node agents at every durable step, and plays reboots, hangs and other faults; prints runs, kills, leaks
	@$(VENV_BIN)/python tests/crash/crash_test.py $(ARGS)

fault-test: $(STAMP) ## N (200) random fault schedules from SEED (1) on the embedded API server, also with POOLS=tainted or PREEMPTION=on; prints violations
	@$(VENV_BIN)/python tests/faults/fault_test.py --schedules $(or $(N),200) --seed $(or $(SEED),1) $(ARGS)

stop-test: $(STAMP) ## N (100) times SIGSTOP and SIGCONT of leading controllers at work; prints writes, refusals, double allocations
	@ROUNDS=$(or $(N),100) $(VENV_BIN)/python -m pytest -s tests/sim/flows/leading/test_leader_stopped.py $(ARGS)

attack: $(STAMP) ## attacks on live controllers beside honest pods; ARGS="--only NAME --seed N --nodes N", --list, --planted; POOLS=tainted
	@$(VENV_BIN)/python tests/attack/attack_test.py $(ARGS)

bench: $(STAMP) ## the benchmarks; prints a table, writes build/bench.json and .svg; ARGS="NAME --docs" renews the plots of docs/performance.md
	@$(VENV_BIN)/python tests/benchmarks/run.py $(ARGS)

compare: $(STAMP) ## the same pods with the controller and with kube-scheduler alone, on BIN=DIR of Kubernetes binaries; ARGS="--only NAME", --help
	@$(VENV_BIN)/python tests/compare/compare.py --bin "$(BIN)" $(ARGS)

autoscaler-test: $(STAMP) ## the real cluster autoscaler beside the driver: BIN=DIR of Kubernetes binaries, AUTOSCALER=FILE (docs/autoscaling.md builds it)
	@test -n "$(BIN)" -a -n "$(AUTOSCALER)" || { echo "BIN=DIR and AUTOSCALER=FILE are needed: docs/autoscaling.md says how they are built" >&2; exit 2; }
	@DRA_K8S_BIN="$(abspath $(BIN))" AUTOSCALER="$(abspath $(AUTOSCALER))" $(VENV_BIN)/python -m pytest -s -m long tests/autoscaler $(ARGS)

e2e: $(STAMP) ## the end-to-end suite; CLUSTER=embedded (default; KUBERNETES=1.37), existing (KUBECONFIG, E2E_IMAGE), local (BIN=DIR, root; GATES=default, all or names), kind
ifeq ($(CLUSTER),local)
	@PYTHONPATH=tests/e2e $(VENV_BIN)/python -m local --bin "$(BIN)" $(if $(GATES),--gates "$(GATES)") -- \
	  $(VENV_BIN)/python -m pytest -m e2e tests/e2e $(ARGS)
else ifeq ($(CLUSTER),kind)
	@deploy/kind/kind.sh all $(ARGS)
else
	@CLUSTER=$(or $(CLUSTER),embedded) KUBERNETES=$(KUBERNETES) $(VENV_BIN)/python -m pytest -m e2e tests/e2e $(ARGS)
endif

BUILT_HELM := build/helm/node_modules/.bin/helm
HELM ?= $(BUILT_HELM)

$(BUILT_HELM): deploy/helm/package.json deploy/helm/package-lock.json
	@command -v npm >/dev/null || { echo "npm is needed: it brings Helm, pinned in deploy/helm/package-lock.json" >&2; exit 2; }
	@mkdir -p build/helm && cp deploy/helm/package.json deploy/helm/package-lock.json build/helm
	@npm ci --prefix build/helm --silent --no-audit --no-fund --ignore-scripts
	@touch $@

upgrade-test: $(STAMP) ## Kubernetes is upgraded and taken back under running pods: BIN="DIR DIR…", a folder a release, oldest first; root
	@PYTHONPATH=tests/e2e $(VENV_BIN)/python -m local $(foreach dir,$(BIN),--bin "$(dir)") -- \
	  $(VENV_BIN)/python -m pytest -m e2e tests/e2e/upgrades $(ARGS)

chart-test: $(STAMP) $(HELM) ## the Helm chart: lint, every combination of values, drift; HELM=PATH takes another helm
	@HELM=$(abspath $(HELM)) $(VENV_BIN)/python -m pytest -m 'not e2e' tests/chart $(ARGS)

AXE := build/axe/node_modules/axe-core/axe.min.js

$(AXE): tests/axe/package.json tests/axe/package-lock.json
	@command -v npm >/dev/null || { echo "npm is needed: it brings axe-core, pinned in tests/axe/package-lock.json" >&2; exit 2; }
	@mkdir -p build/axe && cp tests/axe/package.json tests/axe/package-lock.json build/axe
	@npm ci --prefix build/axe --silent --no-audit --no-fund --ignore-scripts
	@touch $@

page-test: $(STAMP) $(AXE) ## the controller's page in Chromium: layouts, keyboard, links, and what axe-core finds
	@$(VENV_BIN)/python -m pytest -m long tests/unit/controller/web $(ARGS)

manifests: $(STAMP) $(HELM) ## makes deploy/manifests from the Helm chart
	@$(VENV_BIN)/python deploy/helm/make_manifests.py --helm $(HELM)

account-table: $(STAMP) ## makes the tables of accounts, tests/golden/account_tables.md; BIN is a folder with etcd and kube-apiserver
	@DRA_K8S_BIN=$(BIN) WRITE_ACCOUNT_TABLE=1 $(VENV_BIN)/python -m pytest -q tests/policies/test_account_table_real.py

wheel: $(STAMP) ## the wheel, into dist/: the driver with its manifests and examples
	@$(VENV_BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

IMAGE ?= dra-driver:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' dra_driver/__init__.py)

BUILDER ?= $(shell command -v docker || command -v podman || command -v buildah)

image: ## the container image; IMAGE=NAME:TAG, BUILDER=docker, podman or buildah; ARGS goes to its build command
	@test -n "$(BUILDER)" || { echo "docker, podman or buildah is needed to build the image" >&2; exit 2; }
	@"$(BUILDER)" build --tag "$(IMAGE)" --file deploy/Dockerfile $(ARGS) .

sbom: ## build/sbom.cdx.json: what the image holds of PyPI (CycloneDX), from deploy/requirements.txt
	@test -x build/sbom/bin/cyclonedx-py || $(PYTHON) -m venv build/sbom
	@build/sbom/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement deploy/sbom-requirements.txt
	@build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
	  --output-format JSON --output-file build/sbom.cdx.json deploy/requirements.txt
	@echo build/sbom.cdx.json

build/release-venv/.installed: deploy/release-requirements.txt
	@test -x build/release-venv/bin/python || $(PYTHON) -m venv build/release-venv
	@build/release-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/release-requirements.txt
	@touch $@

release-dry-run: $(STAMP) $(HELM) build/release-venv/.installed sbom ## what a tag publishes, into build/release, checked; TAG=vX.Y.Z, CHART_IMAGE=REGISTRY/dra-driver, SOURCE=URL
	@$(VENV_BIN)/python deploy/packaging/release.py --out build/release --helm "$(HELM)" \
	  --twine build/release-venv/bin/twine --tag "$(TAG)" --image "$(CHART_IMAGE)" --source "$(SOURCE)" --sbom build/sbom.cdx.json

COMPILE := build/pip-tools/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header

# In an environment of their own: the site's tools and the driver's libraries need not agree.
SITE_BIN := build/site-venv/bin
build/site-venv/.installed: docs/requirements.txt
	@test -x $(SITE_BIN)/python || $(PYTHON) -m venv build/site-venv
	@$(SITE_BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.txt
	@touch $@

docs: $(STAMP) build/site-venv/.installed ## the documentation site in build/site; fails on a broken link
	@$(VENV_BIN)/python docs/site.py build/site-src
	@$(SITE_BIN)/zensical build --strict --clean

constraints: ## renews the lock files: newest versions, with hashes, no addresses
	@$(PYTHON) -m venv build/pip-tools
	@build/pip-tools/bin/pip install --quiet pip-tools
	@$(COMPILE) --extra dev --extra tracing --all-build-deps --output-file constraints.txt pyproject.toml
	@$(COMPILE) --extra tracing --output-file deploy/requirements.txt pyproject.toml
	@echo hatchling | $(COMPILE) --output-file deploy/build-requirements.txt -
	@echo twine | $(COMPILE) --output-file deploy/release-requirements.txt -
	@echo cyclonedx-bom | $(COMPILE) --output-file deploy/sbom-requirements.txt -
	@echo zizmor | $(COMPILE) --output-file .github/requirements.txt -
	@echo zensical | $(COMPILE) --output-file docs/requirements.txt -

clean: ## removes what make made
	@rm -rf $(VENV) build dist
