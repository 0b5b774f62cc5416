# make demo    set up, compile a real network and run it
# make test    set up and run the checks: ruff, mypy, the tests that are not slow
# make test-fast   some tests of every stage, in a minute or two
# make sweep   the slow tests
# make frameworks   set up with torch, JAX and others, and run the tests that need them
# make dist    build sdist and wheel, and check that the wheel works alone
# make bench   set up with what is compared, and measure side by side (BENCH=… for options)
# make gpu     on a machine with a CUDA device: set up, check kernels on it, and measure them beside
#              other libraries (GPU=… for options; WHEELS=folder installs from there alone); goes on
#              to the end, and fails if something did
# make docs    set up what the documentation needs, and build its site in build/site, which opens
#              without a server: build/site/index.html
# make clean   remove the environment and everything built
#
# Needed beforehand: Python 3.11 or later, make, and gcc or clang.
# PYTHON=… chooses the interpreter, VENV=… the folder of the virtual environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-fast frameworks frameworks-test sweep check bench gpu docs dist clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/farkas demo

test: check
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-fast: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto -m fast

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

frameworks: $(VENV)/.installed-frameworks frameworks-test

frameworks-test:
	$(BIN)/python -m pytest -n auto tests/farkas/frameworks tests/runtime/common/test_exchange.py \
	    tests/farkas/kernels/test_einsum.py tests/benchmarks/test_jax_kernels.py \
	    tests/benchmarks/test_call_overhead.py tests/conformance/test_gradients_torch.py \
	    tests/farkas/tuning/test_clusters.py "tests/test_notebooks.py::test_it_runs[7_torch_operator]"

sweep: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow --timeout 10800

dist:
	PYTHON="$(PYTHON)" .ci/dist

# For example: make bench BENCH="--quick --suite K --only rn_ --json now.json"
BENCH ?=
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks --json build/bench.json --plot build/bench $(BENCH)

# For example: make gpu GPU="--quick --family matmul"
GPU ?=
gpu: $(VENV)/.installed-gpu
	@failed=; set -x; \
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow" tests/gpu \
	    tests/runtime/gpu tests/runtime/cuda tests/runtime/test_find_device.py \
	    tests/benchmarks/test_gpu*.py || failed=1; \
	$(BIN)/python -m benchmarks.gpu --device cuda --tiny --quick --peers || failed=1; \
	$(BIN)/python -m benchmarks.gpu --device cuda \
	    --json build/gpu.json --plot build/gpu $(GPU) || failed=1; \
	test -z "$$failed"

# A broken link, or a page that is not in mkdocs.yml, ends it with an error (but not with --quiet,
# which silences the warnings that --strict counts).
docs: $(VENV)/.installed-docs
	$(BIN)/python -m docs.tools.links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open $(CURDIR)/build/site/index.html"

# The stamps are made last, so an interrupted setup is done again.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or later is needed; choose one with make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv --clear "$(VENV)" || \
	    { echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch "$@"

$(VENV)/.installed: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV)"
	@$(PIP) install --editable .
	@touch "$@"

$(VENV)/.installed-test: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV), with what the tests need"
	@$(PIP) install --editable '.[test]'
	@touch "$(VENV)/.installed" "$@"

$(VENV)/.installed-frameworks: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV), with the frameworks that kernels become operators of"
	@$(PIP) install --editable '.[test,frameworks]'
	@touch "$(VENV)/.installed" "$(VENV)/.installed-test" "$@"

$(VENV)/.installed-docs: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV), with what the documentation needs"
	@$(PIP) install --editable '.[docs]'
	@touch "$(VENV)/.installed" "$@"

# Peers are optional: what cannot be installed is named and left out.
$(VENV)/.installed-bench: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV), with what is measured beside Farkas"
	@$(PIP) install --editable '.[bench]' || $(PIP) install --editable .
	@touch "$(VENV)/.installed" "$@"

# Without a network: make gpu WHEELS=folder, with what docs/gpu.md says in the folder.
WHEELS ?=
FROM := $(if $(WHEELS),--no-index --find-links "$(WHEELS)")
$(VENV)/.installed-gpu: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing into $(VENV), with what the tests and CUDA need, and what is measured beside"
	@$(PIP) install $(FROM) --editable '.[test,cuda-bindings]'
	@touch "$(VENV)/.installed" "$(VENV)/.installed-test"
	@left=; for package in torch matplotlib cupy-cuda13x; do \
	    $(PIP) install $(FROM) $$package || left="$$left $$package"; done; \
	if [ -z "$$left" ]; then touch "$@"; else echo "left out:$$left"; fi

clean:
	rm -rf "$(VENV)" build dist *.egg-info
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
