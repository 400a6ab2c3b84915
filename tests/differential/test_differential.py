"""Searches by this package and by scikit-learn, and studies of Optuna, made at random.

They are the same in each run, and more in `make check`. Any number of others:

python -m tests.differential --seed 7 --searches 20000
python -m tests.differential.doors --seed 7 --studies 20000
"""

import pytest

from tests.differential.__main__ import run, seed_of
from tests.differential.case import case_of
from tests.differential.doors import difference
from tests.mpitune.optuna.made import quiet

SEED, MORE = 37, 1000
# A process that runs some with workers first starts a server for them; so few tests do.
SOME = [("here", 5), ("journal", 2), ("workers", 1)]
MANY = [("here", 60), ("journal", 12), ("workers", 15)]
STUDIES = [("alone", 3), ("window", 2), ("workers", 1)]
MANY_STUDIES = [("alone", 15), ("window", 15), ("workers", 5), ("resumed", 8)]


def _searched(seed: int, way: str, count: int) -> None:
    said: list[str] = []
    found = run([seed_of(seed, number) for number in range(count)], [way], said.append)
    assert not found, "\n".join(said)


@pytest.mark.parametrize(("way", "count"), SOME)
def test_searches_have_scikit_learns_results(way: str, count: int) -> None:
    _searched(SEED, way, count)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "count"), MANY)
def test_many_searches(way: str, count: int) -> None:
    _searched(MORE, way, count)


def test_a_case_is_made_of_its_seed_alone() -> None:
    assert [case_of(seed) for seed in range(20)] == [case_of(seed) for seed in range(20)]
    assert len({case_of(seed).text for seed in range(20)}) == 20


def _studied(first: int, way: str, count: int) -> None:
    quiet()
    assert not list(filter(None, (difference(number, way) for number in range(first, first + count))))


@pytest.mark.parametrize(("way", "count"), STUDIES)
def test_studies_of_optuna_have_the_results_of_their_reference(way: str, count: int) -> None:
    _studied(0, way, count)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "count"), MANY_STUDIES)
def test_many_studies_of_optuna(way: str, count: int) -> None:
    _studied(MORE, way, count)
