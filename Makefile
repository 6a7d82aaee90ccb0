# Every target works on a fresh machine that has only python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint bench clean

demo: $(STAMP)
	$(BIN)/foresee demo

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/complexity.py
	$(BIN)/python benchmarks/experiments.py

clean:
	rm -rf $(VENV) demo-output

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
