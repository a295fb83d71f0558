# make demo and make test do all their own set-up; nothing else is needed first.
.PHONY: demo test check bench proto setup clean help
.DEFAULT_GOAL := help
PY := .venv/bin/python

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## make .venv with exact versions
	@scripts/setup

demo: setup ## a sharded cluster, real data, two deaths, and the numbers agree
	@$(PY) -m penstock.cli demo --dir .demo

test: setup ## all tests, at most 8 minutes on 2 cores
	@$(PY) -m pytest

check: setup ## format, lint, types, layers, generated code
	@scripts/check

bench: setup ## the benchmarks, results in bench/RESULTS.md
	@$(PY) -m penstock.cli bench

proto: setup ## write the generated protobuf code again
	@scripts/generate-proto

clean: ## remove the environment, caches and the demo's directory
	@rm -rf .venv .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
