"""Decision values from tiles of solutions: plain sums, whatever tiles they are cut into."""

from __future__ import annotations

import numpy as np
import pytest

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.decisions import SIZES, Support

N_PANELS = 11  # an odd number, and more than a group
CUTS = np.array([0, 15, 33, 50])  # where the support vectors of each class begin
N_CLASSES, N_SUPPORT = len(CUTS) - 1, int(CUTS[-1])


def support(weights: list[np.ndarray], places: list[np.ndarray], share: bool = False) -> Support:
    widths = np.array([of.shape[1] for of in weights])
    first = np.cumsum([0, *map(len, places)])
    problems = np.concatenate(places), first, widths, np.concatenate([of.ravel() for of in weights])
    return Support.made(np.arange(N_SUPPORT), CUTS, np.arange(widths.sum()) / 3, problems, share)


def problem(rng: np.random.Generator, width: int, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a problem's solutions, each supported by a share of its samples; and the samples' numbers."""
    places = np.flatnonzero(rng.random(N_SUPPORT) < 0.8)
    weights = rng.normal(size=(len(places), width))
    weights[rng.random(weights.shape) >= shares] = 0
    return weights, places


@pytest.mark.parametrize("width", range(1, 10))
@pytest.mark.parametrize("falls", [1.0, 0.5])
def test_values_are_sums_over_the_support_vectors(width: int, falls: float) -> None:
    rng = np.random.default_rng(width)
    shares = falls ** np.arange(width)
    weights, places = zip(*(problem(rng, width, shares) for _ in range(4)), strict=True)
    panels = aligned_zeros((N_PANELS, N_SUPPORT, LANES))
    panels[:] = rng.normal(size=panels.shape)
    factors = rng.random((N_CLASSES, N_PANELS * LANES))
    every = support(list(weights), list(places))
    values = every.values(panels, factors)
    kernel = panels.transpose(0, 2, 1).reshape(-1, N_SUPPORT) * np.repeat(factors, np.diff(CUTS), axis=0).T
    plain = np.vstack([(kernel[:, where] @ of).T for of, where in zip(weights, places, strict=True)])
    np.testing.assert_allclose(values, plain - every.rhos[:, None], rtol=1e-6, atol=1e-6)
    for m in range(4):  # the same bits for each solution alone
        for s in range(width):
            alone = support([weights[m][:, [s]]], [places[m]])
            alone.rhos[:] = every.rhos[m * width + s]
            assert alone.values(panels, factors)[0].tobytes() == values[m * width + s].tobytes()


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [
        ([1, 1, 1, 1], [4]),
        ([1, 0.2, 0.2, 0.1], [1, 1, 2]),
        ([1, 1, 0.4, 0.4], [2, 2]),
        ([1] * 5, [1, 4]),
        ([1] * 3, [1, 2]),
    ],
)
def test_solutions_with_few_support_vectors_are_computed_apart(shares: list[float], sizes: list[int]) -> None:
    """Supported by the first of the samples, as many as their share."""
    weights = (np.arange(N_SUPPORT)[:, None] < N_SUPPORT * np.array(shares)).astype(np.float64)
    assert sorted(support([weights], [np.arange(N_SUPPORT)]).tiles[0]) == sizes
    assert set(sizes) <= set(SIZES)


def test_what_most_of_a_class_add_alike_is_summed_once() -> None:
    """All weights of a problem's first solution are the same, most of the second, few of the third."""
    rng = np.random.default_rng(0)
    places = [np.delete(np.arange(N_SUPPORT), m) for m in range(4)]  # each problem lacks a sample
    weights = [rng.normal(size=(N_SUPPORT - 1, 3)) for _ in places]
    for m, of in enumerate(weights):
        number = np.arange(len(of))
        for s, same in enumerate((number >= 0, number % 4 > 0, number % 4 == 0)):
            of[same, s] = (m + 1) / 2
    panels = aligned_zeros((N_PANELS, N_SUPPORT, LANES))
    panels[:] = rng.normal(size=panels.shape)
    plain, shared = (support(weights, places, share) for share in (False, True))
    np.testing.assert_allclose(shared.values(panels), plain.values(panels), rtol=1e-12, atol=1e-12)
    wanted = np.repeat(np.arange(1, 5) / 2, 3) * np.tile([1, 1, 0], 4)
    assert np.array_equal(shared.shares, np.tile(wanted[:, None], N_CLASSES))
    alone = support([of[:, :1] for of in weights], places, share=True)
    _, _, _, _, _, supporting, own = alone.tiles
    assert len(supporting) == len(own) == len(places) + N_SUPPORT, "what each lacks, and the sums over classes"
    different = support([of[:, 2:] for of in weights], places, share=True)
    assert len(different.tiles[6]) == 4 * (N_SUPPORT - 1), "sums that nobody has a share of are left out"
