# `make demo` and `make test` are all that a newcomer needs; each sets up what it uses, once.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The interpreter that the virtual environment is made with; without a fitting one 3.11 to 3.13 are looked for.
PYTHON ?= python3
VENV ?= .venv
# More arguments for pytest, the demo or the benchmarks: make test ARGS='-k wire -x'
ARGS ?=
IMAGE ?= tensorgate
export PYTHON VENV

BIN := $(VENV)/bin
SOURCES := gateway registry backends tests benchmarks examples scripts

.PHONY: help setup setup-demo setup-dev demo test check format bench constraints image clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: ## make the virtual environment and install the server with its ONNX backend
	@scripts/setup.sh run

setup-demo: # the same, and the backends of torch and TensorFlow
	@scripts/setup.sh demo

setup-dev: # all of it, and the tools for tests and checks
	@scripts/setup.sh dev

demo: setup-demo ## a tour on real models; leaves the server up
	@exec $(BIN)/tensorgate demo $(ARGS)

test: check ## check, then run every test
	@echo '== programs for tests'
	@scripts/system_packages.sh
	@if found="$$(PYTHON=$(BIN)/python scripts/perf_analyzer.sh .cache/perf_analyzer)"; then \
	  export PERF_ANALYZER="$$found"; \
	else \
	  echo 'without it: the test that drives it skips'; \
	fi; \
	echo '== pytest'; \
	$(BIN)/python -m pytest $(ARGS)

check: setup-dev ## style, types, import contracts and size budgets
	@echo '== ruff'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@echo '== mypy'
	@$(BIN)/mypy $(SOURCES)
	@echo '== lint-imports'
	@$(BIN)/lint-imports
	@echo '== sizes'
	@$(BIN)/python scripts/size_report.py

format: setup-dev ## rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: setup-dev ## measure beside other servers; see benchmarks/README.md
	@$(BIN)/python -m benchmarks $(ARGS)

constraints: setup-dev ## take the newest versions of everything into constraints.txt
	@$(BIN)/python scripts/pin.py

image: ## build the container image
	@command -v docker >/dev/null || { echo 'make image needs docker' >&2; exit 1; }
	docker build --tag $(IMAGE) .

clean: ## remove the virtual environment, caches and builds
	@echo 'removing $(VENV), caches and builds'
	@rm -rf $(VENV) .cache .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
