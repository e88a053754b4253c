# Plain `make` lists the targets. Every set-up step runs once: its result is a stamp file in .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CARGO ?= cargo
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# What tests and tools need.
READY := $(STAMPS)/installed $(STAMPS)/built
JARS := .cache/jars
SERVERS := .cache/servers
BENCH := .bench
BENCH_PROFILE ?= release
BENCH_ARGS ?=

# One profile (dev), one target folder and the same flags for `cargo test` and `maturin develop`, so that
# DataFusion is compiled once. abi3 needs no interpreter to build against; see Cargo.toml.
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find src -name '*.rs' 2>/dev/null)

.PHONY: help audit differential differential-planted setup demo docs fetch browser test test-rust test-fast test-python test-times test-shuffled test-cpus coverage test-servers test-faults test-leaks test-long test-signals test-ballista wheel test-wheel prove slt lint bench bench-micro bench-paired bench-epochs bench-rows bench-packing bench-windows bench-stages bench-iceberg bench-delta bench-scale bench-staging bench-storage bench-device stubtest golden iceberg-fixtures delta-fixtures delta-judge fixtures fuzz fuzz-collections miri races clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv, install what is needed, build the Rust core

$(STAMPS)/checked:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found. Install Python 3.11 or later, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; Python 3.11 or later is needed. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $(CARGO) >/dev/null || { echo "make: $(CARGO) not found. Install Rust from https://rustup.rs and open a new shell" >&2; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: $(PYTHON) has no pip. Install it: apt install python3-pip, or $(PYTHON) -m ensurepip" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot create virtual environments. Install its venv module: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# The demo needs a tenth of the packages that the tests need.
$(STAMPS)/demo: requirements-demo.txt | $(STAMPS)/checked
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23.1"
	$(BIN)/python -m pip install --quiet -r requirements-demo.txt
	@touch $@

$(STAMPS)/installed: requirements-dev.txt $(STAMPS)/demo
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(STAMPS)/built: $(STAMPS)/demo pyproject.toml $(RUST_SOURCES)
	@echo "Building the Rust core (the first time takes some minutes)"
	$(BIN)/maturin develop --profile dev
	@touch $@

.demo/complete: $(STAMPS)/demo sql-examples/flights.py
	$(BIN)/python sql-examples/flights.py .demo

demo: $(STAMPS)/built .demo/complete ## Train a small model on 336,776 real flights
	$(BIN)/python sql-examples/demo.py

docs: $(STAMPS)/installed ## Build the documentation site in .site; a broken link or a page outside the navigation is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open .site/index.html, or read it as it changes: $(BIN)/python -m mkdocs serve"

fetch: $(STAMPS)/installed .demo/complete test-servers browser ## Fetch everything that the tests need besides the Rust core

test: test-rust test-python ## Run every test, Rust and Python

test-rust: ## Run the Rust tests; they need no Python
	@command -v $(CARGO) >/dev/null || { echo "make: $(CARGO) not found. Install Rust from https://rustup.rs and open a new shell" >&2; exit 1; }
	$(CARGO) test --locked

# These tests wait a third of the time, so three processes keep two cores busy. Parallel tests start servers
# of their own; `make test-python TEST_PROCESSES=0` runs all of them in one process.
TEST_PROCESSES ?= 3

test-fast: $(READY) .demo/complete ## Run the Python tests without the markers `servers` and `slow` in TEST_PROCESSES (3)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal -m "not servers and not slow"

test-python: $(READY) .demo/complete test-servers ## Run the Python tests and doctests in TEST_PROCESSES (3), and check the stubs
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal
	$(MAKE) --no-print-directory stubtest

test-times: $(READY) .demo/complete test-servers ## Run the Python tests, and write into tests/README.md where their time goes
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal --junitxml=.venv/times.xml
	$(BIN)/python tests/times.py .venv/times.xml

test-shuffled: $(READY) .demo/complete test-servers ## Run the Python tests in another order (SEED=1; not part of `make test`)
	TENSORQUERY_TEST_ORDER=$(or $(SEED),1) $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

test-cpus: $(READY) .demo/complete test-servers ## Run the Python tests as on a machine of CPUS=16 processors (Linux; not part of `make test`)
	@command -v cc >/dev/null || { echo "make: cc not found. Install a C compiler, which builds what pretends the processors: apt install gcc" >&2; exit 1; }
	@mkdir -p .cache && cc -shared -fPIC -O1 -Wall -Wextra -o .cache/pretended_cpus.so tests/pretended_cpus.c
	PRETENDED_CPUS=$(or $(CPUS),16) LD_PRELOAD=$(abspath .cache/pretended_cpus.so) $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

coverage: $(READY) .demo/complete test-servers ## Measure which lines of src and python the tests run (an hour; not part of `make test`)
	$(BIN)/python -m pip install --quiet "pytest-cov==7.1.0" "coverage==7.17.5"
	$(BIN)/python tests/measure_coverage.py --numprocesses $(TEST_PROCESSES) --dist worksteal

test-servers: $(JARS)/rest/complete $(JARS)/hive/complete $(SERVERS)/minio/complete $(SERVERS)/fake-gcs/complete $(SERVERS)/azurite/complete ## Fetch and build the catalogs and stores that the Python tests start (minutes, once)

# Tests draw the notebook in a browser, and are skipped without one. Only its packager knows all the libraries that it
# needs, so it comes from there.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

browser: ## Install Chromium by apt; tests draw the notebook in it
	@command -v $(BROWSERS) >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update --quiet=2 && apt-get install --quiet=2 --no-install-recommends --yes chromium fonts-dejavu-core; } \
	  || echo "make: Chromium not found and not installed, so the tests that draw the notebook will be skipped. Install it: apt install chromium" >&2

