# make repro: create .venv and run the pipeline.   make test: create .venv and run every check.   make docs: build the site.

PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export PATH := $(BIN):$(PATH)
# DVC's state is in a folder of this user, not in the one that all users share.
export DVC_SITE_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/learner/dvc
# mypy takes a minute of processor time without a cache, which clones share.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/learner/mypy
unexport PYTHONDONTWRITEBYTECODE  # the processes of the tests share compiled modules

PACKAGE ?=
COUNT ?=

.PHONY: repro test docs durations fuzz crash mutants long format

repro: .venv/installed
	@mkdir -p -m 700 "$$DVC_SITE_CACHE_DIR"
	dvc repro
	@echo "The model is artifacts/model.mpk.gz. Run 'learner compare' next, after '. .venv/bin/activate'."

test: .venv/installed-test
	ruff format --check .
	ruff check .
	python tests/lint
	mypy > /dev/null & pytest --numprocesses 3 --dist loadfile  # three on two cores: some tests wait for a server
	mypy  # its cache was filled beside the tests

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "The site is build/site/index.html, which needs no server."

durations: .venv/installed-test  # after tests were added or changed: the order in which `make test` starts the files
	pytest --numprocesses 3 --dist loadfile --store-durations

fuzz: .venv/installed-test
	python tests/records/fuzz.py --count 200000 --jobs 2 --out build/fuzz

crash: .venv/installed-test
	python tests/crash/crash.py --jobs 2

mutants: .venv/installed-test  # PACKAGE=optim for one package, COUNT=40 for a smaller sample
	python tests/mutation/mutants.py $(PACKAGE) $(if $(COUNT),--count $(COUNT)) --jobs 2

long: .venv/installed-test  # the tests and examples that `make test` skips, then flows on PostgreSQL; every night in CI
	LEARNER_TEST_LONG=1 pytest -m "long or hypothesis" --numprocesses 3 --dist loadfile
	LEARNER_TEST_LONG=1 LEARNER_TEST_POSTGRES=1 pytest $(addprefix tests/pipeline/flows/,test_serve.py test_flow_runs.py test_recorded_runs.py)

format: .venv/installed-test
	ruff format .
	ruff check --fix .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[page]"
	touch $@

.venv/installed-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[test]"
	touch .venv/installed $@

.venv/installed-docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[docs]"
	touch .venv/installed $@
