# One command each, from a fresh clone. `PYTHON=python3.13 VENV=.venv313 make test` tests another Python.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is pinned to a release without a wheel for newer Pythons: there, what needs it is left out.
HAS_TORCH := $(shell $(PYTHON) -c 'import sys; print(int(sys.version_info[:2] == (3, 11)))')
comma := ,
ALL_EXTRAS := bucket,clients,dev,gate$(if $(filter 1,$(HAS_TORCH)),$(comma)examples)

# `make bench BENCH="--only range-16 --rounds 5"` hands words on.
BENCH ?=

.PHONY: install install-all test test-python test-tools soak fuzz frameworks audit lock chart-readme bench bench-ahead bench-tools demo demo-short bench-cluster cluster-demo papers lint clean

# What a first change needs: lint, and the tests of tests/unit, tests/engine and tests/contract. The gate needs all.
install: $(VENV)/installed
install-all: $(VENV)/installed-all

# `--no-compile` halves the time of it: Python compiles what is imported, when it is. Not `--quiet`: it takes minutes, and
# what pip says meanwhile is the progress.
PIP := $(BIN)/python -m pip install --no-compile
ENVIRONMENT = test -x $(BIN)/python || { $(PYTHON) -m venv $(VENV) && $(PIP) --upgrade pip; }
SIZE = echo "$(VENV) takes $$(du -sm $(VENV) | cut -f1) MB."

$(VENV)/installed: pyproject.toml sdk/pyproject.toml
	@echo "Installing the proxy and the tools of a first change into $(VENV): 1 GB, a minute or more."
	$(ENVIRONMENT)
	$(PIP) --editable ".[bucket,dev]" --editable sdk
	@$(SIZE)
	@touch $@

$(VENV)/installed-all: pyproject.toml sdk/pyproject.toml tests/clients/no-deps.txt
	@echo "Installing all that demo and tests need into $(VENV): 2.5 GB with a CPU build of torch, more with CUDA; minutes."
	$(ENVIRONMENT)
	$(PIP) --editable ".[$(ALL_EXTRAS)]" --editable sdk
	$(PIP) --no-deps --requirement tests/clients/no-deps.txt
	@$(SIZE)
	@touch $(VENV)/installed $@

# `make test PYTEST="-x tests/engine"` hands words on. JOBS processes share the files out, each with an S3 server of its
# own. Files that took long in earlier runs go first (tests/conftest.py), so that all end together. Three of them on two
# cores: a quarter of the time of each is waiting. `JOBS=0`: all in one process.
PYTEST ?=
JOBS ?= 3
RUN_TESTS = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
test: install-all
	$(RUN_TESTS) $(PYTEST)

# What another Python may change: `make test-python PYTHON=python3.13 VENV=.venv313`. That is sockets, TLS, files, threads
# and processes (the adapters), tasks and their cancellation, dates, XML, escapes and JSON, what reads annotations at run
# time, and the draws of `random`. A promise that several files show is shown by one of them here. What no Python changes
# is left out: arithmetic, what the engine decides, what botocore reads, chart, pages, image, and the clients, which talk
# to the proxy over a socket. So are the longest tests, and most of the examples of a property;
# `make test PYTHON=... VENV=...` runs all.
PYTHON_TESTS := \
	$(addprefix tests/contract/test_,block_reads.py block_store.py block_store_restarts.py connections.py forward_proxy.py \
	kube_api.py member_source.py odd_heads.py origin.py peer_transport.py receivers.py receiving_threads.py \
	sealed_file.py wrong_clock.py) \
	$(addprefix tests/engine/,tasks cluster/test_cancelled_reads.py \
	$(addprefix fill/test_,flight.py flight_table.py patience.py)) \
	$(addprefix tests/unit/,$(addprefix adapters/,cluster $(addprefix test_,aws_config.py bulk_reply.py cpu_clock.py \
	idle_connections.py listening.py pin_file.py system.py webhook_certificates.py)) \
	$(addprefix http/test_,acceptor.py disk_readers.py \
	presigned_url_memo.py webhook_answers.py webhook_tls.py) sdk \
	$(addprefix test_,memo.py pagecache.py rows.py settings.py) \
	$(addprefix s3/test_,batch.py conditions.py list_page.py operation.py) \
	ahead/order/test_webdataset_draws.py)
