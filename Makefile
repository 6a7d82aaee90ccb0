# Every target works on a fresh machine that has only python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# Other people's packages have pins of their own, so they get an environment of their own.
OTHERS := .venv-integrations

.PHONY: demo test test-integrations lint site bench clean

demo: $(STAMP)
	$(BIN)/foresee demo

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --ignore tests/integrations

test-integrations: $(OTHERS)/installed
	$(OTHERS)/bin/python -m pytest --numprocesses auto --dist worksteal tests/integrations

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

site: $(STAMP)
	$(BIN)/zensical build --strict

bench: $(STAMP)
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/complexity.py
	$(BIN)/python benchmarks/experiments.py

clean:
	rm -rf .venv $(OTHERS) demo-output site .cache

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# laplace-torch asks for torchvision, which has no build for this torch and breaks others if it is
# there: so what it needs is named in full, and installed without what that would bring along.
$(OTHERS)/installed: pyproject.toml constraints.txt tests/integrations/packages.txt
	$(PYTHON) -m venv $(OTHERS)
	$(OTHERS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(OTHERS)/bin/python -m pip install --quiet --no-deps --requirement tests/integrations/packages.txt
	touch $@
