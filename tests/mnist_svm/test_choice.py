"""Which point a grid search chooses, and what it says of how sure that is."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from mnist_svm.points import best_point

NAN = float("nan")


def errors_of(*points: tuple[int, int, list[float]], folds: int = 3, n: int = 3) -> np.ndarray:
    errors = np.full((folds, n, n), 0.9)
    for g, c, values in points:
        errors[:, g, c] = values
    return errors


def test_of_equal_points_the_smaller_penalty_then_the_smaller_gamma_wins() -> None:
    assert best_point(errors_of((0, 2, [0.1] * 3), (2, 1, [0.1] * 3))) == (2, 1)
    assert best_point(errors_of((2, 1, [0.1] * 3), (1, 1, [0.1] * 3))) == (1, 1)


def test_the_order_of_the_folds_decides_no_tie() -> None:
    values = [0.1, 0.2, 0.3]  # whose sum depends on the order, in the last bit
    for order in permutations(values):
        assert best_point(errors_of((1, 0, values), (0, 1, list(order)))) == (1, 0)
        assert best_point(errors_of((1, 0, list(order)), (0, 1, values))) == (1, 0)


def test_a_point_with_a_failed_fold_never_wins() -> None:
    assert best_point(errors_of((0, 0, [NAN, 0, 0]), (2, 2, [0.5] * 3))) == (2, 2)
    assert best_point(np.full((3, 2, 2), NAN)) is None
    assert best_point(np.zeros((5, 1, 1))) == (0, 0)
