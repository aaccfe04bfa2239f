# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN     = $(VENV)/bin
DEMO   ?= demo
# A file's tests stay in one process, which makes what they share once; long files come first (tests/conftest.py). More
# processes than cores use them while others wait for a browser or for runs of their own.
SPREAD  = -n 4 --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # pytest would compile all tests anew in every process

.PHONY: install demo test test-slow test-oracle test-cluster coverage check docs notebooks format lock clean
.DEFAULT_GOAL = demo

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/python -m compileall -q heatlas
	touch $@

install: $(VENV)/.installed   ## only the program, for your own data

demo: $(VENV)/.installed   ## the synthetic cohort, everything run on it, a report
	$(BIN)/heatlas demo $(DEMO)

test: $(VENV)/.installed   ## the default tests: minutes, no network
	$(BIN)/pytest $(SPREAD)

test-slow: $(VENV)/.installed   ## whole runs, killed and continued; error rates of all tests
	$(BIN)/pytest -m slow

test-oracle: $(VENV)/.installed   ## against independent libraries
	$(BIN)/pip install --quiet --no-deps zennit==0.5.1 lxt==2.1 einops captum==0.9.0 torchcam==0.5.0 quantus==0.6.0 opencv-python-headless  # zennit asks for torchvision; the tests stub it
	$(BIN)/pytest -m oracle

test-cluster: $(VENV)/.installed   ## whole runs on a Slurm of one node, with what clusters do to them; root, half an hour
	$(BIN)/pytest -m cluster tests/cluster

coverage: $(VENV)/.installed   ## which lines the default tests reach; writes htmlcov/index.html
	$(BIN)/pip install --quiet "pytest-cov>=6"
	$(BIN)/pytest $(SPREAD) --cov --cov-report=term:skip-covered --cov-report=html

check: $(VENV)/.installed   ## style, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs: docs/requirements.lock $(VENV)/.installed
	$(BIN)/pip install --quiet --requirement docs/requirements.lock
	touch $@

docs: $(VENV)/.docs   ## the documentation site, docs/_build/html/index.html; warnings and broken links are errors
	$(BIN)/sphinx-build -q -E -W --keep-going docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

notebooks: $(VENV)/.docs $(DEMO)/run/report.html   ## execute the notebooks of the documentation on the demo
	cd docs/notebooks && $(abspath $(BIN))/jupyter-execute --inplace *.ipynb

$(DEMO)/run/report.html:
	$(MAKE) demo

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:   ## resolve again in an empty environment and write requirements.lock
	$(PYTHON) -m venv .lock-venv
	.lock-venv/bin/pip install --quiet --upgrade "pip>=25.1"
	.lock-venv/bin/pip install --quiet torch==2.13.0
	.lock-venv/bin/pip install --quiet --editable ".[cluster]" --group test --group check
	echo "# Everything a fresh machine installs, exactly. Made by \`make lock\`; torch 2.13.0 is the CPU wheel where one is at hand." > requirements.lock
	.lock-venv/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' >> requirements.lock
	.lock-venv/bin/pip install --quiet --constraint requirements.lock --editable ".[docs]"
	echo "# What \`make docs\` adds to requirements.lock, exactly. Made by \`make lock\`." > docs/requirements.lock
	.lock-venv/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -vxFf requirements.lock >> docs/requirements.lock
	rm -rf .lock-venv

clean:
	rm -rf $(VENV) $(DEMO) docs/_build .pytest_cache .coverage htmlcov .mypy_cache .ruff_cache .hypothesis
