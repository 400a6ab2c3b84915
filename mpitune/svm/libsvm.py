"""What is left to LIBSVM, scikit-learn's own solver, and how it is asked.

`SVC.fit` and `fit_grid` both ask here, so a search and its refit are of one solver. Left are

- whole fits whose answer is not one alone: a kernel that is not positive semidefinite or not known to be, as a given
  matrix, a tolerance above the default, a limit of iterations;
- whole fits with ``probability=True``, which scikit-learn will remove, and to sparse samples;
- whole fits whose numbers this solver is not made for: an infinite C, weights that are not positive and finite, samples
  or kernel values too large or too small for float32;
- whole fits that LIBSVM computes so coarsely that labels show how it rounds: its kernel is kept in float32. Samples are
  much nearer to each other than to the origin, from where it takes squares; or kernel values are all nearly the same;
  or multipliers are so large that what is lost of the kernel moves decision values by more than the default tolerance,
  or so small that their sums with 1 lose them (these two in a grid pair by pair, as the next);
- else single pairs of classes whose threshold is not determined: no multiplier is between its bounds, and more
  thresholds than the tolerance allows are optimal, so LIBSVM's depends on how it rounds along its way, unless no solver
  can end elsewhere (see `solver/walk.py`); or the threshold is 0 within the tolerance, which then decides the labels of
  samples that have little to do with others. In a grid they are left to it where a label or an attribute asks for them;
  see `share`.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as ScikitSVC  # now, as `mpitune --sklearn` gives the name another meaning

from mpitune._jit import padded
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import Samples
from mpitune.svm.solver import replica
from mpitune.svm.solver.binary import Paths

TOLERANCE = 1e-3  # LIBSVM's default; a larger one has many answers
LEAST, MOST = 1e-30, 1e30  # of squared lengths, kernel values and gamma: float32 has their products
FLAT = 1e-4  # of the largest kernel value: how far values must be apart, which is a thousand times float32's rounding
SOME = 200  # samples of which that is computed
ROUNDING = 2.0**-25  # of the largest kernel value: what float32 loses of one
CACHED = 1 << 19  # bytes of kernel values that are computed at a time
FAINT = 1e-9  # the least length of the vector of multipliers, times the largest kernel value


def by_parameters(model: ScikitSVC) -> bool:
    """Whether every fit of a model with these parameters is left to LIBSVM."""
    indefinite = model.kernel in ("sigmoid", "precomputed") or (model.kernel == "poly" and model.coef0 < 0)
    ends_early = model.tol > TOLERANCE or model.max_iter != -1
    other = callable(model.kernel) or model.probability is True
    return bool(other or indefinite or ends_early or not np.isfinite(model.C))


def by_weights(weights: np.ndarray) -> bool:
    """Whether fits with these weights of samples, one for each times its class's, are left to LIBSVM."""
    return weights.ndim != 1 or not bool(((weights > 0) & np.isfinite(weights)).all())


