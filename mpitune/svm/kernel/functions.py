"""Kernel functions in double precision, and their values between samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NAMES = ("rbf", "linear", "poly", "sigmoid", "precomputed")  # the last two are left to LIBSVM


@dataclass(frozen=True)
class KernelFunction:
    """A kernel function with scikit-learn's names and meanings of its parameters.

    Two that are equal have the same values: parameters that the function ignores are set to zero by `of`.
    """

    name: str
    gamma: float = 0.0
    degree: int = 0
    coef0: float = 0.0

    @classmethod
    def of(cls, name: str, gamma: float, degree: int, coef0: float) -> KernelFunction:
        """A kernel without the parameters that it does not use. Raises ValueError for a name that is not in NAMES."""
        if name not in NAMES:
            raise ValueError(f"kernel is {name!r}: one of {', '.join(NAMES)} is needed")
        return cls(
            name,
            0.0 if name in ("linear", "precomputed") else float(gamma),
            int(degree) if name == "poly" else 0,
            float(coef0) if name in ("poly", "sigmoid") else 0.0,
        )

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Values (len(a), len(b)) between samples (any, n_features), all float64. Not for kernels left to LIBSVM."""
        values: np.ndarray = a @ b.T
        if self.name == "linear":
            return values
        if self.name == "rbf":
            values *= 2 * self.gamma
            values -= self.gamma * np.einsum("ij,ij->i", a, a)[:, None]
            values -= self.gamma * np.einsum("ij,ij->i", b, b)
            np.minimum(values, 0.0, out=values)
            return np.exp(values, out=values)
        values *= self.gamma
        values += self.coef0
        return values**self.degree

    def diagonal(self, x: np.ndarray) -> np.ndarray:
        """Values (n,) between each sample of (n, n_features) and itself."""
        if self.name == "rbf":
            return np.ones(len(x))
        values: np.ndarray = np.einsum("ij,ij->i", x, x)
        if self.name == "linear":
            return values
        return np.asarray((self.gamma * values + self.coef0) ** self.degree)
