"""The shared solver for GPUs: its kernel compiled for the host against the solver for the CPU, and on a GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

from common.data import load
from common.images import standardised
from mnist_svm.dataset import Dataset
from mnist_svm.experiment import SvmGrid
from mnist_svm.objective import SvmObjective
from mnist_svm.solvers.cuda import CudaSolver
from mpitune import svm as shared
from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext
from mpitune.svm.cuda import Gpu, Loaded, fit, solve_gammas
from mpitune.svm.cuda.device import DEFINITIONS, SCRATCH, SOURCE
from mpitune.svm.cuda.launch import STATE, Lanes
from mpitune.svm.cuda.matrices import STRIP, kernels_minus_one
from mpitune.svm.cuda.plan import plan
from mpitune.svm.kernel.rbf import kernel_minus_one
from mpitune.svm.solver.path import Path as Walked
from mpitune.svm.solver.path import Whole, solve_path
from tests.helpers import ROOT
from tests.mpitune.svm.emulator import COMPILER, Emulator
from tests.mpitune.svm.problems import TOLERANCE, Binary, clouds, folds_of

GAMMAS, PENALTIES = [1e-3, 1e-1], [0.01, 1.0, 100.0, 1e4]
GB = 10**9

emulated = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the kernel for the host")


def digits(n: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return ((images[:n] - 8) / 6).astype(np.float32), labels[:n]


def sanitizer() -> Path | None:
    """ThreadSanitizer's library, which must be there before Python begins."""
    command = [str(COMPILER), "-print-file-name=libtsan.so"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip() if COMPILER else ""
    return Path(found) if os.path.isabs(found) else None


def same_bits(a: Walked, b: Walked) -> bool:
    names = ("columns", "betas", "rhos", "iterations", "converged")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@emulated
class TestKernel:
    @pytest.mark.numerical
    @pytest.mark.parametrize("gamma", [1e-4, 1e-2, 1.0])
    def test_solutions_are_optimal_and_those_of_the_cpu(self, gamma: float) -> None:
        problem, penalties = Binary(150, gamma), np.geomspace(1e-3, 1e4, 8)
        ours = problem.path(Emulator(), penalties.tolist())
        theirs = solve_path(Whole(problem.matrix), problem.sign, penalties, TOLERANCE, 10**7)
        assert ours.converged.all() and np.isin(theirs.columns, ours.columns).all()  # the CPU's blocks may be shorter
        betas = zip(penalties, problem.spread(ours), problem.spread(theirs), ours.rhos, strict=True)
        for bound, beta, peer, rho in betas:
            assert (problem.sign * beta >= 0).all() and (problem.sign * beta <= bound).all()
            assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()
            assert not beta[problem.sign == 0].any()
            assert problem.violation(beta, bound) <= TOLERANCE + 1e-9 * np.abs(beta).sum()
            assert problem.objective(beta) == pytest.approx(problem.objective(peer), rel=1e-4)
            free = (beta != 0) & (np.abs(beta) < bound)
            np.testing.assert_allclose((problem.exact @ beta - problem.sign)[free], rho, atol=TOLERANCE)
        # A solution without bounded multipliers serves every larger C, here as on the CPU, which spares many of the
        # other steps by moving all multipliers together.
        still = [not (np.abs(beta) == C).any() for C, beta in zip(penalties, problem.spread(ours), strict=True)][:-1]
        assert not ours.iterations[1:][still].any() and not theirs.iterations[1:][still].any()
        x, y = problem.matrix[np.ix_(ours.columns, ours.columns)].astype(float), problem.sign[ours.columns]
        used = y != 0
        alone = [SVC(kernel="precomputed", C=C).fit(x[np.ix_(used, used)], y[used]).n_iter_[0] for C in penalties]
        assert ours.iterations.sum() < 2 * sum(alone)

    @pytest.mark.parametrize("gamma", [1e-3, 0.5])
    def test_bits_depend_neither_on_the_block_nor_on_the_order_of_its_threads(self, gamma: float) -> None:
        problem, penalties = Binary(100, gamma), [0.01, 0.5, 1.0, 50.0]
        expected = problem.path(Emulator(), penalties)
        for threads, schedule in ((8, 0), (32, 1), (64, 0), (64, 1), (64, 7), (256, 3)):
            assert same_bits(expected, problem.path(Emulator(threads, schedule=schedule), penalties)), threads

    @pytest.mark.parametrize("threads", [1, 64])
    def test_bits_do_not_depend_on_where_the_state_lies(self, threads: int) -> None:
        problem, penalties = Binary(100, 0.5), [0.01, 1.0, 50.0]
        fits = SCRATCH + STATE * len(Lanes.of(problem.sign))
        expected = problem.path(Emulator(threads, fits), penalties)
        assert same_bits(expected, problem.path(Emulator(threads, fits - 1, schedule=5), penalties))

    def test_ties_go_to_the_first_lane(self) -> None:
        """Every sample twice: the multipliers of twins could be exchanged, and threads find them at the same time."""
        x, y = clouds(40)
        samples = shared.prepare(np.repeat(x, 2, axis=0), np.repeat(-y, 2))
        problem = Binary(80, 0.5)
        problem.matrix = kernel_minus_one(samples, 0.5)
        problem.sign = np.zeros(samples.width, np.int8)
        problem.sign[samples.row_of] = np.repeat(y, 2)
        expected = problem.path(Emulator(), [0.1, 10.0])
        assert same_bits(expected, problem.path(Emulator(64, schedule=1), [0.1, 10.0]))

    def test_what_reaches_the_cap_of_iterations_is_reported(self) -> None:
        problem = Binary(200, 0.01)
        path = problem.path(Emulator(8), [10.0, 1000.0], max_iter=7)
        assert path.iterations.tolist() == [7, 7] and not path.converged.any()
        assert abs(path.betas.sum(axis=1)).max() < 1e-9

    @pytest.mark.parametrize("seed", range(4))
    def test_a_solution_without_bounded_vectors_serves_every_larger_penalty(self, seed: int) -> None:
        path = Binary(60, 1.0, seed).path(Emulator(8), [0.1, 100.0, 1e3, 1e9])
        assert path.iterations[1] > 0 and not path.iterations[2:].any()
        assert np.array_equal(path.betas[1], path.betas[3]) and path.rhos[1] == path.rhos[3]

    def test_a_long_step_from_a_bounded_solution_starts_from_zero(self) -> None:
        problem = Binary(150, 0.1)
        after, alone = problem.path(Emulator(), [1e-3, 1e3]), problem.path(Emulator(), [1e3])
        assert after.iterations[1] == alone.iterations[0] and np.array_equal(after.betas[1], alone.betas[0])


@pytest.mark.slow
@pytest.mark.skipif(not sanitizer(), reason="the C compiler has no ThreadSanitizer")
def test_no_thread_touches_what_another_does_between_two_barriers() -> None:
    program = (
        "from tests.mpitune.svm.emulator import RACES\n"
        "from mpitune.svm.cuda.device import SCRATCH\n"
        "from tests.mpitune.svm.emulator import Emulator\n"
        "from tests.mpitune.svm.problems import Binary\n"
        "for shared_memory in (1 << 20, SCRATCH):\n"
        "    device = Emulator(64, shared_memory, options=RACES)\n"
        "    print(Binary(100, 1.0).path(device, [0.1, 1e3, 1e4], max_iter=4).iterations)"
    )
    environ = {**os.environ, "LD_PRELOAD": str(sanitizer()), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert "data race" not in done.stderr and done.returncode == 0, done.stderr[:4000]
    assert len(done.stdout.splitlines()) == 2


def test_matrices_are_those_of_the_cpu_and_exactly_symmetric() -> None:
    rng = np.random.default_rng(0)
    samples = shared.prepare(rng.normal(3, 2, size=(STRIP + 300, 20)), np.arange(STRIP + 300) % 2)
    x = samples.x(np.arange(samples.width))
    out = np.empty((2, samples.width, samples.width), np.float32)
    kernels_minus_one(np, x, samples.sq_norms, [1e-6, 0.1], out)
    for gamma, found in zip([1e-6, 0.1], out, strict=True):
        np.testing.assert_allclose(found, kernel_minus_one(samples, gamma), rtol=1e-5, atol=1e-5 * gamma * 20)
        assert np.array_equal(found, found.T) and not found.diagonal().any()


@emulated
@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
class TestGrid:
    def test_points_are_those_of_the_cpu(self, multiclass: str) -> None:
        x, y = digits(300)
        folds, samples, device = folds_of(300, 3), shared.prepare(x, y), Emulator()
        cpu = shared.choose_plan(samples, multiclass, n_points=12, memory=GB)
        # At C = 0.01 many solutions of one-vs-rest are within the usual tolerance, and predict differently.
        found = list(solve_gammas(Loaded(device, samples), GAMMAS, PENALTIES, folds, multiclass, tolerance=1e-5))
        assert device.launches == [2 * 3 * {"ovo": 45, "ovr": 10}[multiclass]]
        for gamma, ours in zip(GAMMAS, found, strict=True):
            theirs = shared.solve_gamma(samples, gamma, penalties=PENALTIES, folds=folds, plan=cpu, tolerance=1e-5)
            for (_, validation), row, other in zip(folds, ours, theirs, strict=True):
                for point, peer in zip(row, other, strict=True):
                    errors = [(p.predictions != y[validation]).sum() for p in (point, peer)]
                    assert abs(errors[0] - errors[1]) <= 1
                    assert point.n_support == pytest.approx(peer.n_support, rel=0.005, abs=1)
                    assert point.converged

    def test_points_do_not_depend_on_what_is_in_flight(self, multiclass: str) -> None:
        x, y = digits(200)
        folds, samples = folds_of(200, 2), shared.prepare(x, y)
        trainings = [train for train, _ in folds]
        planned = plan(
            Loaded(Emulator(), samples),
            2,
            penalties=np.array(PENALTIES),
            trainings=trainings,
            multiclass=multiclass,
            memory=7 * GB,
        )
        room = int(1.5 * planned.views[0].bytes(len(PENALTIES))) + Loaded(Emulator(), samples).working
        answers = []
        for memory, launches in ((None, 1), (room, 2)):
            device = Emulator()
            grids = list(solve_gammas(Loaded(device, samples, memory), GAMMAS, PENALTIES[::-1], folds, multiclass))
            assert len(device.launches) == launches
            answers.append([point for grid in grids for row in grid for point in row])
        for a, b in zip(*answers, strict=True):
            assert np.array_equal(a.predictions, b.predictions)
            assert (a.n_support, a.iterations, a.converged) == (b.n_support, b.iterations, b.converged)

    def test_too_little_memory(self, multiclass: str) -> None:
        """One-vs-one goes on with matrices of class pairs; for a single one, or one-vs-rest, the need is said."""
        x, y = digits(300)
        folds, samples = folds_of(300, 2), shared.prepare(x, y)
        working = Loaded(Emulator(), samples).working
        if multiclass == "ovo":
            device = Emulator()
            few = Loaded(device, samples, 4 * samples.width**2 + working)
            expected = list(solve_gammas(Loaded(Emulator(), samples), GAMMAS, PENALTIES, folds, multiclass))
            for a, b in zip(expected, solve_gammas(few, GAMMAS, PENALTIES, folds, multiclass), strict=True):
                for row, other in zip(a, b, strict=True):
                    for point, peer in zip(row, other, strict=True):
                        assert (point.predictions != peer.predictions).sum() <= 1
                        assert point.n_support == pytest.approx(peer.n_support, rel=0.005, abs=1)
            assert len(device.launches) > 2 and sum(device.launches) == 2 * 2 * 45
        with pytest.raises(MemoryError, match=r"needs \d+\.\d+ GB of the GPU's memory.*--solver cuml"):
            next(solve_gammas(Loaded(Emulator(), samples, 1000 + working), GAMMAS, PENALTIES, folds, multiclass))

    def test_a_single_fit_is_that_of_scikit_learn(self, multiclass: str) -> None:
        x, y = digits(500)
        model = fit(Loaded(Emulator(), shared.prepare(x[:400], y[:400])), 10.0, 0.02, multiclass)
        peer = SVC(C=10.0, gamma=0.02) if multiclass == "ovo" else OneVsRestClassifier(SVC(C=10.0, gamma=0.02))
        assert (model.predict(x[400:]) != peer.fit(x[:400], y[:400]).predict(x[400:])).sum() <= 1
        assert model.converged and 0 < model.n_support <= 400

    def test_two_classes(self, multiclass: str) -> None:
        x, y = clouds(60)
        model = fit(Loaded(Emulator(), shared.prepare(x, y)), 10.0, 0.5, multiclass)
        assert np.array_equal(model.predict(x), SVC(C=10.0, gamma=0.5).fit(x, y).predict(x))

    def test_unusable_points_are_refused(self, multiclass: str) -> None:
        x, y = digits(60)
        loaded = Loaded(Emulator(), shared.prepare(x, y))
        with pytest.raises(ValueError, match="above 0"):
            next(solve_gammas(loaded, [0.0, 1.0], [1.0], folds_of(60, 2), multiclass))
        missing = [(np.flatnonzero(y != 7), np.flatnonzero(y == 7))]
        with pytest.raises(ValueError, match="fold 0 has no training sample of class 7"):
            next(solve_gammas(loaded, [1.0], [1.0], missing, multiclass))

    def test_a_study_does_not_depend_on_gammas_per_batch(self, multiclass: str) -> None:
        small = SvmGrid(3, dataset="digits", train_size=150, test_size=50, multiclass=multiclass, solver="shared")
        problem = Dataset.of(small.data(), 5, 16)
        answers = []
        for together, launches in ((1, 3), (2, 2), (5, 1)):
            experiment, device = replace(small, gammas_per_batch=together), Emulator()
            objective = SvmObjective(problem, CudaSolver(multiclass, device))
            (search,) = experiment.searches()
            batches = next(search)
            if together > 1:
                assert len(batches) == launches and experiment.split_batch(batches[0]) == [batches[0]]
            results = [result for batch in batches for result in objective(batch)]
            assert [result.key for result in results] == [trial.key for batch in batches for trial in batch]
            (refit,) = objective(next(iter(search.send(results))))
            assert refit.value("converged") == 1 and len(refit.arrays["predictions"]) == 50
            answers.append({result.key: result.values for result in (*results, refit)})
        assert answers[0] == answers[1] == answers[2]
        # After a crash a batch begins anywhere, in the middle of a fold for instance.
        rest = batches[0][7:]
        for trial, result in zip(rest, objective(rest), strict=True):
            assert result.key == trial.key
            assert result.values["error"] == pytest.approx(answers[0][trial.key]["error"], abs=1 / 30 + 1e-9)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="cupy is here")
def test_the_gpu_solver_without_cupy_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match=r"needs cupy.*--gpu none"):
        SvmGrid(3, solver="shared").check("cuda")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc to compile the kernel for a GPU")
