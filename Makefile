# Every target sets up what it needs by itself; a fresh machine needs Python 3.11 or newer and nothing else.
# `make kafka` and `make spark` also need Java 17 and Maven, `make minio` a Go toolchain: they fetch the real peers
# that tests compare with, and tests that need an absent peer skip and say so.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .peers
DATA   ?= .tidewal
LISTEN ?= 127.0.0.1:9092
ARGS   ?=
SEEDS  ?= 1000
FROM   ?= 0
MINUTES ?= 30
ROUNDS ?= 5
# One more than processors: tests of real processes wait more than they compute.
WORKERS ?= $(shell echo $$(( $$(nproc) + 1 )))

# Where the environment forbids Python to keep what it compiled, every worker and every broker of a run would compile
# all of it again; collecting the tests alone then takes 11 s of CPU in place of 4, in each worker.
COMPILED_ONCE := PYTHONDONTWRITEBYTECODE=

MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
# PySpark and its Kafka connector must be of one version.
SPARK_VERSION := 4.0.0

.PHONY: help setup run test sim mutants differential verify-stores bench bench-guard bench-growth bench-features bench-cluster bench-groups bench-idle bench-tier bench-wal bench-verify soak hostile chaos compose-test kafka minio spark verify lock conformance requests clean

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp ## the virtual environment, with everything the project needs

$(VENV)/.stamp: pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
	  for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then echo "no Python 3.11 or newer on PATH" >&2; exit 1; fi; \
	  $$found -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

run: setup ## a broker; its logs and its object store live in DATA: make run LISTEN=127.0.0.1:9092 DATA=.tidewal (ARGS="--set …" adds options)
	@exec $(BIN)/tidewal broker --listen $(LISTEN) --data $(DATA) $(ARGS)

test: setup ## every test, in parallel and in random order, with ruff, mypy and import-linter among them
	@$(COMPILED_ONCE) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

sim: setup ## many simulation seeds on every CPU, one to five brokers; goes on where it stopped: make sim SEEDS=1000 FROM=0 (ARGS="--brokers 3 --jobs 1")
	@$(COMPILED_ONCE) $(BIN)/python -m tests.sim.run --resume --seeds $(SEEDS) --from $(FROM) $(ARGS)

mutants: setup ## plant the known bugs one by one and see that each is caught: make mutants ARGS="--only ack-before-commit"
	@$(BIN)/python -m tests.mutants.run $(ARGS)

differential: SEEDS := 20
differential: setup kafka ## the same requests to Apache Kafka, by hand and 50 generated sequences a seed: SEEDS=20 FROM=0
	@$(BIN)/python -m pytest -q -p no:randomly tests/compat/test_differential.py tests/compat/test_sequences.py \
	  --differential-seeds $(SEEDS) --differential-from $(FROM) $(ARGS)

verify-stores: SEEDS := 2000
verify-stores: setup ## generated stores, verified whole and damaged; goes on where it stopped: make verify-stores SEEDS=2000 FROM=0
	@$(COMPILED_ONCE) $(BIN)/python -m tests.verify.run --seeds $(SEEDS) --from $(FROM) $(ARGS)

bench: setup ## the table: Apache Kafka (make kafka) and this broker in one run; ARGS="--rows raw-1x1,start", "--own", "--markdown FILE"
	@$(BIN)/python -m tools.versus.table $(ARGS)

bench-guard: setup ## CPU per request and per GB of this tree against another commit: make bench-guard BASE=HEAD~1
	@$(BIN)/python -m tools.versus.guard --base $(or $(BASE),HEAD) $(ARGS)

bench-growth: setup ## ready time, memory and CPU as partitions, log and connections grow (15 GB of disk, deleted at the end)
	@$(BIN)/python -m tools.versus.growth $(ARGS)

bench-features: setup ## what counters, indexes and idempotence cost a produce request, this build against itself
	@$(BIN)/python -m tools.versus.features $(ARGS)

bench-cluster: setup ## three brokers beside three nodes of Apache Kafka: starts, acks=all, kill -9, a new disk; ARGS="--kills 2", "--own"
	@$(BIN)/python -m tools.versus.cluster $(ARGS)

bench-groups: setup ## transactions, commits of offsets and rebalances beside Apache Kafka (make kafka); ARGS="--rows commits", "--own"
	@$(BIN)/python -m tools.versus.groups $(ARGS)

bench-idle: setup ## three brokers with 500 partitions in which nothing happens, beside Kafka: CPU, wakes, requests to the store; ARGS="--own --seconds 60"
	@$(BIN)/python -m tools.versus.idle $(ARGS)

bench-tier: setup ## the cold tier on a local store, on MinIO (make minio) and beside Kafka; ARGS="--rows cold", "--own", "--scale 0.1"
	@$(BIN)/python -m tools.versus.tier $(ARGS)

bench-wal: setup ## the WAL tier, off and on in turn: bytes between brokers, latency, CPU; ARGS="--store minio --rows e2e,cpu --pairs 3"
	@$(BIN)/python -m tools.versus.wal $(ARGS)

