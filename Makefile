# Every target works on a fresh machine that has only python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# Other people's packages have pins of their own, so they get an environment of their own.
OTHERS := .venv-integrations
STUDIO := .venv-label-studio
# A release is built by tools that the package does without, and tried where nothing else is.
TOOLS := .venv-dist
BARE := .venv-bare

.PHONY: demo test test-integrations test-label-studio lint site bench dist clean

demo: $(STAMP)
	$(BIN)/foresee demo

# A process for each core, of one thread: two for each core would wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal \
		--ignore tests/integrations --ignore tests/label_studio

test-integrations: $(OTHERS)/installed
	OMP_NUM_THREADS=1 $(OTHERS)/bin/python -m pytest --numprocesses auto --dist worksteal tests/integrations

# One after another: they share one Label Studio.
test-label-studio: $(STAMP) $(STUDIO)/installed
	$(BIN)/python -m pytest -n0 tests/label_studio

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

site: $(STAMP)
	$(BIN)/zensical build --strict
	cp -R results/curves site/  # a link to a folder is left out

bench: $(STAMP)
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/complexity.py
	$(BIN)/python benchmarks/experiments.py

# The build has an environment of its own too: pip reads its pins from PIP_CONSTRAINT alone.
dist: export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
dist: $(TOOLS)/installed
	rm -rf dist $(BARE)
	$(TOOLS)/bin/python -m build
	$(TOOLS)/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python -m pip install --quiet --no-compile dist/*.whl
	$(BARE)/bin/python -I tests/bare.py dist/*.whl

clean:
	rm -rf .venv $(OTHERS) $(STUDIO) $(TOOLS) $(BARE) dist demo-output site .cache

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

$(STUDIO)/installed: tests/label_studio/packages.txt
	$(PYTHON) -m venv $(STUDIO)
	$(STUDIO)/bin/python -m pip install --quiet --no-deps --requirement tests/label_studio/packages.txt
	touch $@

$(TOOLS)/installed: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --constraint constraints.txt build twine
	touch $@
