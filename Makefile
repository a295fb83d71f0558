# make demo and make test do all their own set-up; nothing else is needed first.
.PHONY: demo demo-spark test test-long test-crash test-drills test-etcd test-hostile test-connect test-clients test-seeded test-races test-spark-full fuzz check bench bench-spark bench-peers bench-growth docs reference proto setup setup-spark constraints clean help
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Processes are started by the hundred: they keep their bytecode, also where the surroundings switch that off.
export PYTHONDONTWRITEBYTECODE :=
# Files go to the workers in the order that tests/conftest.py gives them; many wait for other processes: more than cores.
WORKERS := 5
PYTEST = $(PY) -m tests.support.kernels && $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Nearly half of the work: whole jobs in Spark, whose parts have tests of their own, drills, and models' searches.
LONG := $(wildcard tests/spark/test_jobs*.py) tests/cluster/failover/test_drills.py tests/model/test_crash_model.py \
	$(wildcard tests/model/test_election*.py)
PEERS := kafka-produce-100b kafka-produce-1k kafka-consume-100b kafka-consume-1k kafka-send-latency \
	rocketmq-waiting-senders rocketmq-waiting-senders-flush rocketmq-transactions \
	rocketmq-v2 rocketmq-v2-java rocketmq-v2-python rocketmq-v2-idle

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## make .venv with exact versions
	@scripts/setup

setup-spark: setup ## and Spark in it, which the pipelines, their tests and the checks need
	@scripts/setup --spark

demo: setup ## a sharded cluster, real data, two deaths, and the numbers agree
	@$(PY) -m penstock.cli demo --dir .demo

demo-spark: setup-spark ## flights as a stream through Spark, a death in the middle, a lake, and the totals agree
	@$(PY) -m penstock.demo.spark --dir .demo-spark

test: setup-spark ## all tests but long ones; 7 to 10 minutes on 2 cores
	@$(PYTEST) $(LONG:%=--ignore=%)

test-long: setup-spark ## whole jobs in Spark, six short drills, models of crashes and elections; 4 minutes
	@$(PYTEST) $(LONG)

test-crash: setup-spark ## power cuts on mounted file systems (needs root), and many more crash histories; 20 minutes
	@command -v mkfs.xfs >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -qq && apt-get install -y -qq xfsprogs >/dev/null; } || true
	@POWER_CUTS=200 CRASH_HISTORIES=20000 SHORT_WORKLOADS=3 $(PY) -m pytest -s tests/crash tests/model/test_crash_model.py

test-spark-full: setup-spark ## 20 kills per guarantee of the topic sink, of an archive and of a stream into files; half an hour
	@SINK_KILLS=20 $(PY) -m pytest -s tests/crash/test_topic_sink_killed.py tests/crash/test_spark_jobs_killed.py tests/spark

test-hostile: setup ## a hostile client's battery, large, on a quiet machine: stalls, memory, master; 15 minutes
	@HOSTILE=long $(PY) -m pytest -s tests/hostile

test-etcd: setup ## elections whose registers are in etcd, which is installed
	@scripts/setup --etcd
	@NO_SKIPS=1 $(PY) -m pytest tests/cluster/failover/test_etcd.py tests/unit/nameserver/test_coordinator.py

test-connect: setup-spark ## sources, sink and jobs through a Spark Connect server, and on clusters of this machine
	@NO_SKIPS=1 SINK_KILLS=1 $(PY) -m pytest tests/spark/test_elsewhere.py tests/spark/executors

test-clients: setup ## RocketMQ 5's own clients, from their registries, also over TLS and through changes of masters (LANGUAGES="python node java go rust")
	@CLIENTS="$(or $(LANGUAGES),python node java go rust)" $(PY) -m pytest -s tests/clients $(if $(ONLY),-k $(ONLY))

test-seeded: setup ## the tests find the defects kept in tests/seeded (some: PATCHES="07 08"); 12 minutes
	@$(PY) -m tests.seeded.run $(PATCHES)

test-races: export RACES := $(or $(SEED),2)
test-races: setup ## unit tests with threads that sleep where a seed has chosen (SEED=2); 15 minutes
	@$(PYTEST) -p tests.support.races $(addprefix tests/unit/,store client broker nameserver replication)

fuzz: setup ## bytes that a fuzzer finds against all decoders (MINUTES=10); what it finds new is kept
	@scripts/fuzz $(or $(MINUTES),10)

test-drills: setup ## every failover drill with 20 seeds, figures in tests/cluster/failover/RESULTS.md; 5 hours (fewer: python -m tests.cluster.failover.run_drills --help)
	@$(PY) -m tests.cluster.failover.run_drills

check: setup-spark ## format, lint, types, layers, generated code
	@scripts/check

bench: setup ## the benchmarks, results in bench/RESULTS.md
	@$(PY) -m penstock.cli bench

bench-spark: setup-spark ## stores, topics and jobs in Spark, results in bench/RESULTS.md; 25 minutes
	@$(PY) -m penstock.cli bench spark-stores-1k spark-stores-100b spark-topics-1k spark-topics-100b spark-audit

bench-peers: setup ## beside Kafka and RocketMQ, fetched with Maven and pip, ratios in bench/PEERS.md; 90 minutes
	@$(PY) -m penstock.cli bench --repeats 5 $(or $(CASES),$(PEERS))

bench-growth: setup ## curves of cost over messages, queues, clients, shards, replicas and brokers in bench/growth.html; 20 minutes (CURVES="messages=1000000,100000000")
	@$(PY) -m penstock.bench.growth $(CURVES)

docs: setup ## the documents as a site in site/; no dead link
	@scripts/setup --docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

reference: setup-spark ## write docs/reference and the chart again, from the code and bench/results.jsonl
	@$(PY) -m scripts.docs

proto: setup ## write the generated protobuf code again
	@scripts/generate-proto

constraints: setup ## choose the exact versions again, after a change of pyproject.toml
	@scripts/choose-versions

clean: ## remove the environment, caches and the demo's directory
	@rm -rf .venv .venv-docs .venv-proto site .demo .demo-spark .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
