"""The statistics of a race: which folds come when, and how often the winner is kept."""

import math

import numpy as np
import pytest

from mpitune.sklearn.search.racing import Race, winning


def test_folds_come_in_an_order_of_their_number_alone() -> None:
    """Not that of the data; the folds of a repeat together. The first look is after a fifth of them and one.

    After two of five a winner is lost in a quarter of data sets in some order, after three in a seventh.
    """
    looks = {2: 2, 3: 2, 4: 3, 5: 3, 6: 3, 10: 3, 11: 4}
    assert {k: len(Race([0, 1], k).next_folds()) // 2 for k in looks} == looks
    orders = [Race(range(3), 20, repeats=4).order for _ in range(2)]
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(20)) and orders[0] != list(range(20))
    assert all(len({fold // 5 for fold in orders[0][n : n + 5]}) == 1 for n in range(0, 20, 5))


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_the_winner_of_equal_candidates_is_kept_and_bad_ones_are_spared(spread: float) -> None:
    """The hardest there is: 25 folds, of which each look may lose the winner; `spread` of the candidates' noise."""
    kept = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = np.exp(spread * rng.normal(0, 1, (40, 1)))
        table = np.append(rng.normal(0, 1, (40, 25)) * noise, np.full((2, 25), 50.0), axis=0) + rng.normal(0, 2, 25)
        race, spent = Race(range(42), 25), [0] * 42
        while pairs := race.next_folds():
            for number, fold in pairs:
                spent[number] += 1
                race.tell(number, float(table[number, fold]))
        kept += int(np.argmin(table.mean(axis=1))) in race.kept()
        assert spent[40:] == [6, 6]
    assert kept >= (54 if spread else 57)


def test_what_is_certain() -> None:
    losses = np.array([[0.1, 0.2], [0.1, 0.2], [9.1, 9.2], [math.inf, 1.0], [0.12, 0.19], [5.0, 5.2]])
    chances = winning(losses, 5)
    assert chances[0] == 1 and chances[3] == 0 and chances[1] == 0.5 and chances[2] < chances[5] < chances[4]


def test_rounding_makes_nobody_lose() -> None:
    """A candidate whose losses are the next floats has as good a chance as the leader."""
    losses = np.array([0.1, 0.2, 0.3])
    assert winning(np.array([losses, np.nextafter(losses, 1), losses + 0.1]), 5)[:2].tolist() == [1.0, 0.5]