test-faults: $(READY) test-servers ## Try every fault of a store on every format, with several seeds (some minutes)
	TENSORQUERY_LONG=1 $(BIN)/python -m pytest tests/python/storage/test_faults.py tests/python/delta/test_delta_faults.py

test-long: $(READY) .demo/complete test-servers ## Run the tests that `make test` runs in part, with all of their cases, seeds, topologies and ways to start workers (an hour)
	TENSORQUERY_LONG=1 $(CARGO) test --locked
	TENSORQUERY_LONG=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal $$({ grep -rl "^from effort import" tests/python --include=test_*.py; sed -n 's,^[0-9]* \([^ ]*\) .*,tests/\1,p' tests/python/in_part.txt; } | sort -u)

HOURS ?= 1

prove: $(READY) test-servers ## Prove exactly-once delivery under injected faults for HOURS=1, and write the record into docs/proof.md (see tests/faults)
	$(BIN)/python -m tests.faults --hours $(HOURS) --planted --resumes 100 --record tests/faults/record.json
	$(BIN)/python -m tests.faults --show

# A package whose core has the client, in a folder of its own, so that `make test` keeps its core. Crates below DataFusion
# have other features then, and are compiled beside the others.
BALLISTA := .cache/ballista
BALLISTA_VERSION := 53.0.0

# A seed replays one case: python tests/python/helpers/differential.py --replay 17
WRITERS := .cache/writers
DIFFERENTIAL := $(READY) $(WRITERS)/parquet-go/writer $(WRITERS)/parquet-java/complete

differential: $(DIFFERENTIAL) ## Compare random queries over every format and writer with three judges (QUERIES=5000 SEED=0; some ten minutes)
	$(BIN)/python tests/python/helpers/differential.py --queries $(or $(QUERIES),5000) --seed $(or $(SEED),0) --record tests/fixtures/differential.json

differential-planted: $(DIFFERENTIAL) ## Plant three faults, each of which `make differential` must find within 500 queries
	$(BIN)/python tests/python/helpers/differential.py --planted --seed $(or $(SEED),0)

