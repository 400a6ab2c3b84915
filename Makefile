# make demo    install into .venv and run both searches on 2 MPI ranks, on the built-in digits
# make test    install into .venv and run all tests
# make check   tests and linters, as CI does
# make test-container    build the CPU container's steps in a chroot and run both searches in it (root, minutes)
# make bench   the benchmarks that the README cites

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(PATH)
ROOT_FLAG := $(shell [ "$$(id -u)" = 0 ] && echo --allow-run-as-root)
MPIRUN := mpirun $(ROOT_FLAG) --oversubscribe --bind-to none -n 2
# Two ranks on one machine stand for two nodes; on a cluster it is one rank a node and all its devices.
HERE := --gpu none --workers 1 --dataset digits

.PHONY: demo test test-container lint check bench clean

demo: .venv/demo
	$(MPIRUN) python -m mnist_svm 8 $(HERE) --results results/demo_svm
	$(MPIRUN) python -m mnist_nn 5 4 $(HERE) --max-conv-layer 32 --max-hidden-layer 128 --epochs 10 \
		--results results/demo_nn
	@echo
	@echo "The figures are in results/demo_svm/figures and results/demo_nn/figures."

test: .venv/dev
	python -m pytest

test-container: .venv/dev
	CONTAINER=1 python -m pytest tests/apptainer

lint: .venv/dev
	ruff check .
	ruff format --check .
	mypy

check: test lint

bench: .venv/dev
	python -m benchmarks.dispatch
	python -m benchmarks.dispatch --simulate 1000
	python -m benchmarks.svm_grid 2000
	OMP_NUM_THREADS=1 python -m benchmarks.nn_step
	OMP_NUM_THREADS=1 python -m benchmarks.ddp

.venv/demo: requirements.txt requirements-demo.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-demo.txt
	touch $@

.venv/dev: .venv/demo requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf .venv results .mypy_cache .ruff_cache .pytest_cache .hypothesis
