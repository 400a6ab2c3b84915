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
  or so small that their sums with 1 lose them;
- else single pairs of classes whose threshold is not determined: no multiplier is between its bounds, and more
  thresholds than the tolerance allows are optimal, so LIBSVM's depends on how it rounds along its way; or the threshold
  is 0 within the tolerance, which then decides the labels of samples that have little to do with others.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as ScikitSVC  # now, as `mpitune --sklearn` gives the name another meaning

from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import Samples
from mpitune.svm.solver.binary import Paths

TOLERANCE = 1e-3  # LIBSVM's default; a larger one has many answers
LEAST, MOST = 1e-30, 1e30  # of squared lengths, kernel values and gamma: float32 has their products
FLAT = 1e-4  # of the largest kernel value: how far values must be apart, which is a thousand times float32's rounding
SOME = 200  # samples of which that is computed
ROUNDING = 2.0**-25  # of the largest kernel value: what float32 loses of one
FAINT = 1e-9  # the least length of the vector of multipliers, times the largest kernel value
# Tolerances from which on a gap between thresholds counts where all multipliers have one bound. If not, sums of bounds
# differ by rounding, so that LIBSVM leaves one multiplier free; if they have, it does so once in a thousand times.
EVEN = 10


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


@dataclass(frozen=True)
class Pair:
    """Two classes of a training set, for LIBSVM.

    Attributes:
        x: float64 (m, n_features), samples of the positive class, then of the other.
        first: how many are of the positive class.
        sample_weight: float64 (m,).
        class_weight: float64 (2,).
    """

    x: np.ndarray
    first: int
    function: KernelFunction
    sample_weight: np.ndarray
    class_weight: np.ndarray

    def solved(self, penalty: float, tolerance: float, shrinking: bool) -> tuple[np.ndarray, float, int]:
        """LIBSVM's solution for C = ``penalty``, as it has it among more classes.

        Returns y * alpha, float64 (m,); the threshold; how many iterations were made.
        """
        function = self.function
        model = ScikitSVC(
            C=penalty, kernel=function.name, degree=function.degree, coef0=function.coef0, tol=tolerance,
            shrinking=shrinking,
        )  # fmt: skip
        labels = np.zeros(len(self.x))
        labels[self.first :] = 1.0
        model.classes_, model.class_weight_, model._gamma = np.arange(2), self.class_weight, function.gamma
        model._effective_probability = False
        samples = np.ascontiguousarray(self.x, np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model._dense_fit(samples, labels, self.sample_weight, 0, function.name, random_seed=0)
        betas = np.zeros(len(self.x))
        betas[model.support_] = model.dual_coef_[0]
        return betas, -float(model.intercept_[0]), int(np.sum(model._num_iter))
