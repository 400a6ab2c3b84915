"""Searches by this package and by scikit-learn, made at random: 37 in make test, 1,063 more in make check.

Any number of others, and of studies of Optuna:

python -m tests.differential --seed 7 --searches 20000
python -m tests.differential.doors --seed 7 --studies 20000
"""

import subprocess
import sys

import pytest

from tests.differential.__main__ import RANKS, run, seed_of
from tests.differential.case import case_of
from tests.differential.doors import difference
from tests.helpers import ROOT, mpirun_command
from tests.mpitune.optuna.made import quiet

SEED = 37
# A process that runs some with workers first starts a server for them; so few tests do.
PARTS = [("here", 0, 20), ("journal", 140, 8), ("workers", 160, 9)]
RANKED = 174, 6
MANY = [("here", 20, 120), ("journal", 148, 12), ("workers", 169, 5), ("workers", 180, 20)]
MANY += [(("workers" if first == 200 else "here"), first, 225) for first in range(200, 1100, 225)]


def _searched(way: str, first: int, count: int) -> None:
    said: list[str] = []
    found = run([seed_of(SEED, first + number) for number in range(count)], [way], said.append)
    assert not found, "\n".join(said)


@pytest.mark.parametrize(("way", "first", "count"), PARTS)
def test_searches_have_scikit_learns_results(way: str, first: int, count: int) -> None:
    _searched(way, first, count)


@pytest.mark.slow  # tests/test_readme.py has a search of two ranks
def test_three_ranks_have_scikit_learns_results() -> None:
    mpirun_command(RANKS)  # skips where there is no mpirun
    first, count = RANKED
    numbers = ["--seed", str(SEED), "--first", str(first), "--searches", str(count)]
    command = [sys.executable, "-m", "tests.differential", "--ways", "ranks", *numbers]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_is_made_of_its_seed_alone() -> None:
    assert [case_of(seed) for seed in range(20)] == [case_of(seed) for seed in range(20)]
    assert len({case_of(seed).text for seed in range(20)}) == 20


@pytest.mark.slow
@pytest.mark.parametrize(("way", "first", "count"), MANY)
def test_many_searches(way: str, first: int, count: int) -> None:
    _searched(way, first, count)


def _studied(way: str, first: int, count: int) -> None:
    quiet()
    assert not list(filter(None, (difference(number, way) for number in range(first, first + count))))


@pytest.mark.parametrize(("way", "first", "count"), [("alone", 0, 12), ("window", 12, 6), ("workers", 20, 4)])
def test_studies_of_optuna_have_the_results_of_their_reference(way: str, first: int, count: int) -> None:
    _studied(way, first, count)


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 150])
@pytest.mark.parametrize("way", ["alone", "window", "workers", "resumed"])
def test_many_studies_of_optuna(way: str, first: int) -> None:
    _studied(way, first, 50)
