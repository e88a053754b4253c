# Plain `make` lists the targets. Every set-up step runs once: its result is a stamp file in .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CARGO ?= cargo
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
JARS := .cache/jars

# One profile (dev), one target folder and the same flags for `cargo test` and `maturin develop`, so that
# DataFusion is compiled once. abi3 needs no interpreter to build against; see Cargo.toml.
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find src -name '*.rs' 2>/dev/null)

.PHONY: help setup demo test test-rust test-python test-servers lint bench bench-epochs bench-iceberg stubtest iceberg-fixtures clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/built ## Create .venv, install what is needed, build the Rust core

$(STAMPS)/checked:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found. Install Python 3.11 or later, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; Python 3.11 or later is needed. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $(CARGO) >/dev/null || { echo "make: $(CARGO) not found. Install Rust from https://rustup.rs and open a new shell" >&2; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: $(PYTHON) has no pip. Install it: apt install python3-pip, or $(PYTHON) -m ensurepip" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot create virtual environments. Install its venv module: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/installed: requirements-dev.txt | $(STAMPS)/checked
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23.1"
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(STAMPS)/built: $(STAMPS)/installed pyproject.toml $(RUST_SOURCES)
	@echo "Building the Rust core (the first time takes some minutes)"
	$(BIN)/maturin develop --profile dev
	@touch $@

.demo/complete: $(STAMPS)/installed sql-examples/flights.py
	$(BIN)/python sql-examples/flights.py .demo

demo: $(STAMPS)/built .demo/complete ## Train a small model on 336,776 real flights
	$(BIN)/python sql-examples/demo.py

test: test-rust test-python ## Run every test, Rust and Python

test-rust: ## Run the Rust tests; they need no Python
	@command -v $(CARGO) >/dev/null || { echo "make: $(CARGO) not found. Install Rust from https://rustup.rs and open a new shell" >&2; exit 1; }
	$(CARGO) test --locked

test-python: $(STAMPS)/built .demo/complete test-servers ## Run the Python tests and doctests, and check the stubs
	$(BIN)/python -m pytest
	$(MAKE) --no-print-directory stubtest

test-servers: $(JARS)/rest/complete $(JARS)/hive/complete ## Fetch the jars of the Iceberg catalogs that the Python tests start (125 MB)

# Kept by `make clean`: they change with their pom.xml only.
$(JARS)/%/complete: tests/python/servers/%/pom.xml
	@command -v javac >/dev/null || { echo "make: javac not found. Install a JDK, 17 or later, for the catalogs that the tests start: apt install openjdk-17-jdk-headless" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "make: mvn not found. Install Maven, which fetches the catalogs that the tests start: apt install maven" >&2; exit 1; }
	@echo "Fetching the jars of tests/python/servers/$*"
	@rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	@touch $@

lint: $(STAMPS)/built ## Check format, clippy, ruff and types; warnings are errors
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	PYO3_PYTHON=$(abspath $(BIN)/python) $(CARGO) clippy --locked --all-targets --features python -- -D warnings
	@! $(CARGO) tree --locked -e features -i tokio | grep 'feature "parking_lot"' >/dev/null || { echo "make: a dependency turns on tokio's parking_lot: its locks do not survive fork, and forked workers hang. See which: $(CARGO) tree -e features -i tokio" >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

stubtest: $(STAMPS)/built ## Compare _core.pyi with the built module
	$(BIN)/python -m mypy.stubtest tensorquery._core

bench: $(STAMPS)/built ## Measure against other loaders (some minutes; status 1 where a target is missed)
	$(BIN)/python benches/loader.py

bench-epochs: $(STAMPS)/built ## Measure shuffling, states and resumes (some minutes; status 1 where a target is missed)
	$(BIN)/python benches/epochs.py

bench-iceberg: $(STAMPS)/built ## Measure Iceberg tables against their plain files and other readers (status 1 where a target is missed)
	$(BIN)/python benches/iceberg.py

# Spark is large and only makes fixtures, which are committed: an environment of its own.
SPARK := .spark
ICEBERG_JAR := iceberg-spark-runtime-4.0_2.13-1.11.0.jar

$(SPARK)/installed: tests/fixtures/iceberg/requirements.txt
	@command -v java >/dev/null && command -v mvn >/dev/null || { echo "make: java and mvn are needed. Install them: apt install openjdk-17-jdk-headless maven" >&2; exit 1; }
	$(PYTHON) -m venv $(SPARK)
	$(SPARK)/bin/python -m pip install --quiet -r tests/fixtures/iceberg/requirements.txt
	mvn --quiet dependency:copy -Dartifact=org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0 -DoutputDirectory=$(SPARK)
	@touch $@

iceberg-fixtures: $(SPARK)/installed ## Make the Iceberg tables of the tests anew with Spark
	$(SPARK)/bin/python tests/fixtures/iceberg/make_fixtures.py $(SPARK)/$(ICEBERG_JAR)

clean: ## Remove what was built here, but not the compiled dependencies
	$(CARGO) clean --package tensorquery || true
	rm -rf $(VENV) $(SPARK) .demo .bench .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find python -name '_core*.so' -delete
	find python tests sql-examples benches -name __pycache__ -prune -exec rm -rf {} +