def by_samples(x: np.ndarray, samples: Samples, function: KernelFunction) -> bool:
    """Whether fits to samples (n, n_features) are left to LIBSVM."""
    if function.name == "rbf":
        largest = float(samples.sq_norms.max())
        length = np.linalg.norm(samples.centre) + np.sqrt(largest)
        usual = LEAST < function.gamma < MOST and LEAST < largest < MOST
        lost = function.gamma * float(length) ** 2 * np.finfo(np.float64).eps > ROUNDING
        return bool(lost or not (usual and function.gamma * samples.spread > FLAT))
    with np.errstate(over="ignore", invalid="ignore"):
        largest = scale(x, function)
        some = x[:: -(-len(x) // SOME)]
        spread = function.diagonal(some).mean() - function(some, some).mean()
        return not (LEAST < largest < MOST and spread > FLAT * largest)


def scale(x: np.ndarray, function: KernelFunction) -> float:
    """The largest kernel value of samples, as of `by_samples`."""
    if function.name == "rbf":
        return 1.0
    return float(np.abs(function.diagonal(x)).max())


def coarse(paths: Paths, largest: float) -> np.ndarray:
    """Where LIBSVM computes too coarsely for its answer to be another solver's, bool (n, n_penalties).

    ``largest`` is `scale` of the samples.
    """
    own = (betas[:, :lanes] for betas, lanes in zip(paths.betas, paths.lanes.tolist(), strict=True))
    sizes = np.array([np.sqrt(np.einsum("ct,ct->c", betas, betas)) for betas in own]) * largest
    return np.asarray((sizes * ROUNDING > TOLERANCE) | (sizes < FAINT))


class Pair:
    """Two classes, of whose samples training sets are solved as LIBSVM does.

    Args:
        x: float64 (n, n_features), all samples.
        members: int64, those of the two classes.
        products: float64, scalar products of these, as of `replica.products_of`; without them LIBSVM itself is asked.
    """

    def __init__(
        self, x: np.ndarray, members: np.ndarray, function: KernelFunction, products: np.ndarray | None
    ) -> None:
        self._x, self._function, self._products = x, function, products
        self._lane_of = np.full(len(x), -1)
        self._lane_of[members] = np.arange(len(members))

    @functools.cached_property
    def _kernel(self) -> tuple[np.ndarray, np.ndarray]:
        """LIBSVM's values of the kernel, float32 (lanes, lanes), and its diagonal, float64."""
        assert self._products is not None
        products, count = self._products, len(self._products)
        lanes, squares = padded(count), products.diagonal().copy()
        rows, diagonal = aligned_zeros((lanes, lanes)), aligned_zeros((lanes,), np.float64)
        step = max(1, CACHED // (8 * count))
        for top in range(0, count, step):
            end = min(top + step, count)
            values = kernel_values(products[top:end, :end], squares[top:end], squares[:end], self._function)
            rows[top:end, :end] = values
            rows[:top, top:end] = rows[top:end, :top].T
        diagonal[:count] = kernel_values(squares, squares, squares, self._function)
        return rows, diagonal

    def solved(
        self, indices: np.ndarray, first: int, bounds: np.ndarray, tolerance: float, shrinking: bool, limit: int = -1
    ) -> tuple[np.ndarray, float, int, bool]:
        """LIBSVM's solution, as it has it among more classes.

        Args:
            indices: int64 (m,), samples of the positive class, then of the other.
            first: how many are of the positive class.
            bounds: float64 (m,), of their multipliers.
            tolerance: LIBSVM's ``tol``.
            shrinking: LIBSVM's option.
            limit: iterations after which it is given up; -1 for none.

        Returns:
            y * alpha, float64 (m,); the threshold; how many iterations were made; whether a multiplier may have been at
            its bound on the way.
        """
        signs = np.where(np.arange(len(indices)) < first, 1.0, -1.0)
        if self._products is None:
            return *by_libsvm(self._x[indices], signs, bounds, self._function, tolerance, shrinking, limit), True
        lanes, (rows, diagonal) = self._lane_of[indices], self._kernel
        sign, most = aligned_zeros((2, len(rows)), np.float64)
        sign[lanes], most[lanes] = signs, bounds
        state = replica.begun(rows, diagonal, sign, most, lanes)
        rho, iterations, reached = replica.solve_as_libsvm(state, tolerance, shrinking, limit)
        return signs * state.alpha[lanes], rho, iterations, reached


def kernel_values(
    products: np.ndarray, squares: np.ndarray, others: np.ndarray, function: KernelFunction
) -> np.ndarray:
    """Values of the kernel, float64, from scalar products, rounded as LIBSVM does.

    ``squares`` and ``others`` are products of the samples of its rows, and of its columns, with themselves.
    """
    if function.name == "linear":
        return products
    if function.name == "rbf":
        values = products * -2.0
        values += squares[:, None] + others if products.ndim > 1 else squares + others
        values *= -function.gamma
        return np.exp(values, out=values)
    values, base, exponent = np.ones_like(products), function.gamma * products + function.coef0, function.degree
    while exponent:
        if exponent % 2:
            values *= base
        base *= base
        exponent //= 2
    return values


def by_libsvm(
    x: np.ndarray,
    signs: np.ndarray,
    bounds: np.ndarray,
    function: KernelFunction,
    tolerance: float,
    shrinking: bool,
    limit: int,
) -> tuple[np.ndarray, float, int]:
    """As `Pair.solved`, by LIBSVM itself, of samples (m, n_features)."""
    kernel: dict[str, Any] = {"kernel": function.name, "degree": function.degree, "coef0": function.coef0}
    model = ScikitSVC(**kernel, tol=tolerance, shrinking=shrinking, max_iter=limit)
    model.classes_, model.class_weight_, model._gamma = np.arange(2), np.ones(2), function.gamma
    model._effective_probability = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = (signs < 0).astype(np.float64)
        model._dense_fit(np.ascontiguousarray(x, np.float64), labels, bounds, 0, function.name, random_seed=0)
    betas = np.zeros(len(x))
    betas[model.support_] = model.dual_coef_[0]
    return betas, -float(model.intercept_[0]), int(np.sum(model._num_iter))


@functools.cache
def is_faithful() -> bool:
    """Whether `replica` has LIBSVM's bits here: a compiler of either may fuse products and sums."""
    x, every = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60)
    function, bounds = KernelFunction.of("rbf", 0.3, 0, 0.0), np.full(60, 30.0)
    ours = Pair(x, every, function, replica.products_of(x)).solved(every, 25, bounds, TOLERANCE, True)
    theirs = Pair(x, every, function, None).solved(every, 25, bounds, TOLERANCE, True)
    return bool((ours[0] == theirs[0]).all()) and ours[1:3] == theirs[1:3]
