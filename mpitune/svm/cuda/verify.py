"""Whether a path that came from a device is a solution: the optimality conditions, in float64.

They need no other solver. A solution that fulfils them is the solution, however it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpitune.svm.cuda.launch import Lanes
from mpitune.svm.solver.path import Path

SLACK = 10.0  # times the tolerance that a result may violate the conditions in a study: f was rounded on its way
BYTES = 256 << 20  # of the rows of a matrix that are looked at together


class WrongResult(RuntimeError):
    """A device computed no solution: the device, its driver or the compiled kernel is at fault."""


def check_launch(
    xp: Any,
    kernels: Any,
    matrices: Sequence[tuple[int, int]],
    problems: Sequence[tuple[int, Lanes]],
    *,
    paths: Sequence[Path],
    penalties: np.ndarray,
    tolerance: float,
) -> None:
    """Check that all is finite, and that the path with the most iterations ends in a solution.

    It costs one product of the matrix with a vector.

    Args:
        xp: numpy, or cupy for arrays on a GPU.
        kernels: float32, all matrices of the launch one after the other.
        matrices: (first element, width) of each matrix in ``kernels``.
        problems: (number of its matrix, its lanes) of each.
        paths: the solutions of each problem.
        penalties: float64 (n_penalties,), ascending.
        tolerance: with which they were solved.

    Raises:
        WrongResult: with the figures.
    """
    if not np.isfinite(float(kernels.sum())):
        raise WrongResult("the device computed kernel matrices with NaN")
    if not all(np.isfinite(path.betas).all() and np.isfinite(path.rhos).all() for path in paths):
        raise WrongResult("the device computed multipliers that are not finite")
    longest = max(range(len(paths)), key=lambda n: int(paths[n].iterations.max()))
    number, lanes = problems[longest]
    first, width = matrices[number]
    matrix = kernels[first : first + width**2].reshape(width, width)
    c = int(paths[longest].iterations.argmax())
    check_solution(xp, matrix, lanes, paths[longest], c=c, bound=float(penalties[c]), tolerance=tolerance, slack=SLACK)


def check_solution(
    xp: Any, matrix: Any, lanes: Lanes, path: Path, *, c: int, bound: float, tolerance: float, slack: float = 1.0
) -> None:
    """Check one solution of a path.

    Args:
        xp: numpy, or cupy for a matrix on a GPU.
        matrix: K - 1, float32 (width, width).
        lanes: of the problem.
        path: the solutions.
        c: number of the solution.
        bound: its penalty.
        tolerance: with which it was solved.
        slack: how many times the tolerance it may miss.

    Raises:
        WrongResult: a bound, the sum of the multipliers, the intercept, or the stopping rule of a path that says it
            converged is missed by more than ``slack`` times the tolerance.
    """
    beta, sign = path.betas[c], lanes.sign.astype(np.float64)
    alpha, total = sign * beta, float(np.abs(beta).sum())
    there = sign != 0
    rounding = 1e-9 * slack * total
    f = _gradient(xp, matrix, path.columns, beta) - sign
    rise = there & np.where(sign > 0, alpha < bound, alpha > 0)
    fall = there & np.where(sign > 0, alpha > 0, alpha < bound)
    free = rise & fall
    wrong = {
        "multipliers are outside of their bounds by": (float(np.max([0.0, -alpha.min(), alpha.max() - bound])), 0.0),
        "multipliers of no sample amount to": (float(np.abs(beta[~there]).sum()), 0.0),
        "the multipliers sum to": (abs(float(beta.sum())), rounding),
    }
    if path.converged[c]:
        allowed = slack * tolerance + rounding
        wrong["the optimality conditions are violated by"] = (
            float(f[fall].max(initial=-np.inf) - f[rise].min(initial=np.inf)),
            allowed,
        )
        if free.any():
            wrong["the intercept is wrong by"] = (abs(float(f[free].mean() - path.rhos[c])), allowed)
    for what, (found, limit) in wrong.items():
        if not found <= limit:
            raise WrongResult(
                f"the solution for C = {bound:g} after {path.iterations[c]} iterations on the GPU is none: {what} "
                f"{found:.3g}, more than {limit:.3g}"
            )


def _gradient(xp: Any, matrix: Any, columns: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """(K - 1) beta at ``columns``, float64, in this process's memory."""
    used = np.flatnonzero(beta)
    step = max(1, BYTES // (12 * len(matrix)))
    total = xp.zeros(len(matrix))
    for start in range(0, len(used), step):
        part = used[start : start + step]
        total += xp.asarray(beta[part]) @ matrix[xp.asarray(columns[part])].astype(np.float64)
    total = total[xp.asarray(columns)]
    return total.get() if hasattr(total, "get") else total
