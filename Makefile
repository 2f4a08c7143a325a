# `make demo` and `make test` do all the set-up they need on a machine with Python 3.11 or newer and pip.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check lint format clean

demo: .venv/.installed
	$(BIN)/sosn demo

test: .venv/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

check: lint  # style, types and the tests that are not marked slow: what to run while working
	PYTEST_ADDOPTS='-m "not slow"' $(MAKE) --no-print-directory test

lint: .venv/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sosn needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	rm -rf .venv
	$(PYTHON) -m venv .venv
	touch $@

.venv/.installed: pyproject.toml constraints.txt | .venv/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[photos]'
	touch $@

.venv/.tested: pyproject.toml constraints.txt | .venv/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/.installed
