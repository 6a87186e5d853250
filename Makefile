# One command each, from a fresh clone. `PYTHON=python3.13 VENV=.venv313 make test` tests another Python.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is pinned to a release without a wheel for newer Pythons: there, what needs it is left out.
HAS_TORCH := $(shell $(PYTHON) -c 'import sys; print(int(sys.version_info[:2] == (3, 11)))')
comma := ,
EXTRAS := bucket,clients,dev$(if $(filter 1,$(HAS_TORCH)),$(comma)examples)

.PHONY: install test bench-ahead demo demo-short lint clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml sdk/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --editable sdk
	touch $@

test: install
	$(BIN)/python -m pytest

demo: install
	$(BIN)/python -m tests.bench.demo

bench-ahead: install
	$(BIN)/python -m tests.bench.ahead_simulated
	$(BIN)/python -m tests.bench.ahead_events

demo-short: install
	$(BIN)/python -m tests.bench.demo --short

lint: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
