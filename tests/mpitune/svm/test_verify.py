"""One solution of each launch is verified: what is no solution is found, whatever made it wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpitune import svm as shared
from mpitune.svm.cuda import Loaded, solve_gammas
from mpitune.svm.cuda.device import SOURCE
from mpitune.svm.cuda.launch import Lanes
from mpitune.svm.cuda.verify import WrongResult, check_launch, check_solution
from mpitune.svm.solver.path import Path, Whole, solve_path
from tests.mpitune.svm.emulator import COMPILER, Emulator
from tests.mpitune.svm.problems import Binary, clouds, folds_of

pytestmark = pytest.mark.numerical

PENALTIES = np.array([0.1, 1.0, 100.0])


@pytest.fixture(scope="module")
def solved() -> tuple[np.ndarray, Lanes, Path]:
    """Matrix, lanes of a problem, and its path by the solver for the CPU, whose blocks of lanes may be shorter."""
    problem = Binary(120, 0.1)
    lanes = Lanes.of(problem.sign)
    path = solve_path(Whole(problem.matrix), problem.sign, PENALTIES, 1e-3, 10**7)
    betas = np.ascontiguousarray(problem.spread(path)[:, lanes.columns])
    return problem.matrix, lanes, replace(path, columns=lanes.columns, betas=betas)


def check(solved: tuple[np.ndarray, Lanes, Path], path: Path, c: int) -> None:
    check_solution(np, solved[0], solved[1], path, c=c, bound=float(PENALTIES[c]), tolerance=1e-3)


def test_a_solution_is_accepted(solved: tuple[np.ndarray, Lanes, Path]) -> None:
    for c in range(len(PENALTIES)):
        check(solved, solved[2], c)


@pytest.mark.parametrize(
    ("words", "c", "spoil"),
    [
        ("bounds", 0, lambda path, lanes: path.betas[0].__setitem__(_at(path, 0), 0.11 * _sign(path, 0, lanes))),
        ("no sample", 1, lambda path, lanes: path.betas[1].__setitem__(np.flatnonzero(lanes.sign == 0)[0], 1e-6)),
        ("sum to", 1, lambda path, lanes: path.betas[1].__setitem__(_at(path, 1), path.betas[1][_at(path, 1)] * 0.9)),
        ("conditions are violated", 2, lambda path, lanes: path.betas[2].__imul__(0.5)),
        ("intercept", 1, lambda path, lanes: path.rhos.__setitem__(1, path.rhos[1] + 0.01)),
        ("their bounds by nan", 1, lambda path, lanes: path.betas[1].__setitem__(slice(None), np.nan)),
    ],
)
def test_what_is_no_solution_is_refused(solved, words, c, spoil) -> None:  # type: ignore[no-untyped-def]
    path = replace(solved[2], betas=solved[2].betas.copy(), rhos=solved[2].rhos.copy())
    spoil(path, solved[1])
    with pytest.raises(WrongResult, match=words):
        check(solved, path, c)


def _at(path: Path, c: int) -> int:
    return int(np.abs(path.betas[c]).argmax())


def _sign(path: Path, c: int, lanes: Lanes) -> int:
    return int(lanes.sign[_at(path, c)])


def test_a_path_that_stopped_early_is_only_held_to_its_bounds(solved: tuple[np.ndarray, Lanes, Path]) -> None:
    early = replace(solved[2], betas=solved[2].betas * 0.5, converged=np.zeros(3, np.bool_))
    for c in range(3):
        check(solved, early, c)


def test_what_is_not_finite_is_refused(solved: tuple[np.ndarray, Lanes, Path]) -> None:
    matrix, lanes, path = solved
    arguments = ([(0, len(matrix))], [(0, lanes)])
    check_launch(np, matrix.ravel(), *arguments, paths=[path], penalties=PENALTIES, tolerance=1e-3)
    bad = matrix.copy()
    bad[3, 4] = np.nan
    with pytest.raises(WrongResult, match="kernel matrices with NaN"):
        check_launch(np, bad.ravel(), *arguments, paths=[path], penalties=PENALTIES, tolerance=1e-3)
    with pytest.raises(WrongResult, match="not finite"):
        check_launch(
            np,
            matrix.ravel(),
            *arguments,
            paths=[replace(path, rhos=path.rhos * np.nan)],
            penalties=PENALTIES,
            tolerance=1e-3,
        )


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the kernel for the host")
def test_a_launch_of_a_kernel_with_a_race_is_a_failure(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The barrier after the step of a pair is gone: threads of other warps go on with the step before."""
    barrier = "        SYNC();\n        delta = p->scratch->delta;"
    assert SOURCE.read_text().count(barrier) == 1
    (tmp_path / SOURCE.name).write_text(SOURCE.read_text().replace(barrier, barrier[16:]))
    x, y = clouds(100)
    device = Emulator(64, schedule=1, options=(f"-I{tmp_path}",))
    with pytest.raises(WrongResult, match="the solution for C = 1 after .* iterations on the GPU is none"):
        list(solve_gammas(Loaded(device, shared.prepare(x, y)), [0.1], [1.0], folds_of(100, 2), "ovo", max_iter=1000))


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the kernel for the host")
def test_launches_are_planned_anew_for_what_others_leave() -> None:
    x, y = clouds(100)
    samples, gammas, folds = shared.prepare(x, y), [0.1, 0.2], folds_of(100, 2)
    whole = Emulator()
    expected = list(solve_gammas(Loaded(whole, samples), gammas, [1.0], folds, "ovo"))
    less = Emulator(there=whole.asked[0] - 1)
    found = list(solve_gammas(Loaded(less, samples), gammas, [1.0], folds, "ovo"))
    assert (len(whole.launches), len(less.launches)) == (1, 2)
    assert less.asked[0] == whole.asked[0] > less.asked[1]
    for a, b in zip(expected, found, strict=True):
        assert [p.predictions.tolist() for row in a for p in row] == [p.predictions.tolist() for row in b for p in row]
    with pytest.raises(MemoryError, match="are free"):
        list(solve_gammas(Loaded(Emulator(there=1000), samples), gammas, [1.0], folds, "ovo"))