test-python: install
	OUTRIDER_TEST_EXAMPLES=20 $(RUN_TESTS) -m "not one_python" $(PYTHON_TESTS)

# The proxy with each of its requirements at its lower bound, in an environment of its own: it starts, reads the bucket,
# answers over HTTP and from its command line, and the extras' libraries do what is asked of them.
LOWEST := $(VENV)/lowest
.PHONY: test-lowest
test-lowest: $(LOWEST)/installed
	$(LOWEST)/bin/python -m pytest -p no:cacheprovider -m lowest

# boto3 as old as the botocore that aiobotocore chose: pip would try each of them, from the newest one down.
$(LOWEST)/installed: $(VENV)/installed tests/support/lowest_versions.py
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m tests.support.lowest_versions > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-compile --constraint $(LOWEST)/constraints.txt \
		--editable ".[kubernetes,operator,slurm,tracing]"
	$(LOWEST)/bin/python -m pip install --quiet --no-compile --constraint $(LOWEST)/constraints.txt \
		--editable ".[bucket]" "boto3<=$$($(LOWEST)/bin/python -c 'import botocore; print(botocore.__version__)')" \
		hypothesis opentelemetry-proto pytest pytest-asyncio pytest-timeout trustme
	touch $@

# What some tests drive; without them these tests are skipped. On Debian and its kin, as root, what is missing of them;
# anywhere else it says so, and nothing fails.
test-tools:
	@$(PYTHON) -m tests.support.system_programs test

# The tests of trust, SOAK times longer, the tests whose full size is not in `make test`, and the table of what was tried;
# `make soak SOAK=5 TESTS=tests/trust/test_sigkill_and_power_loss.py`.
# Native tracebacks: pytest's own are parsed anew, at which Python 3.11 may fail beside running threads ("AST constructor
# recursion depth mismatch"), and one failure would end it all without a table.
SOAK ?= 30
TESTS ?= -m soak
soak: install-all
	OUTRIDER_TEST_SCALE=$(SOAK) $(BIN)/python -m pytest --timeout 14400 --tb native $(TESTS)

# Coverage-guided fuzzing of all that reads bytes of strangers: `make fuzz FUZZ="--seconds 3600 --only form"`.
FUZZ ?=
fuzz: install-all
	$(BIN)/python -m tests.fuzz $(FUZZ)

# Asks the advisory database of PyPI about what requirements.lock names; without a network it says so, and fails.
audit: $(VENV)/tools/installed
	$(VENV)/tools/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

# What the image installs, and what it builds the wheel with: see the Dockerfile.
LOCKED := uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command "make lock"
lock: $(VENV)/tools/installed
	$(VENV)/tools/bin/$(LOCKED) --extra kubernetes --extra operator --extra tracing --output-file requirements.lock pyproject.toml
	echo 'hatchling>=1.27' | $(VENV)/tools/bin/$(LOCKED) --output-file requirements-build.lock -

# The code of docs/frameworks.md, with each framework in an environment of its own below .venv-frameworks: gigabytes, and
# half an hour the first time. `make frameworks FRAMEWORKS="polars or duckdb"` runs these alone.
FRAMEWORKS ?=
frameworks: install-all
	$(BIN)/python -m pytest tests/frameworks/each_framework.py $(if $(FRAMEWORKS),-k "$(FRAMEWORKS)")

# The image, by the first of these builders that works here; `make image IMAGE=registry.example.org/outrider:0.2.0`.
# BUILDAH_FORMAT is for podman and buildah: their own format has no health check.
BUILDER ?= $(shell for tool in docker podman buildah; do $$tool info >/dev/null 2>&1 && echo $$tool && break; done)
IMAGE ?= outrider
.PHONY: image
image:
	@builder="$(BUILDER)"; test -n "$$builder" || { echo "no builder here: install docker, podman or buildah" >&2; exit 1; }; \
	set -x; BUILDAH_FORMAT=docker $$builder build --tag $(IMAGE) .