# Kept by `make clean`. The other writers come with `make setup`.
$(WRITERS)/parquet-go/writer: $(wildcard tests/python/helpers/writers/parquet-go/*)
	@command -v go >/dev/null || { echo "make: go not found. Install Go, 1.24 or later, for parquet-go, which writes files for \`make differential\`: https://go.dev/doc/install" >&2; exit 1; }
	cd tests/python/helpers/writers/parquet-go && go build -buildvcs=false -ldflags="-s -w" -o $(abspath $@) .

$(WRITERS)/parquet-java/complete: tests/python/helpers/writers/parquet-java/pom.xml
	@command -v javac >/dev/null || { echo "make: javac not found. Install a JDK, 17 or later, for parquet-java, which writes files for \`make differential\`: apt install openjdk-17-jdk-headless" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "make: mvn not found. Install Maven, which fetches parquet-java: apt install maven" >&2; exit 1; }
	@rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	@touch $@

# Our own files run in `make test`; DIR names a folder of others. SLT_ARGS="--seed 1 --without-loaders", see tests/slt.
slt: $(READY) ## Compare a folder of sqllogictest files with a judge (DIR=folder QUERIES=0: all of each file; see tests/slt)
	@[ -n "$(DIR)" ] || { echo "make: name the folder of a suite: make slt DIR=path/to/sqllogictest/test" >&2; exit 1; }
	$(BIN)/python -m tests.slt $(DIR) --queries $(or $(QUERIES),0) $(SLT_ARGS)

test-leaks: $(READY) ## Read 1,000 epochs, make 200 loaders, and look for leaks (some minutes)
	TENSORQUERY_LONG=1 $(BIN)/python -m pytest tests/python/loading/test_leaks.py

test-signals: $(READY) ## Raise in a signal's handler, thousands of times at random instants, and resume (some minutes)
	TENSORQUERY_LONG=1 $(BIN)/python -m pytest tests/python/loading/test_signals.py

audit: $(STAMPS)/installed ## Check licences and sources of all dependencies, and known vulnerabilities if a database can be reached
	$(BIN)/python tests/audit.py

test-ballista: $(READY) test-servers $(BALLISTA)/complete ## Test stages computed by a cluster of two Ballista executors (compiles DataFusion twice more; not part of `make test`)
	$(CARGO) test --locked --lib --features ballista -- ballista engine
	PYO3_PYTHON=$(abspath $(BIN)/python) $(CARGO) build --locked --lib --features python,ballista
	@rm -rf $(BALLISTA)/python && mkdir -p $(BALLISTA)/python
	(cd python && find tensorquery -name '*.py' | tar -cf - -T - | tar -xf - -C $(abspath $(BALLISTA))/python)
	cp $${CARGO_TARGET_DIR:-target}/debug/libtensorquery.so $(BALLISTA)/python/tensorquery/_core.abi3.so
	PYTHONPATH=$(BALLISTA)/python $(BIN)/python -m pytest tests/ballista

# Stock scheduler and executor; with little optimisation they compile in half the time.
$(BALLISTA)/complete:
	@command -v $(CARGO) >/dev/null || { echo "make: $(CARGO) not found. Install Rust from https://rustup.rs and open a new shell" >&2; exit 1; }
	@echo "Building Ballista $(BALLISTA_VERSION) (many minutes, once)"
	for program in scheduler executor; do \
	  CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$(abspath $(BALLISTA))/target-programs $(CARGO) install --locked --debug --root $(BALLISTA) \
	    --no-default-features --features build-binary ballista-$$program@$(BALLISTA_VERSION); \
	done
	@touch $@

# The wheel that users install; a release is built with WHEEL_PROFILE=wheel, and with --pgo besides.
WHEEL_PROFILE ?= dev
PYTHONS ?= $(BIN)/python

wheel: $(STAMPS)/installed ## Build the wheel in .wheels (WHEEL_PROFILE=wheel: half an hour)
	rm -rf .wheels
	$(BIN)/maturin build --profile $(WHEEL_PROFILE) --locked --out .wheels

test-wheel: wheel .demo/complete ## Try the wheel in clean environments, with torch 2.2 and the latest (fetches gigabytes; PYTHONS="python3.11 python3.12"; not part of `make test`)
	PYTHONS="$(PYTHONS)" $(BIN)/python -m pytest tests/wheel

# Kept by `make clean`: each changes with its pom.xml, go.mod or package-lock.json only.
$(JARS)/%/complete: tests/python/helpers/servers/%/pom.xml
	@command -v javac >/dev/null || { echo "make: javac not found. Install a JDK, 17 or later, for the catalogs that the tests start: apt install openjdk-17-jdk-headless" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "make: mvn not found. Install Maven, which fetches the catalogs that the tests start: apt install maven" >&2; exit 1; }
	@echo "Fetching the jars of tests/python/helpers/servers/$*"
	@rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	@touch $@

$(SERVERS)/%/complete: tests/python/helpers/servers/%/go.mod tests/python/helpers/servers/%/go.sum
	@command -v go >/dev/null || { echo "make: go not found. Install Go, 1.26 or later, which builds the S3 and Google stores that the tests start: https://go.dev/doc/install" >&2; exit 1; }
	@echo "Building the server of tests/python/helpers/servers/$* (some minutes)"
	@rm -rf $(@D)
	cd $(<D) && GOBIN=$(abspath $(@D)) go install -buildvcs=false -ldflags="-s -w" tool
	@touch $@

$(SERVERS)/%/complete: tests/python/helpers/servers/%/package.json tests/python/helpers/servers/%/package-lock.json
	@command -v npm >/dev/null || { echo "make: npm not found. Install Node.js, 20 or later, for the Azure store that the tests start: apt install nodejs npm" >&2; exit 1; }
	@echo "Fetching the server of tests/python/helpers/servers/$*"
	@rm -rf $(@D) && mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# cargo-fuzz compiles everything once more, with counters in it (about as long as the first `make setup`). Without a sanitizer it
# does so with the stable compiler; the targets' allocator has its own limit.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(notdir $(basename $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ_FLAGS := -timeout=30 -rss_limit_mb=4096 -print_final_stats=1
# Their inputs are choices, of which few are enough.
FUZZ_CHOICES := delta_log iceberg_manifests iceberg_metadata ipc orc_footers puffin rest_answers
COLLECTIONS := .cache/collections

fuzz: $(STAMPS)/installed ## Fuzz each of FUZZ_TARGETS for FUZZ_SECONDS (60); compiles DataFusion once more; see fuzz/README.md
	@command -v cargo-fuzz >/dev/null || { echo "make: cargo-fuzz not found. Install it: cargo install cargo-fuzz --locked" >&2; exit 1; }
	$(BIN)/python fuzz/corpora.py $(wildcard $(COLLECTIONS)/*)
	for target in $(FUZZ_TARGETS); do \
	  dictionary=fuzz/dictionaries/$${target/#filter/sql}.dict; \
	  case " $(FUZZ_CHOICES) " in *" $$target "*) lengths="-max_len=64 -len_control=0";; *) lengths=;; esac; \
	  $(CARGO) fuzz run --dev --sanitizer none $$target -- $(FUZZ_FLAGS) $$lengths -max_total_time=$(FUZZ_SECONDS) $$([ ! -e $$dictionary ] || echo -dict=$$dictionary); \
	done

fuzz-collections: $(COLLECTIONS)/parquet-testing $(COLLECTIONS)/arrow-testing ## Fetch public collections of files, good and bad, that `make fuzz` starts from

$(COLLECTIONS)/%:
	git clone --quiet --depth 1 https://github.com/apache/$* $@

miri: ## Run the modules with unsafe code under Miri (needs rustup, which fetches a nightly compiler)
	@command -v rustup >/dev/null || { echo "make: rustup not found. Install it from https://rustup.rs" >&2; exit 1; }
	rustup toolchain install nightly --profile minimal --component miri --component rust-src
	$(MIRI)

# The standard library is compiled with the sanitizer, too; it would not see the library's synchronisation otherwise.
races: ## Run the runtime, the queues and shared state under ThreadSanitizer (needs rustup, which fetches a nightly compiler)
	@command -v rustup >/dev/null || { echo "make: rustup not found. Install it from https://rustup.rs" >&2; exit 1; }
	rustup toolchain install nightly --profile minimal --component rust-src
	CARGO_TARGET_DIR=$(abspath .cache/races) RUSTFLAGS=-Zsanitizer=thread $(CARGO) +nightly test --locked --package tensorquery-races \
	  -Zbuild-std --target $$(rustc -vV | sed -n 's/^host: //p')

MIRI := MIRIFLAGS=-Zmiri-permissive-provenance $(CARGO) +nightly miri test --locked --package tensorquery-miri -- --skip sharding::

CLIPPY := RUSTC_WORKSPACE_WRAPPER=$(abspath tests/clippy.sh) $(CARGO)

lint: $(READY) ## Check format, clippy, ruff and types; warnings are errors
	$(CARGO) fmt --all --check
	PYO3_PYTHON=$(abspath $(BIN)/python) $(CLIPPY) test --locked --no-run --quiet --package tensorquery --package tensorquery-fuzz --features tensorquery/python --lib --test it --bench micro
	$(CARGO) clippy --locked --package decode-limit -- -D warnings
	@! $(CARGO) tree --locked -e features -i tokio | grep 'feature "parking_lot"' >/dev/null || { echo "make: a dependency turns on tokio's parking_lot: its locks do not survive fork, and forked workers hang. See which: $(CARGO) tree -e features -i tokio" >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

stubtest: $(READY) ## Compare _core.pyi with the built module
	$(BIN)/python -m mypy.stubtest tensorquery._core

PACKAGES := import site; print(site.getsitepackages()[0])

# The benchmark has an environment of its own for the other loaders. It sees the packages of .venv, so torch is there once.
# A loader that cannot be installed is reported as missing by the run.
$(BENCH)/venv/installed: benches/requirements.txt $(STAMPS)/installed
	$(BIN)/python -m venv $(BENCH)/venv
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" > "$$($(BENCH)/venv/bin/python -c '$(PACKAGES)')/packages-of-venv.pth"
	@grep -v '^#' $< | while read -r package; do \
		$(BENCH)/venv/bin/python -m pip install --quiet "$$package" || echo "make: could not install $$package; the benchmark will report it as missing" >&2; \
	done
	@touch $@

# The published wheel is built twice: with counters, which benches/pgo.py runs, and then by their counts, as
# `maturin build --pgo` does. Here the folders are kept, so that unchanged crates are not compiled again; the counts are made
# again if the dependencies, profiles or benches/pgo.py change. Counters go by names of functions, which depend on the profile,
# the target and the features, so both builds have the same ones. cargo does not see that counts have changed.
PGO := $(abspath $(BENCH))/pgo
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
LLVM_PROFDATA = $(shell rustc --print sysroot)/lib/rustlib/$(HOST)/bin/llvm-profdata
COUNTING = RUSTFLAGS="-Cprofile-generate=$(PGO)/raw"
BY_COUNTS = RUSTFLAGS="-Cprofile-use=$(PGO)/merged.profdata -Cllvm-args=-no-pgo-warn-mismatch"
WHEEL = $(BIN)/maturin build --profile wheel --locked --target $(HOST)
LIMIT = $(CARGO) build --release --locked --package decode-limit --target $(HOST) --message-format=json

$(PGO)/merged.profdata: benches/pgo.py Cargo.toml Cargo.lock | $(STAMPS)/installed
	@[ -x $(LLVM_PROFDATA) ] || { echo "make: llvm-profdata not found. Install it: rustup component add llvm-tools" >&2; exit 1; }
	@echo "Building the Rust core with counters in it (the first time takes half an hour)"
	@rm -rf $(PGO)/raw $(PGO)/python $(PGO)/wheel $(PGO)/core $(PGO)/limit && mkdir -p $(PGO)/python
	$(COUNTING) CARGO_TARGET_DIR=$(PGO)/counting $(WHEEL) --out $(PGO)/wheel
	$(COUNTING) CARGO_TARGET_DIR=$(PGO)/counting $(LIMIT) | $(BIN)/python benches/keep_program.py $(PGO)/decode
	$(BIN)/python -m zipfile -e $(PGO)/wheel/*.whl $(PGO)/python
	PYTHONPATH=$(PGO)/python $(BIN)/python benches/pgo.py $(PGO)/decode
	$(LLVM_PROFDATA) merge --output $@ $(PGO)/raw

# The benchmark measures that wheel, in an environment of its own; the working tree keeps its dev build. The decode limit
# is compiled by its counts, too, and with all inlining of the release profile.
$(BENCH)/release: $(BENCH)/venv/installed $(PGO)/merged.profdata pyproject.toml $(RUST_SOURCES) $(shell find python -name '*.py') $(wildcard benches/decode/Cargo.toml benches/decode/src/*.rs)
	@echo "Building the Rust core by the counts (the first time takes half an hour)"
	rm -rf $(BENCH)/wheel
	$(BY_COUNTS) CARGO_TARGET_DIR=$(PGO)/core $(WHEEL) --out $(BENCH)/wheel
	$(BENCH)/venv/bin/python -m pip install --quiet --no-deps --force-reinstall $(BENCH)/wheel/*.whl
	$(BY_COUNTS) CARGO_TARGET_DIR=$(PGO)/limit $(LIMIT) | $(BIN)/python benches/keep_program.py $(BENCH)/decode
	@rm -f $(BENCH)/dev && touch $@

# For work on the core: the dev build of `make setup`, and the limit in the same profile.
$(BENCH)/dev: $(BENCH)/venv/installed $(READY) $(wildcard benches/decode/Cargo.toml benches/decode/src/*.rs)
	$(BENCH)/venv/bin/python -m pip uninstall --quiet --yes tensorquery
	$(CARGO) build --locked --package decode-limit --message-format=json | $(BIN)/python benches/keep_program.py $(BENCH)/decode
	@rm -f $(BENCH)/release && touch $@

bench: $(BENCH)/$(BENCH_PROFILE) ## Measure against other loaders and the decode limit (an hour; BENCH_ARGS="--quick --only scan", BENCH_PROFILE=dev)
	$(BENCH)/venv/bin/python benches/loader.py --plot $(BENCH)/ratios.png $(BENCH_ARGS)

# Two release builds of the crate share their dependencies; the first time takes half an hour.
PAIRED := .bench/paired
AGAINST ?= HEAD

bench-paired: $(READY) ## Measure this checkout against another commit, in turns (AGAINST=commit BENCH_ARGS="--rounds 5")
	@mkdir -p $(PAIRED) && [ -d $(PAIRED)/source ] || git worktree add --detach $(PAIRED)/source $(AGAINST)
	git -C $(PAIRED)/source checkout --quiet --detach $$(git rev-parse $(AGAINST))
	@for build in old new; do \
	  source=.; [ $$build = new ] || source=$(PAIRED)/source; \
	  (cd $$source && PYO3_PYTHON=$(abspath $(BIN)/python) CARGO_TARGET_DIR=$(abspath $(PAIRED)/target) CARGO_PROFILE_RELEASE_LTO=off $(CARGO) build --release --locked --lib --features python) || exit 1; \
	  rm -rf $(PAIRED)/$$build && mkdir -p $(PAIRED)/$$build && (cd $$source/python && find tensorquery -name '*.py' | tar -cf - -T - | tar -xf - -C $(abspath $(PAIRED))/$$build); \
	  cp $(PAIRED)/target/release/libtensorquery.so $(PAIRED)/$$build/tensorquery/_core.abi3.so; \
	done
	$(BIN)/python benches/paired.py $(PAIRED)/old $(PAIRED)/new $(BENCH_ARGS)

bench-micro: $(STAMPS)/installed ## Count the instructions of the core's hot functions under callgrind (minutes)
	@command -v valgrind >/dev/null || { echo "make: valgrind not found. Install it: apt install valgrind; or measure by the clock: cargo bench --bench micro" >&2; exit 1; }
	@mkdir -p $(BENCH)
	$(CARGO) build $(if $(filter release,$(BENCH_PROFILE)),--release) --locked --bench micro --message-format=json | $(BIN)/python benches/keep_program.py $(BENCH)/micro
	$(BIN)/python benches/instructions.py $(BENCH)/micro

bench-epochs: $(BENCH)/$(BENCH_PROFILE) ## Measure shuffling, states and resumes (some minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/epochs.py

bench-rows: $(BENCH)/$(BENCH_PROFILE) ## Measure rows at random by number against datasets and lance (minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/rows.py $(BENCH_ARGS)

bench-packing: $(BENCH)/$(BENCH_PROFILE) ## Measure packed sequences against unpacked rows, TRL and torchtune (minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/packing.py $(BENCH_ARGS)

bench-windows: $(BENCH)/$(BENCH_PROFILE) ## Measure windows over series against plain rows and PyTorch Forecasting (minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/windows.py $(BENCH_ARGS)

bench-stages: $(BENCH)/$(BENCH_PROFILE) ## Measure staged queries against DuckDB and DataFusion (minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/stages.py $(BENCH_ARGS)

bench-iceberg: $(BENCH)/$(BENCH_PROFILE) ## Measure Iceberg tables against their plain files and other readers (status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/iceberg.py

bench-delta: $(BENCH)/$(BENCH_PROFILE) ## Measure Delta tables against their plain files and deltalake (status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/delta.py

bench-scale: $(BENCH)/$(BENCH_PROFILE) ## Measure the planning of a million splits over 1,024 ranks x 8 workers (status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/scale.py

bench-staging: $(BENCH)/$(BENCH_PROFILE) ## Measure a 10 GiB aggregate over a join under a memory limit of 1 GiB (minutes, some 40 GiB of disk; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/staging.py

bench-storage: $(BENCH)/$(BENCH_PROFILE) test-servers ## Measure an S3 store with 50 ms of latency (some minutes; status 1 where a target is missed)
	$(BENCH)/venv/bin/python benches/storage.py

bench-device: $(BENCH)/$(BENCH_PROFILE) ## Measure how batches reach a GPU (a minute; needs a GPU that torch.cuda can use)
	$(BENCH)/venv/bin/python benches/device.py

# Spark is large and only makes fixtures, which are committed: an environment of its own.
SPARK := .spark
ICEBERG_JAR := iceberg-spark-runtime-4.0_2.13-1.11.0.jar

$(SPARK)/installed: tests/fixtures/iceberg/requirements.txt
	@command -v java >/dev/null && command -v mvn >/dev/null || { echo "make: java and mvn are needed. Install them: apt install openjdk-17-jdk-headless maven" >&2; exit 1; }
	$(PYTHON) -m venv $(SPARK)
	$(SPARK)/bin/python -m pip install --quiet -r tests/fixtures/iceberg/requirements.txt
	mvn --quiet dependency:copy -Dartifact=org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0 -DoutputDirectory=$(SPARK)
	@touch $@

iceberg-fixtures: $(SPARK)/installed ## Make the Iceberg tables of the tests again with Spark
	$(SPARK)/bin/python tests/fixtures/iceberg/make_fixtures.py $(SPARK)/$(ICEBERG_JAR)

$(SPARK)/delta: $(SPARK)/installed
	mvn --quiet dependency:copy -Dartifact=io.delta:delta-spark_2.13:4.0.1 -DoutputDirectory=$(SPARK)
	mvn --quiet dependency:copy -Dartifact=io.delta:delta-storage:4.0.1 -DoutputDirectory=$(SPARK)
	@touch $@

delta-fixtures: $(SPARK)/delta ## Make the Delta tables of the tests again with Spark
	$(SPARK)/bin/python tests/fixtures/delta/make_fixtures.py $(SPARK)/delta-spark_2.13-4.0.1.jar:$(SPARK)/delta-storage-4.0.1.jar

delta-judge: ## Record what DuckDB reads in the Delta tables of the tests
	$(PYTHON) -m venv .cache/delta-judge
	.cache/delta-judge/bin/python -m pip install --quiet -r tests/fixtures/delta/requirements-judge.txt
	PYTHONPATH=tests/python/helpers .cache/delta-judge/bin/python tests/fixtures/delta/judge_duckdb.py

golden: $(READY) ## Write the golden texts anew (seconds); git shows changes of plans, orders and states
	$(BIN)/python tests/python/helpers/golden.py

# Seven writers of Parquet. Their files are committed, and the tests read those; a new version of a writer is a line in
# requirements.txt, go.mod or pom.xml and this target.
WRITERS := .cache/writers
WRITER_FILES := tests/fixtures/writers

$(WRITERS)/installed: $(WRITER_FILES)/requirements.txt | $(STAMPS)/checked
	$(PYTHON) -m venv --clear $(WRITERS)/venv
	$(WRITERS)/venv/bin/python -m pip install --quiet -r $<
	@touch $@

$(WRITERS)/jars/complete: $(WRITER_FILES)/java/pom.xml
	@command -v java >/dev/null && command -v mvn >/dev/null || { echo "make: java and mvn are needed. Install them: apt install openjdk-17-jdk-headless maven" >&2; exit 1; }
	@rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	@touch $@

fixtures: $(WRITERS)/installed $(WRITERS)/jars/complete ## Make the Parquet files of the tests again with seven writers (some minutes)
	@command -v go >/dev/null || { echo "make: go not found. Install Go, 1.26 or later: https://go.dev/doc/install" >&2; exit 1; }
	$(WRITERS)/venv/bin/python $(WRITER_FILES)/rows.py $(WRITERS)/rows.json
	for writer in pyarrow duckdb polars fastparquet arrow_rs; do $(WRITERS)/venv/bin/python $(WRITER_FILES)/write_$$writer.py $(WRITER_FILES); done
	cd $(WRITER_FILES)/go && go run . $(abspath $(WRITERS))/rows.json ../parquet-go.parquet
	java -cp '$(WRITERS)/jars/*' $(WRITER_FILES)/java/JavaWriter.java $(WRITERS)/rows.json $(WRITER_FILES)

clean: ## Remove build results, but not the compiled dependencies
	$(CARGO) clean --package tensorquery || true
	rm -rf $(VENV) $(SPARK) .site .screenshots .wheels .demo .tpch .bench .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find python -name '_core*.so' -delete
	find python tests sql-examples benches -name __pycache__ -prune -exec rm -rf {} +
