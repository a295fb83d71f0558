# make demo and make test do all their own set-up; nothing else is needed first.
.PHONY: demo test test-crash test-seeded test-drills check bench proto setup clean help
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

test-crash: setup ## power cuts on mounted file systems (needs root), and many more crash histories; 20 minutes
	@POWER_CUTS=200 CRASH_HISTORIES=20000 SHORT_WORKLOADS=3 $(PY) -m pytest -s tests/crash tests/model/test_crash_model.py

test-seeded: setup ## whether the tests find the defects kept in tests/seeded
	@$(PY) -m tests.seeded.run

test-drills: setup ## every failover drill with 20 seeds, figures in tests/cluster/RESULTS.md; 5 hours
	@$(PY) -m tests.cluster.run_drills

check: setup ## format, lint, types, layers, generated code
	@scripts/check

bench: setup ## the benchmarks, results in bench/RESULTS.md
	@$(PY) -m penstock.cli bench

proto: setup ## write the generated protobuf code again
	@scripts/generate-proto

clean: ## remove the environment, caches and the demo's directory
	@rm -rf .venv .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
