"""One binary problem solved for every C of a list, from the smallest to the largest.

The solutions for neighbouring C have most in common, so each starts from the one before, scaled by an exact
line search. Two cases need something else. If no multiplier of a solution touches its bound C, the same
solution is optimal for every larger C. If most do and the scaled start is far from optimal, starting from zero
takes fewer iterations.

Each C begins with steps of all multipliers at once where samples have little to do with each other (`projected`). Then
pairs are moved; the lanes that still move are gathered now and then and solved alone, see `gathered`.

The arrays of the compiled functions are listed in `smo`.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jit import LANES
from jit.simd import aligned_zeros, compiled, part, writable
from kernel_svm.gathered import CHECK, GATHER, MAX_ACTIVE, WORKING, active, most_violating, solve_gathered
from kernel_svm.projected import descend
from kernel_svm.smo import CONVERGED, MISSING, iterate, set_masks

LEFT_OVER = 0.2  # of their violation: what WORKING lanes are left with that are gathered where too many are active
AHEAD = 64  # rows that are asked for together with a missing one
FREE = 2  # start from the scaled solution if one in so many of its support vectors is below the bound,
GAP = 0.5  # or if it violates the optimality conditions by no more than this (zero does so by 2)

# Progress of paths, in an int64 array, so that they can pause for a missing row and go on: number of the path, of C,
# its stage (0, then BEGUN, then PAIRS), its iterations, those since the last gathering, those until the next look, rows
# that are missing, whether steps of all multipliers pay.
PATH, AT, STAGE, DONE, SPENT, LEFT, WANTED, PAYS = range(8)
BEGUN, PAIRS = 1, 2


@part
def _cover(sign, weights, blocks, columns, lane_sign, lane_weights):
    """Find the lanes of a problem, from sign and weights by column, and write their arrays; return how many."""
    width = 0
    for b in range(sign.size // LANES):
        there = False
        for t in range(b * LANES, (b + 1) * LANES):
            there = there or sign[t] != 0
        if there:
            blocks[width // LANES] = b
            for t in range(b * LANES, (b + 1) * LANES):
                columns[width], lane_sign[width], lane_weights[width] = t, sign[t], weights[t]
                width += 1
    return width


@part
def _wish(slot, columns, f, up, low, extremes, column, wanted):
    """List ``column`` and others that are far from optimal and not there; return how many."""
    least, most = extremes
    middle = (least + most) / 2
    wanted[0] = column
    count = 1
    for t in range(f.size):
        if count == min(AHEAD, wanted.size):
            break
        missing = slot[columns[t]] < 0 and columns[t] != column
        if missing and ((up[t] and f[t] < middle) or (low[t] and f[t] > middle)):
            wanted[count] = columns[t]
            count += 1
    return count


@part
def _solve(rows, slot, blocks, columns, sign, f, beta, up, low, bounds, tolerance, limit, state, wanted):
    """One C from where ``f`` and ``beta`` stand; wanted rows are columns in ``wanted[:state[WANTED]]``."""
    extremes = np.empty(2)
    lanes = np.empty(sign.size, np.int64)
    while True:
        at_most = min(state[LEFT], limit - state[DONE])
        status, k, column = iterate(rows, slot, blocks, sign, f, beta, up, low, bounds, tolerance, at_most, extremes)
        state[DONE] += k
        state[SPENT] += k
        state[LEFT] -= k
        if status == MISSING:
            state[WANTED] = _wish(slot, columns, f, up, low, extremes, column, wanted)
            return MISSING
        if status == CONVERGED or state[DONE] >= limit:
            return status
        count = active(sign, f, up, low, extremes, lanes)
        partial = count > MAX_ACTIVE
        size, spared = (WORKING, sign.size) if partial else (count, sign.size - count)
        cost = GATHER * size * size
        if partial:  # f of all lanes is brought up to date each time, by a row for each lane that is gathered
            cost += size * sign.size
        if size <= 0.8 * sign.size and state[SPENT] * spared >= cost:
            gathered, goal = lanes[:count], tolerance
            if partial:
                gathered = most_violating(f, up, low, gathered)
                goal = max(tolerance, LEFT_OVER * (extremes[1] - extremes[0]))
            missing = 0
            for t in gathered:
                if slot[columns[t]] < 0:
                    wanted[missing] = columns[t]
                    missing += 1
            if missing:
                state[WANTED] = missing
                return MISSING
            _, k = solve_gathered(
                rows, slot, columns, gathered, sign, f, beta, up, low, bounds, goal, limit - state[DONE], extremes
            )
            state[DONE] += k
            state[SPENT] = 0
        state[LEFT] = CHECK


@part
def _start(sign, weights, f, beta, bound, previous, converged):
    """Set ``f`` and ``beta`` to where the search for C = ``bound`` begins; True if that is the solution already."""
    linear = quadratic = 0.0
    support = free = 0
    for t in range(sign.size):
        if sign[t] != 0 and beta[t] != 0.0:
            alpha = abs(beta[t])
            linear += alpha
            quadratic += beta[t] * (f[t] + sign[t])
            support += 1
            free += alpha < previous * weights[t]
    if converged and 0 < support == free:
        return True
    least, most = np.inf, -np.inf
    if previous > 0.0:
        ratio = bound / previous
        scale = ratio if quadratic <= 0.0 else max(1.0, min(linear / quadratic, ratio))
        for t in range(sign.size):
            if sign[t] != 0:
                alpha, top = abs(beta[t]), bound * weights[t]
                alpha = top if alpha == previous * weights[t] and scale == ratio else min(alpha * scale, top)
                beta[t] = alpha * sign[t]
                f[t] = scale * (f[t] + sign[t]) - sign[t]
                if alpha < top if sign[t] > 0 else alpha > 0.0:
                    least = min(least, f[t])
                if alpha > 0.0 if sign[t] > 0 else alpha < top:
                    most = max(most, f[t])
    if previous == 0.0 or (FREE * free < support and most - least > GAP):
        for t in range(sign.size):
            beta[t] = 0.0
            f[t] = -sign[t]
    return False


@part
def _lacking(slot, columns, sign, wanted):
    """List the rows of the problem that are not there; return how many."""
    count = 0
    for t in range(sign.size):
        if sign[t] != 0 and slot[columns[t]] < 0:
            wanted[count] = columns[t]
            count += 1
    return count


@part
def _intercept(sign, f, up, low):
    """LIBSVM's rho: the mean of f over the free lanes, else the middle of what the bounded ones allow."""
    total, free, least, most = 0.0, 0, np.inf, -np.inf
    for t in range(sign.size):
        if up[t] and low[t]:
            total += f[t]
            free += 1
        elif up[t]:
            least = min(least, f[t])
        elif low[t]:
            most = max(most, f[t])
    return total / free if free else (least + most) / 2


