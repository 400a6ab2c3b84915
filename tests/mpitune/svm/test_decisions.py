"""Decision values of all solutions at once: plain sums over their support vectors."""

from __future__ import annotations

import numpy as np
import pytest

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.decisions import Support

N_PANELS = 11  # an odd number, and more than a group
CUTS = np.array([0, 15, 33, 50])  # where the support vectors of each class begin
N_CLASSES, N_SUPPORT = len(CUTS) - 1, int(CUTS[-1])


def support(weights: list[np.ndarray], places: list[np.ndarray], share: bool = False) -> Support:
    widths = np.array([of.shape[1] for of in weights])
    first = np.cumsum([0, *map(len, places)])
    problems = np.concatenate(places), first, widths, np.concatenate([of.ravel() for of in weights])
    return Support.made(np.arange(N_SUPPORT), CUTS, np.arange(widths.sum()) / 3, problems, share)


def panels_of(rng: np.random.Generator) -> np.ndarray:
    panels = aligned_zeros((N_PANELS, N_SUPPORT, LANES))
    panels[:] = rng.normal(size=panels.shape)
    return panels


@pytest.mark.parametrize("width", [1, 4])
def test_values_are_sums_over_the_support_vectors(width: int) -> None:
    """Each solution of a problem is supported by half of the samples that support the one before."""
    rng = np.random.default_rng(width)
    places = [np.flatnonzero(rng.random(N_SUPPORT) < 0.8) for _ in range(4)]
    weights = [rng.normal(size=(len(some), width)) for some in places]
    for of in weights:
        of[rng.random(of.shape) >= 0.5 ** np.arange(width)] = 0
    panels = panels_of(rng)
    every = support(weights, places)
    kernel = panels.transpose(0, 2, 1).reshape(-1, N_SUPPORT)
    plain = np.vstack([(kernel[:, where] @ of).T for of, where in zip(weights, places, strict=True)])
    expected = plain - every.rhos[: len(plain), None]
    np.testing.assert_allclose(every.values(panels), expected, rtol=1e-6, atol=1e-6)


def test_what_most_of_a_class_add_alike_is_summed_once() -> None:
    """All weights of a problem's first solution are the same, most of the second, few of the third."""
    rng = np.random.default_rng(0)
    places = [np.delete(np.arange(N_SUPPORT), m) for m in range(4)]  # each problem lacks a sample
    weights = [rng.normal(size=(N_SUPPORT - 1, 3)) for _ in places]
    for m, of in enumerate(weights):
        number = np.arange(len(of))
        for s, same in enumerate((number >= 0, number % 4 > 0, number % 4 == 0)):
            of[same, s] = (m + 1) / 2
    panels = panels_of(rng)
    plain, shared = (support(weights, places, share) for share in (False, True))
    np.testing.assert_allclose(shared.values(panels), plain.values(panels), rtol=1e-12, atol=1e-12)
    wanted = np.repeat(np.arange(1, 5) / 2, 3) * np.tile([1, 1, 0], 4)
    assert np.array_equal(shared.shares, np.tile(wanted[:, None], N_CLASSES))
    _, supporting, own = support([of[:, :1] for of in weights], places, share=True).terms
    assert len(supporting) == len(own) == len(places) + N_SUPPORT, "what each lacks, and the sums over classes"
    *_, own = support([of[:, 2:] for of in weights], places, share=True).terms
    assert len(own) == 4 * (N_SUPPORT - 1), "sums that nobody has a share of are left out"
