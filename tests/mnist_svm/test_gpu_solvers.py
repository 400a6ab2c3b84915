"""Solvers on a GPU, with cupy's stand-in: memory in turns, what is refused, what is not told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sklearn.svm import SVC

from mnist_svm.dataset import Dataset
from mnist_svm.experiment import SvmGrid
from mnist_svm.objective import SvmObjective
from mnist_svm.solvers import make_solver
from mpitune.experiment import WorkerContext
from tests.helpers import PATIENCE, ROOT, journal_lines
from tests.stand_ins import MODULES, A, Machine

DIGITS = SvmGrid(2, dataset="digits", train_size=150, test_size=50, solver="shared")

WORKER = """
import os, sys
from mpitune.devices import memory_lock
from mnist_svm.experiment import SvmGrid
from mnist_svm.objective import SvmObjective
from mnist_svm.dataset import Dataset
from mnist_svm.solvers.cuda import CudaSolver
memory_lock.POLL_S, memory_lock.GRACE_S = 0.01, 5.0
experiment = SvmGrid(2, dataset="digits", train_size=100, test_size=50, solver="shared", folds=2)
objective = SvmObjective(Dataset.of(experiment.data(), 2, 16), CudaSolver("ovo"))
print("ready", flush=True)
sys.stdin.readline()
(search,) = experiment.searches()
print(sorted((result.key, result.values["error"]) for batch in next(search) for result in objective(batch)))
"""


def start(environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], cwd=ROOT, env=environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_two_workers_take_the_memory_of_one_gpu_in_turn(tmp_path: Path) -> None:
    """The device has room for one launch and a half: launches come one after the other, and none is without memory."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "locks").mkdir()
    of_one_launch = 1100 << 20  # four blocks of decision values, mostly
    environ = Machine(tmp_path / "machine").environ(
        CUDA_VISIBLE_DEVICES="0", STAND_IN_MEMORY=str(tmp_path / "memory"), TMPDIR=str(tmp_path / "locks"),
        STAND_IN_BYTES=str(int(1.5 * of_one_launch)), HOME=str(tmp_path),
    )  # fmt: skip
    workers = [start(environ) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n", worker.stderr.read()
    answers = [worker.communicate("go\n", timeout=PATIENCE) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    taken = [tuple(map(int, line.split())) for line in (tmp_path / "memory" / "log").read_text().splitlines()]
    assert len({pid for pid, _, _ in taken}) == 2 and len(taken) == 2 * 2
    assert all(left >= 0 and 1 << 30 < n_bytes < of_one_launch for _, n_bytes, left in taken), taken


def test_cupys_tf32_is_off_and_a_gpu_with_a_display_is_refused(tmp_path: Path) -> None:
    program = "import os; from mpitune.svm.cuda import Gpu; Gpu(); print('CUPY_TF32' in os.environ)"
    for fault, words in (("", "False"), ("display", "drives a display: give --gpu none")):
        environ = Machine(tmp_path).environ(CUPY_TF32="1", STAND_IN_FAULT=fault)
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
        assert words in done.stdout + done.stderr


def test_cuml_does_not_tell_whether_it_converged_so_its_results_have_no_such_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """scikit-learn's class stands in for cuML's, which takes the same arguments."""
    monkeypatch.setitem(sys.modules, "cuml.svm", SimpleNamespace(SVC=SVC))
    monkeypatch.setitem(sys.modules, "cuml", SimpleNamespace())
    monkeypatch.syspath_prepend(str(MODULES))
    dataset = Dataset.of(DIGITS.data(), 5, 16)
    (search,) = DIGITS.searches()
    solver = make_solver("cuml", WorkerContext("cuda", {}), multiclass="ovo", memory=0, n_points=1)
    results = list(SvmObjective(dataset, solver, on_gpu=True)(next(search)[0]))
    assert results and all(
        result.values.keys() == {"error", "n_support", "on_gpu"} and result.values["n_support"] > 0
        for result in results
    )
    monkeypatch.delitem(sys.modules, "cupy")


def test_folds_stay_together_where_gammas_per_batch_is_given() -> None:
    for multiclass in ("ovo", "ovr"):
        for given, sizes in ((None, None), (1, [10, 10]), (2, [20])):
            experiment = SvmGrid(2, dataset="digits", solver="shared", multiclass=multiclass, gammas_per_batch=given)
            (search,) = experiment.searches()
            parts = [len(part) for batch in next(search) for part in experiment.split_batch(batch)]
            assert parts == (sizes or [2] * 10)


ASKED = """
from dataclasses import dataclass
from pathlib import Path

from mpitune.cli import run
from mpitune.experiment import per_trial
from mnist_svm.experiment import SvmGrid


@dataclass(frozen=True)
class Grid(SvmGrid):
    def shared_cost(self, batch, workers):
        cost = super().shared_cost(batch, workers)
        Path(__file__).with_suffix(".asked").write_text(f"{workers} {cost > 0}")
        return cost

    def objective(self, worker):
        return per_trial(lambda trial: {"error": 0.5, "test_error": 0.5})


if __name__ == "__main__":
    run(Grid)
"""


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        (("--gpu", "0,0"), "0 True"),
        pytest.param(("--gpu", "none", "--workers", "2"), "2 False", marks=pytest.mark.slow),
    ],
)
def test_folds_of_a_gpu_are_divided_late_those_of_cpus_that_share_a_matrix_at_once(
    device: tuple[str, ...], asked: str, program: Any, tmp_path: Path
) -> None:
    """With one-vs-rest: a piece on a GPU computes the kernel matrix again, and has paths for few of its processors."""
    (tmp_path / "grid.py").write_text(ASKED)
    options = ("--multiclass", "ovr", "--dataset", "digits", "--train-size", "300", "--results", tmp_path / "r")
    environ = Machine(tmp_path / "machine").environ()
    program(tmp_path / "grid.py", 2, *options, *device, env=environ, status=None)
    assert (tmp_path / "grid.asked").read_text() == asked


@pytest.mark.slow
def test_a_gpu_whose_check_fails_leaves_the_work_to_the_cpu(program: Any, tmp_path: Path) -> None:
    environ = Machine(tmp_path / "machine").environ(STAND_IN_FAULT="crash")
    study = ("-m", "mnist_svm", "2", "--dataset", "digits", "--train-size", "150", "--test-size", "50")
    done = program(*study, "--gpu", "0", "--results", tmp_path / "r", env=environ)
    assert "the GPU's solver failed its check (killed by SIGSEGV" in done.stderr, done.stderr
    assert "--gpu none uses all cores" in done.stderr and "best penalty C" in done.stdout
    values = [line["values"] for line in journal_lines(tmp_path / "r")]
    assert len(values) == 2 * 2 * 5 + 1 and not any("on_gpu" in each for each in values)
    assert journal_lines(tmp_path / "r")[0]["place"][3] == f"cuda:{A}"
