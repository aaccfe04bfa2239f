# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN     = $(VENV)/bin
DEMO   ?= demo
TORCH  ?= cpu
OASIS  ?= ../shared/data/oasis1/older
COMMIT ?= 5022b17f
# TORCH=cuda is for GPUs: requirements-cuda.lock in place of requirements.lock.
# A file's tests stay in one process, which makes what they share once; long files come first (tests/conftest.py).
SPREAD  = -n 2 --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # pytest would compile all tests anew in every process

.PHONY: install showcase demo test test-ci test-core test-kernels test-slow test-oracle test-network test-cluster same coverage check docs pages format lock clean
.DEFAULT_GOAL = demo

$(VENV)/.installed: requirements.lock requirements-cuda.lock pyproject.toml .ci/install
	$(PYTHON) -m venv $(VENV)
	.ci/install $(VENV) $(TORCH)
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/python -m compileall -q heatlas
	$(BIN)/python .ci/compile_loops.py
	touch $@

$(VENV)/.tools: .ci/requirements.lock $(VENV)/.installed
	.ci/install $(VENV) $(TORCH) .ci/requirements.lock
	touch $@

install: $(VENV)/.installed   ## only the program, for your own data

demo: $(VENV)/.installed   ## the synthetic cohort, everything run on it, a report
	$(BIN)/heatlas demo $(DEMO)

test: $(VENV)/.tools   ## the default tests: minutes, no network
	$(BIN)/pytest $(SPREAD)

# Arithmetic of other processors: instruction sets of PyTorch, oneDNN, OpenBLAS and Numba, threads, hashes, locale and time zone.
OLD   = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= \
        OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONHASHSEED=0 LC_ALL=C TZ=Pacific/Kiritimati
USUAL = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell \
        OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 OMP_WAIT_POLICY=passive PYTHONHASHSEED=1 LC_ALL=C.UTF-8 TZ=America/St_Johns
NUMBERS = tests/atlases tests/attribution tests/cohort tests/evaluation tests/models tests/regions tests/registration tests/reports \
          tests/statistics tests/training heatlas

test-kernels: $(VENV)/.tools   ## the tests that compare numbers, on the arithmetic of other processors and in random order
	$(BIN)/pip install --quiet --no-deps pytest-random-order==1.2.0
	env $(OLD) $(BIN)/pytest $(SPREAD) --random-order-seed=1 $(NUMBERS)
	env $(USUAL) $(BIN)/pytest $(SPREAD) --random-order-seed=2 $(NUMBERS)

# More processes than cores use them while others wait for a browser or for runs of their own.
test-ci: $(VENV)/.tools   ## what continuous integration runs too: whole runs, killed and continued, browsers, copies of the program
	$(BIN)/pytest -m "ci and not slow" -n 4 --dist loadfile --no-loadscope-reorder

test-core: $(VENV)/.tools   ## the core alone: its default tests in a copy without studies/
	.ci/core_alone $(BIN)/python $(SPREAD)

test-slow: $(VENV)/.tools   ## error rates of all statistics, runs at full size
	$(BIN)/pytest -m slow

test-oracle: $(VENV)/.tools   ## against independent libraries
	$(BIN)/pip install --quiet --no-deps zennit==0.5.1 lxt==2.1 einops captum==0.9.0 torchcam==0.5.0 quantus==0.6.0 autolrp==0.2.0 opencv-python-headless  # zennit asks for torchvision; the tests stub it
	$(BIN)/pytest -m oracle

test-network: $(VENV)/.tools   ## the ranges of pyproject.toml resolve for every Python; asks the package registry
	$(BIN)/pytest -m network tests/run

test-cluster: $(VENV)/.tools   ## whole runs on a Slurm of one node, with what clusters do to them; root, half an hour
	$(BIN)/pytest -m cluster tests/cluster

# Twice: from the start, and going on with the old run, which must leave registrations, networks and maps as they are.
same: $(VENV)/.tools   ## what differs from COMMIT in tables, pages, help, settings, public names and receipts
	test -d .same/tree || git worktree add --detach .same/tree $(COMMIT)
	test -f .same/old/applied/report.json || $(BIN)/python .ci/same_results.py record .same/tree .same/old
	rm -rf .same/new .same/on
	$(BIN)/python .ci/same_results.py record . .same/new
	$(BIN)/python .ci/same_results.py compare .same/old .same/new
	$(BIN)/python .ci/same_results.py record . .same/on --from .same/old
	$(BIN)/python .ci/same_results.py compare .same/old .same/on

coverage: $(VENV)/.tools   ## which lines the default tests reach; writes htmlcov/index.html
	$(BIN)/pip install --quiet "pytest-cov>=6"
	$(BIN)/pytest $(SPREAD) --cov --cov-report=term:skip-covered --cov-report=html

check: $(VENV)/.tools   ## style, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs: docs/requirements.lock $(VENV)/.tools
	.ci/install $(VENV) $(TORCH) .ci/requirements.lock docs/requirements.lock
	touch $@

docs: $(VENV)/.docs demo/run/report.html   ## the documentation site, docs/_build/html/index.html, its examples executed on the demo; warnings and broken links are errors
	$(BIN)/sphinx-build -q -E -W --keep-going docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

showcase: $(VENV)/.tools demo/run/report.html   ## the sample reports and the pictures of the documentation, of the demo and of OASIS=folder of patients; half an hour
	printf '[report]\npeople = false\n' > demo/groups_only.toml
	$(BIN)/heatlas run $(OASIS) demo/patients --preset patients --config demo/groups_only.toml
	$(BIN)/python docs/showcase.py demo/run demo/patients

pages: $(VENV)/.installed   ## docs/settings.md, tables.md, commands.md and glossary.md, printed by the code; tests hold them equal
	$(BIN)/python docs/_ext/printed_pages.py

demo/run/report.html:
	$(MAKE) demo DEMO=demo

format: $(VENV)/.tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:   ## write the locks and environment.yml; LOCK="--upgrade --measure" takes newer versions and measures the sizes
	$(PYTHON) -m venv .lock-venv
	.lock-venv/bin/pip install --quiet "uv>=0.8" packaging
	PATH=$(abspath .lock-venv/bin):$$PATH .lock-venv/bin/python .ci/lock.py $(LOCK)
	rm -rf .lock-venv

clean:
	rm -rf $(VENV) $(DEMO) docs/_build docs/auto_examples .pytest_cache .coverage htmlcov .mypy_cache .ruff_cache .hypothesis