# The table of values in charts/outrider/README.md.
chart-readme: install
	$(BIN)/python -m tests.support.chart readme

# Apart from the rest: these tools bring requirements of their own.
$(VENV)/tools/installed: $(VENV)/installed
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/python -m pip install --quiet pip-audit twine uv
	touch $@

# Both packages and the chart in dist/, checked, and a list to sign off. Nothing is published.
.PHONY: release
release: $(VENV)/tools/installed
	$(BIN)/python -m tests.support.release $(VENV)/tools/bin/twine

# `make demo DEMO=--real` really trains. The job that is emulated where there is no torch needs no more than a first change.
DEMO ?=
DEMO_NEEDS := $(if $(filter 1,$(HAS_TORCH)),install-all,install)
demo: $(DEMO_NEEDS)
	$(BIN)/python -m tests.bench.demo $(DEMO)

# The simulated goals, what an event costs, and the live ones; `make bench-ahead BENCH="--only webdataset"`.
bench-ahead: install-all
	$(BIN)/python -m tests.bench.ahead_events
	$(BIN)/python -m tests.bench.ahead $(BENCH)

# How much later a command in the image says its first word with `outrider run --` in front of it.
.PHONY: bench-start
bench-start: install-all
	$(BIN)/python -m tests.bench.entry_point $(BENCH)

# The rooms of code that a request goes through, and how often it moves between them.
.PHONY: trace
trace: install-all
	$(BIN)/python -m tests.bench.rooms $(BENCH)

# Objects that are samples, as many as asked for; `make bench-samples BENCH="--objects 1000000"`.
.PHONY: bench-samples
bench-samples: $(VENV)/bench-installed
	$(BIN)/python -m tests.bench.samples $(BENCH)

# The goals of many nodes; `make bench-cluster BENCH="--only join,write --json run.json"`.
bench-cluster: install-all
	$(BIN)/python -m tests.bench.cluster $(BENCH)

# DELI, TDCS and iGear beside Outrider: docs/papers.md; `make papers BENCH="--only deli --plot docs"`.
papers: $(VENV)/bench-installed
	$(BIN)/python -m tests.bench.papers $(BENCH)

# One training job on four nodes: each cache by itself, and all as one.
cluster-demo: install-all
	$(BIN)/python -m tests.bench.cluster_demo

demo-short: $(DEMO_NEEDS)
	$(BIN)/python -m tests.bench.demo --short

bench: $(VENV)/bench-installed
	$(BIN)/python -m tests.bench $(BENCH)

# Outrider is measured with what it requires and no more, as in its image: some libraries import what they find.
$(VENV)/bench-installed: $(VENV)/installed-all
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[bench]"
	$(PYTHON) -m venv $(VENV)/alone
	$(VENV)/alone/bin/python -m pip install --quiet --editable .
	touch $@

# On Debian and its kin, as root. Whoever else: the same four commands from your distribution.
bench-tools:
	@$(PYTHON) -m tests.support.system_programs bench

# What the documentation needs.
.PHONY: playground playground-stop chart docs metrics-page settings-page sizing-page

# A real S3 server on loopback with a small dataset, for whoever has no bucket at hand; then `. ./playground.env`;
# `eval "$(make playground-stop)"` ends it, and unsets what the file has set.
playground: install
	@$(BIN)/python -m tests.support.playground start

playground-stop: install
	@$(BIN)/python -m tests.support.playground stop

# The Helm chart with its default values, rendered by Helm's own engine from a wheel: Helm itself is not needed.
chart: install
	@$(BIN)/python -m tests.support.chart default

# The pages that the code writes.
docs: metrics-page settings-page sizing-page

# docs/metrics.md and docs/settings.md, from the code.
metrics-page: install
	$(BIN)/python -m tests.support.generated_pages metrics > docs/metrics.md

settings-page: install
	$(BIN)/python -m tests.support.generated_pages settings > docs/settings.md

# What `outrider simulate` prints, in docs/sizing.md: after a change of the policy.
sizing-page: install
	$(BIN)/python -m tests.support.generated_pages simulated

# `make -j2 lint` checks types beside the rest.
.PHONY: style types layers
lint: style layers types

style: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .fuzz