bench-verify: setup ## a proof from the bytes, by processes and by Spark (make spark), beside bare reading; ARGS="--rows large,minio --scale 0.1"
	@$(COMPILED_ONCE) $(BIN)/python -m tools.versus.verify $(ARGS)

soak: setup ## half an hour of mixed load on one broker, and what grew: make soak MINUTES=30; samples go to build/soak.jsonl
	@$(BIN)/python -m tests.soak.run --minutes $(MINUTES) $(ARGS)

hostile: setup ## the largest requests of every API, and what others see of them; goes on where it stopped; ARGS="--table", "--cluster"
	@$(COMPILED_ONCE) $(BIN)/python -m tests.hostile.run $(ARGS)

chaos: setup ## rounds of faults on real clusters, their links and their store: ROUNDS=5 FROM=0; goes on where it stopped
	@$(COMPILED_ONCE) $(BIN)/python -m pytest -q -s -p no:randomly -m chaos tests/e2e tests/links --chaos-rounds $(ROUNDS) --chaos-from $(FROM) \
	  --chaos-journal build/chaos-$$(git rev-parse --short HEAD).txt $(ARGS)

# uv, as what it writes has the hashes of every file of a version, so that one list is good for all processors.
LOCK := --python-version 3.11 --python-platform linux --generate-hashes --upgrade --quiet --custom-compile-command 'make lock'

lock: setup ## what the images install, at its newest, into requirements.lock and requirements-spark.lock, by hash
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --group image --extra bench $(LOCK) --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --group image --extra bench --extra spark $(LOCK) --constraint requirements.lock \
	  --constraint <(echo "pyspark==$(SPARK_VERSION)") --output-file requirements-spark.lock

compose-test: setup ## the compose file for real: clients, faults, nothing lost; Docker, or TIDEWAL_CONTAINERS=SCRIPT that starts an engine
	@$(BIN)/python -m tests.compose.run $(ARGS)

conformance: setup ## write CONFORMANCE.md anew from the tests' requirement marks
	@$(BIN)/python -m tools.conformance --write

requests: setup ## write protocol/requests anew from the message schemas
	@$(BIN)/python -m tools.generate_requests

kafka: $(PEERS)/kafka/.stamp ## Apache Kafka as a peer for the tests, in .peers/kafka (Java 17, Maven)

$(PEERS)/kafka/.stamp: tests/peers/pom.xml tests/peers/log4j2.xml
	@command -v java >/dev/null && command -v mvn >/dev/null || { echo "make kafka needs Java 17 and Maven" >&2; exit 1; }
	@rm -rf $(PEERS)/kafka && mkdir -p $(PEERS)/kafka/libs $(PEERS)/kafka/config
	mvn --batch-mode --quiet -f tests/peers/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory="$$PWD/$(PEERS)/kafka/libs"
	@cp tests/peers/log4j2.xml $(PEERS)/kafka/config/
	@touch $@

minio: $(PEERS)/minio/$(MINIO_VERSION) ## MinIO as a peer for the tests, in .peers/minio (Go; three minutes the first time)

$(PEERS)/minio/$(MINIO_VERSION):
	@command -v go >/dev/null || { echo "make minio needs a Go toolchain" >&2; exit 1; }
	@rm -rf $(PEERS)/minio && mkdir -p $(PEERS)/minio
	GOBIN="$$PWD/$(PEERS)/minio" CGO_ENABLED=0 go install github.com/minio/minio@$(MINIO_VERSION)
	@touch $@

verify: setup ## what `make run` left in DATA, proved from its bytes, with Spark where `make spark` was: ARGS="--html build/verify.html"
	@mkdir -p build && exec $(BIN)/tidewal verify \
	  --engine $(if $(wildcard $(VENV)/.spark-$(SPARK_VERSION)),spark,local) --store "file://$(abspath $(DATA))/store" --data "$(abspath $(DATA))" $(ARGS)

SPARK_CLASSES := $(VENV)/share/tidewal/spark-$(SPARK_VERSION).jsa
spark: $(VENV)/.spark-$(SPARK_VERSION) $(PEERS)/spark/.$(SPARK_VERSION) $(SPARK_CLASSES) ## PySpark in the environment, its Kafka connector in .peers/spark/jars (Java 17, Maven; 0.6 GB)

$(VENV)/.spark-$(SPARK_VERSION): $(VENV)/.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark]' 'pyspark==$(SPARK_VERSION)'
	@touch $@

$(SPARK_CLASSES): $(VENV)/.spark-$(SPARK_VERSION) # what its JVM loads at each start, as it is in memory
	$(BIN)/python -m tools.spark_session

$(PEERS)/spark/.$(SPARK_VERSION): tests/peers/spark/pom.xml
	@command -v java >/dev/null && command -v mvn >/dev/null || { echo "make spark needs Java 17 and Maven" >&2; exit 1; }
	@rm -rf $(PEERS)/spark && mkdir -p $(PEERS)/spark/jars
	mvn --batch-mode --quiet -f tests/peers/spark/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -Dspark.version=$(SPARK_VERSION) -DoutputDirectory="$$PWD/$(PEERS)/spark/jars"
	@touch $@

clean: ## what builds and tests leave behind (not the environment, peers or data)
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
