# make demo    install into .venv and run both searches on 2 MPI ranks, on the built-in digits
# make test    install into .venv and prove on this machine what the README promises, in about five minutes
# make check   linters and all tests: several hosts, Slurm, other MPI libraries; what CI runs
# make docs    the documentation as a site in results/site; a warning is an error, and so is a link that leads nowhere
# make coverage     what make test runs of each file: lines and branches, programs and workers included
# make test-avx2    the tests of arithmetic as on a processor without AVX-512
# make test-lowest  all but networks on the oldest versions that pyproject.toml allows; make test-newest: on the newest
# make test-gpu    install what fits the GPU driver into .venv-gpu, and run what a machine with GPUs can show; leaves one
#                  folder with a summary.md. make test-gpu-here PY=python3: with the packages that this Python has
# make bench   the benchmarks that the README cites

PYTHON ?= python3
BIN := .venv/bin
# --no-compile: pip would take two minutes to compile 20,000 modules. Python compiles those that are imported, once.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# A line every ten seconds while something is installed.
SAY := (while sleep 10 >/dev/null 2>&1; do echo "  $$(du -sm .venv | cut -f 1) MB are there"; done) & said=$$!; \
	trap 'kill $$said' EXIT;
# Without a GPU PyTorch's CPU wheels do, a tenth of the size; where their index is out of reach, PyPI's.
# --isolated: a pair of them from that index or none, whatever pip is told to look at besides.
INSTALL_TORCH := nvidia-smi -L >/dev/null 2>&1 || $(PIP) --isolated --retries 0 --timeout 5 \
	--index-url https://download.pytorch.org/whl/cpu torch torchvision 2>/dev/null || true
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Tests start hundreds of programs: what Python compiled for one is kept for the next, also in images that forbid it.
unexport PYTHONDONTWRITEBYTECODE
ROOT_FLAG := $(shell [ "$$(id -u)" = 0 ] && echo --allow-run-as-root)
MPIRUN := mpirun $(ROOT_FLAG) --oversubscribe --bind-to none -n 2
# Two ranks on one machine stand for two nodes; on a cluster it is one rank a node and all its devices.
HERE := --gpu none --workers 1 --dataset digits
# A first run of each program, as small as can be: Python compiles what they import, numba what they compute.
FIRST := --gpu none --dataset digits --quiet --results .venv/first

.PHONY: demo test docs coverage test-avx2 test-gpu test-gpu-here test-lowest test-newest
.PHONY: lint check bench clean

demo: .venv/demo
	$(MPIRUN) python -m mnist_svm 8 $(HERE) --results results/demo_svm
	$(MPIRUN) python -m mnist_nn 4 4 $(HERE) --max-channels 32 --max-hidden-layer 128 --epochs 10 \
		--results results/demo_nn
	@echo
	@echo "The figures are in results/demo_svm/figures and results/demo_nn/figures."

# Four tests at a time on two cores, as many of them wait. With six, all take a quarter longer.
test: .venv/dev
	python -m mpitune.svm.compiling
	python -m pytest -n 4 -m "not slow and not cluster"

SITE := results/site
docs: .venv/dev
	python -m mnist_svm 5 --gpu none --dataset digits --quiet --results results/example >/dev/null
	sphinx-build -E -W --keep-going -q -c docs . $(SITE)

coverage: .venv/dev
	rm -rf results/coverage
	mkdir -p results/coverage
	coverage run -m pytest -n 2 -m "not slow and not cluster"
	coverage combine --quiet
	coverage report --sort=-miss --skip-covered --include='mpitune/*,common/*,mnist_svm/*,mnist_nn/*'

GPU_PIP := .venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
test-gpu:
	@cuda=$$(nvidia-smi | sed -n 's/.*CUDA[^:]*Version: *\([0-9]*\)\..*/\1/p' | head -n 1); \
	case "$$cuda" in \
		'') echo "make test-gpu: nvidia-smi shows no CUDA version: run it on a machine with a GPU" >&2; exit 2;; \
		11 | 12) ;; \
		*) cuda=13;; \
	esac; \
	echo "installing requirements-cu$$cuda.txt into .venv-gpu (minutes)"; \
	{ [ -x .venv-gpu/bin/python ] || $(PYTHON) -m venv .venv-gpu; } && \
	$(GPU_PIP) -r requirements-cu$$cuda.txt pytest hypothesis
	.venv-gpu/bin/python -m tests.gpu --limit 600

PY ?= python3
test-gpu-here:
	$(PY) -m tests.gpu

test-lowest: .venv/dev
	tests/install/versions.sh lowest

test-newest: .venv/dev
	tests/install/versions.sh newest || echo "they do not pass yet"

lint: .venv/dev
	ruff check .
	ruff format --check .
	mypy
	lint-imports --no-cache --no-logo
	python -m tests.budget

check: lint docs test-avx2
	python -m mpitune.svm.compiling
	python -m pytest -n 4

test-avx2: .venv/dev
	python -m tests.avx2 python -m mpitune.svm.compiling
	python -m tests.avx2 python -m pytest -n 2 -m "not slow" tests/mpitune/svm/test_kernel.py \
		tests/mpitune/svm/test_smo.py tests/mnist_nn/test_steps.py

bench: .venv/dev
	python -m benchmarks.dispatch
	python -m benchmarks.dispatch --simulate 1000
	python -m benchmarks.svm_grid 2000
	OMP_NUM_THREADS=1 python -m benchmarks.nn_step

.venv/demo: requirements.txt requirements-demo.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing into .venv (minutes; most of it is PyTorch)"
	@$(SAY) sed '/^torch/d' requirements.txt | $(PIP) -r /dev/stdin
	@echo "compiling the solver meanwhile, once per machine"
	@rm -rf .venv/first
	@$(SAY) python -m mnist_svm 2 $(FIRST)/svm >/dev/null 2>&1 & first=$$!; \
	$(INSTALL_TORCH); $(PIP) -r requirements-demo.txt; installed=$$?; wait $$first; exit $$installed
	@python -c "import sklearn.datasets, mpitune.sklearn.search.searches, mpitune.svm.loaded" 2>/dev/null || true
	@echo "compiling the training steps, once per machine"
	@python -m mnist_nn 1 1 $(FIRST)/nn --max-channels 2 --max-hidden-layer 9 --epochs 1 --workers 1 --plot 1 \
		>/dev/null 2>&1 || true
	touch $@

.venv/dev: .venv/demo requirements-dev.txt
	@echo "installing what tests need"
	@$(SAY) $(PIP) -r requirements-dev.txt
	touch $@

clean:
	rm -rf .venv .venv-gpu results .mypy_cache .ruff_cache .pytest_cache .hypothesis