def test_the_kernel_compiles_as_cuda_without_a_warning(tmp_path: Any) -> None:
    command = ["nvcc", *DEFINITIONS, "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "path.cubin"), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "walk_paths" in done.stderr and "warning" not in done.stderr


# On a GPU


@pytest.fixture
def gpu() -> Gpu:
    if not pytest.importorskip("cupy").cuda.is_available():
        pytest.skip("no CUDA device")
    return Gpu()


@pytest.mark.gpu
@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
def test_a_gpu_gives_scikit_learns_errors(gpu: Gpu, multiclass: str, mnist: Any) -> None:
    data = load("mnist", mnist)
    x, y = standardised(data["train_images"][:2000], 255), data["train_labels"][:2000]
    folds, penalties = folds_of(2000, 5)[:2], [1.0, 100.0, 1e4]
    loaded = Loaded(gpu, shared.prepare(x, y))
    for gamma, grid in zip([1e-4, 1e-3], solve_gammas(loaded, [1e-4, 1e-3], penalties, folds, multiclass), strict=True):
        for (train, validation), row in zip(folds, grid, strict=True):
            for penalty, point in zip(penalties, row, strict=True):
                machine = SVC(C=penalty, gamma=gamma)
                peer = (machine if multiclass == "ovo" else OneVsRestClassifier(machine)).fit(x[train], y[train])
                errors = [(p != y[validation]).sum() for p in (point.predictions, peer.predict(x[validation]))]
                assert abs(errors[0] - errors[1]) <= 1 and point.converged, (gamma, penalty)


@pytest.mark.gpu
def test_bits_on_a_gpu_depend_neither_on_the_block_nor_on_where_the_state_lies(gpu: Gpu) -> None:
    problem, penalties = Binary(2000, 0.05), [0.01, 1.0, 100.0]
    expected = problem.path(gpu, penalties)
    theirs = solve_path(Whole(problem.matrix), problem.sign, penalties, TOLERANCE, 10**7)
    for beta, peer in zip(problem.spread(expected), problem.spread(theirs), strict=True):
        assert problem.objective(beta) == pytest.approx(problem.objective(peer), rel=1e-4)
    for threads in (32, 64, 512):
        gpu.threads = lambda lanes, threads=threads: threads  # type: ignore[method-assign, misc]
        assert same_bits(expected, problem.path(gpu, penalties))
    gpu.shared_memory = SCRATCH
    assert same_bits(expected, problem.path(gpu, penalties))


@pytest.mark.gpu
def test_a_gpu_gives_cumls_errors(gpu: Gpu, mnist: Any) -> None:
    pytest.importorskip("cuml")
    experiment = SvmGrid(3, data_folder=mnist, train_size=2000, test_size=500)
    answers = []
    for solver in ("shared", "cuml"):
        objective = replace(experiment, solver=solver).objective(WorkerContext("cuda", experiment.data()))
        (search,) = experiment.searches()
        answers.append([result for batch in next(search)[1:] for result in objective(batch)])
    for ours, peer in zip(*answers, strict=True):
        assert ours.values["error"] == pytest.approx(peer.values["error"], abs=2 / 400 + 1e-9), ours.key