@part
def _walk(rows, slot, tolerance, limit, give_up, blocks, columns, sign, weights, f, beta, up, low, bounds, penalties,
          state, wanted, betas, rhos, iterations, converged):  # fmt: skip
    """Go along ``penalties`` from where ``state`` stands; MISSING if rows are wanted, else CONVERGED."""
    while state[AT] < penalties.size:
        c = state[AT]
        for t in range(weights.size):
            bounds[t] = penalties[c] * weights[t]
        if state[STAGE] == 0:
            previous = penalties[c - 1] if c else 0.0
            same = _start(sign, weights, f, beta, penalties[c], previous, c > 0 and converged[c - 1])
            set_masks(sign, beta, bounds, up, low)
            state[STAGE], state[DONE], state[SPENT], state[LEFT] = BEGUN, 0, 0, CHECK
            if same:
                for t in range(beta.size):
                    betas[c, t] = betas[c - 1, t]
                rhos[c], converged[c], iterations[c] = rhos[c - 1], True, 0
                state[AT], state[STAGE] = c + 1, 0
                continue
        if state[STAGE] == BEGUN and state[PAYS]:
            state[WANTED] = _lacking(slot, columns, sign, wanted)
            if state[WANTED]:
                return MISSING
            steps, pays = descend(rows, slot, columns, sign, f, beta, up, low, bounds, tolerance, limit)
            state[DONE], state[PAYS] = steps, pays
        state[STAGE] = PAIRS
        status = _solve(rows, slot, blocks, columns, sign, f, beta, up, low, bounds, tolerance, limit, state, wanted)
        if status == MISSING:
            return MISSING
        for t in range(beta.size):
            betas[c, t] = beta[t]
        rhos[c], converged[c], iterations[c] = _intercept(sign, f, up, low), status == CONVERGED, state[DONE]
        state[AT], state[STAGE] = c + 1, 0
        if give_up and not converged[c]:
            break
    return CONVERGED


@compiled
def _walk_all(rows, slot, tolerance, limit, give_up, pair, signs, weights, penalties, counts, doubles, marks,
              lane_sign, blocks, state, wanted, lanes, columns, betas, rhos, iterations, converged):  # fmt: skip
    """Go along the first ``counts[n]`` penalties of each problem n; as `_walk`. The rest of the results is 0.

    Room for one problem at a time: doubles (4, width) for weights, f, beta and bounds, marks (2, width) for up and low.
    """
    while state[PATH] < signs.shape[0]:
        n = state[PATH]
        if state[AT] == 0 and state[STAGE] == 0:
            lanes[n] = _cover(signs[n], weights[n], blocks, columns[n], lane_sign, doubles[0])
            state[PAYS] = pair or lanes[n] <= MAX_ACTIVE
        width = lanes[n]
        status = _walk(
            rows, slot, tolerance, limit, give_up, blocks[: width // LANES], columns[n, :width],
            lane_sign[:width], doubles[0, :width], doubles[1, :width], doubles[2, :width],
            marks[0, :width], marks[1, :width], doubles[3, :width], penalties[: counts[n]], state, wanted, betas[n],
            rhos[n], iterations[n], converged[n],
        )  # fmt: skip
        if status == MISSING:
            return MISSING
        for c in range(state[AT], penalties.size):
            for t in range(width):
                betas[n, c, t] = 0.0
            rhos[n, c], iterations[n, c], converged[n, c] = 0.0, 0, False
        state[PATH], state[AT], state[STAGE] = n + 1, 0, 0
    return CONVERGED


class Kernel(Protocol):
    """Rows of K - 1: row ``slot[t]`` of ``rows``, float32 (any, width), is row t; -1 if it is not there."""

    rows: np.ndarray
    slot: np.ndarray

    def fetch(self, wanted: np.ndarray) -> None:
        """Bring in rows that are not there, at most MAX_ACTIVE; others may go."""


class Whole:
    """A matrix that is in memory: float32 (m, width), its width whole vectors."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.rows = matrix
        self.slot = np.arange(matrix.shape[1], dtype=np.int32)

    def fetch(self, wanted: np.ndarray) -> None:
        raise AssertionError("a whole matrix misses no row")


@dataclass(frozen=True)
class Path:
    """Solutions of one binary problem along C.

    Attributes:
        columns: int64 (n_lanes,), the column of each lane.
        betas: float64 (n_penalties, n_lanes), y * alpha.
        rhos: float64 (n_penalties,); the decision value is sum(beta * K) - rho, positive for sign +1.
        iterations: int64, converged: bool, both (n_penalties,).
    """

    columns: np.ndarray
    betas: np.ndarray
    rhos: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray


@dataclass(frozen=True)
class Paths:
    """Paths of binary problems over one matrix, in arrays that hold all of them.

    Attributes:
        lanes: int64 (n,), how many lanes each problem has.
        columns: int64 (n, width), the column of each lane; only as many are there as the problem has lanes.
        betas: float64 (n, n_penalties, width), y * alpha of each lane.
        rhos: float64, iterations: int64, converged: bool, all (n, n_penalties).
    """

    lanes: np.ndarray
    columns: np.ndarray
    betas: np.ndarray
    rhos: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray

    def __getitem__(self, n: int) -> Path:
        width = self.lanes[n]
        return Path(
            self.columns[n, :width], self.betas[n, :, :width], self.rhos[n], self.iterations[n], self.converged[n]
        )

    @classmethod
    def of(cls, path: Path) -> Paths:
        """One path."""
        others = path.columns, path.betas, path.rhos, path.iterations, path.converged
        return cls(np.array([len(path.columns)]), *(np.ascontiguousarray(array)[None] for array in others))


def solve_paths(
    kernel: Kernel,
    signs: np.ndarray,
    penalties: Sequence[float] | np.ndarray,
    tolerance: float,
    max_iter: int,
    weights: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    give_up: bool = False,
    pair: bool = False,
) -> Paths:
    """Solve binary problems over one matrix for ascending ``penalties``, one after the other.

    Args:
        kernel: rows of K - 1.
        signs: int8 (n, width), +1 and -1 for the samples of each problem, 0 for other columns.
        penalties: every C, ascending, above 0.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per C, after which it is given up and reported as not converged.
        weights: float64 (n, width), above 0 for the samples of a problem; the bound of a multiplier is C times its
            sample's weight, 1 if not given.
        counts: int64 (n,), how many penalties of each problem are solved, all if not given. The others have not
            converged, with zeros for their solution.
        give_up: leave out all C above the first that did not converge, too.
        pair: the matrix of the problems is always in memory, however large it is: all its rows may be read at once.
            Otherwise they are where there are no more than MAX_ACTIVE, so that the bits do not depend on what is kept.
    """
    n, width = signs.shape
    every = np.asarray(penalties, np.float64)
    shape = n, len(every)
    weights = np.ones((n, width)) if weights is None else weights
    counts = np.full(n, len(every)) if counts is None else counts
    found = Paths(
        np.empty(n, np.int64), np.empty((n, width), np.int64), np.empty((*shape, width)), np.empty(shape),
        np.empty(shape, np.int64), np.empty(shape, np.bool_),
    )  # fmt: skip
    results = found.lanes, found.columns, found.betas, found.rhos, found.iterations, found.converged
    state, wanted = np.zeros(8, np.int64), np.empty(width, np.int64)
    doubles, marks = aligned_zeros((4, width), np.float64), np.empty((2, width), np.uint8)
    lane_sign, blocks = np.empty(width, np.int8), np.empty(width // LANES, np.int32)
    rows = writable(kernel.rows)
    while _walk_all(
        rows, kernel.slot, tolerance, max_iter, give_up, pair, signs, weights, every, counts, doubles, marks,
        lane_sign, blocks, state, wanted, *results,
    ):  # fmt: skip
        kernel.fetch(wanted[: state[WANTED]])
    return found


def solve_path(
    kernel: Kernel,
    sign: np.ndarray,
    penalties: Sequence[float] | np.ndarray,
    tolerance: float,
    max_iter: int,
    weights: np.ndarray | None = None,
    pair: bool = False,
) -> Path:
    """Solve one binary problem.

    The arguments are those of `solve_paths`; ``sign`` and ``weights`` are (width,), and every C is solved.
    """
    own = None if weights is None else weights[None]
    return solve_paths(kernel, sign[None], penalties, tolerance, max_iter, own, pair=pair)[0]
