"""A value is known by what it is: pairs that are equal, and pairs that only print the same."""

from __future__ import annotations

import base64
import decimal
import enum
import functools
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas
import pytest
import scipy.sparse
import scipy.stats
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from mpitune import Choice, Constant, Experiment, RunOptions, Trial, When, one_round, per_trial, run_study, search
from mpitune.errors import UsageError
from mpitune.identity import header_text, identity, label_of
from mpitune.optimize import door
from mpitune.optuna import optimizing
from mpitune.sklearn import GridSearchCV


class Held:
    """What it holds is not in its repr."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> Any:
        return self.held


class Colour(enum.Enum):
    RED = 1


def adding(held: Any) -> Callable[[Any], Any]:
    def add(value: Any) -> Any:
        return value, held

    return add


def scaled(X: Any, w: Any = None) -> Any:
    return X


def in_itself(held: Any) -> list[Any]:
    held = [held]
    held.append(held)
    return held


def of_lambda(n: int) -> Any:
    return (lambda x: x + 1) if n else (lambda x: x + 2)


def of_class(n: int) -> type:
    @dataclass
    class Multiplies(BaseEstimator):
        """As a factory makes it."""

        power: int = 1

        def __call__(self, value: int) -> int:
            return value * n

        @property
        def twice(self) -> int:
            return super().__hash__()

    return Multiplies


def typed(one: str, other: str) -> Callable[[int], Any]:
    """Lambdas without a source."""
    return lambda n: eval(f"lambda x: {(one, other)[n]}")


def long_array(n: int) -> np.ndarray:
    array = np.ones(2000)
    array[1000] += n
    return array


def parts() -> dict[str, Callable[[int], Any]]:
    """Values by kind, made of a number: 0 and 1 are two values, mostly of one text."""
    np_types = (np.float64, np.float32, np.int64, np.bool_)
    return {
        "number": lambda n: (1, 1.0, True, np.int64(1), "1", np.float64(1))[n],
        "long number": lambda n: -(10**400) + n,
        "longer number": lambda n: [10**5000 + n],
        "complex": lambda n: (complex(1, math.inf), "(1+infj)")[n],
        "endless in a list": lambda n: ([math.nan], "[nan]")[n],
        "zero": lambda n: (0.0, -0.0)[n],
        "endless": lambda n: (math.nan, -math.nan)[n],
        "type": lambda n: np_types[n](1),
        "array": long_array,
        "dtype": lambda n: np.ones(3, ("f8", "f4")[n]),
        "shape": lambda n: np.ones(((1500, 2), (2, 1500))[n]),
        "objects": lambda n: np.array([Held(n), None], object),
        "dict": lambda n: {f"parameter {i}": 1 + n * (i == 19) for i in range(20)},
        "order": lambda n: dict([("a", 1), ("b", 2)][:: 1 - 2 * n]),
        "tuple": lambda n: (*range(99), n),
        "list or tuple": lambda n: ((1, 2), [1, 2])[n],
        "set": lambda n: {"a", "b", "c" * (n + 1), "d" * 300},
        "text": lambda n: "a" * 300 + str(n),
        "object": Held,
        "method": lambda n: Held(n).method,
        "function": adding,
        "lambda": of_lambda,
        "function of a branch": lambda n: functools.wraps(adding(0))(typed("x", "-x")(n)),
        "name in a lambda": typed("x.mean()", "x.sum()"),
        "lambda in a lambda": typed("[i + 1 for i in x]", "[i + 2 for i in x]"),
        "tuple in a lambda": typed("x in (1, 2)", "x in (1, 3)"),
        "local class": of_class,
        "instance of it": lambda n: of_class(n)(1),
        "class by type": lambda n: type("Empty", (), {"n": n, "__slots__": ("a",)}),
        "cached": lambda n: functools.lru_cache(adding(n)),
        "partial": lambda n: functools.partial(scaled, w=long_array(n)),
        "class": lambda n: (Held, Ridge)[n],
        "path": lambda n: Path(("a", "b")[n]),
        "enum": lambda n: (Colour.RED, str(Colour.RED))[n],
        "none": lambda n: (None, "None")[n],
        "decimal": lambda n: decimal.Decimal(("1", "1.0")[n]),
        "column": lambda n: pandas.DataFrame({"a": [1, None], "b": [("x", 1), "y"[n:]]}),
        "missing": lambda n: pandas.Series([1, None], dtype=("Int64", "float")[n]),
        "frame": lambda n: pandas.DataFrame({"a": long_array(n), "b": "x"}),
        "series": lambda n: pandas.Series(["a", "b"], dtype=("category", object)[n]),
        "sparse": lambda n: scipy.sparse.csr_matrix(long_array(n)),
        "distribution": lambda n: scipy.stats.norm(n, 1),
        "source of numbers": lambda n: np.random.default_rng(n),
        "state": lambda n: np.random.RandomState(n),
        "estimator": lambda n: make_pipeline(StandardScaler(), FunctionTransformer(kw_args={"w": long_array(n)})),
        "in itself": lambda n: in_itself(n),
    }  # fmt: skip


def pairs(n: int, seed: int) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any], bool]]:
    """Pairs of makers of values, some deep in others, with whether the values are the same."""
    draw, kinds = random.Random(seed), parts()
    for _ in range(n):
        name, same, depth = draw.choice([*kinds]), draw.random() < 0.5, draw.choice((0, 0, 0, 1, 2))
        one = draw.randrange(2)
        other, within = one if same else 1 - one, [draw.randrange(5) for _ in range(depth)]

        def made(n: int, name: str = name, within: list[int] = within) -> Any:
            value = kinds[name](n)
            for way in within:
                value = ([value], (0, value), {"a": value, "b": 1}, Held(value), adding(value))[way]
            return value

        yield name, functools.partial(made, one), functools.partial(made, other), same


def test_pairs_are_told_apart_by_what_they_are() -> None:
    """The texts of most would not tell them."""
    alike = 0
    for name, one, other, same in pairs(400, seed=1):
        assert (identity(one()) == identity(other())) is same, name
        assert (header_text(one()) == header_text(other())) is same, name
        label, second = label_of(one()), label_of(other())
        assert (repr(label) == repr(second)) is same, name
        assert type(label) in (bool, int, float, str) and (len(str(label)) < 250 or label == one())
        alike += not same and str(label).partition(" #")[0] == str(second).partition(" #")[0]
    assert alike > 80


@pytest.mark.slow
def test_each_process_has_the_same() -> None:
    """Whatever the order of its sets and the places of its objects."""
    code = (
        "from tests.mpitune.test_identity import parts, header_text\n"
        "print([header_text(make(1)) for make in parts().values()])"
    )
    texts = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and str([header_text(make(1)) for make in parts().values()]) in texts[0]


@pytest.mark.parametrize("text", ["", "2023-obj", "3 adj", "(", "j", "1", "(1+1)", "None!"])
def test_a_text_stands_for_itself_where_no_other_value_is_written_so(text: str) -> None:
    assert Choice(text, 10**5000, -(10**400), 1j).at(0) == text


def test_what_has_no_identity_is_refused_in_one_line() -> None:
    with pytest.raises(
        UsageError, match=r"^<_io.TextIOWrapper .* has no content that another .*: give a text"
    ) as error:
        identity({"log": sys.__stdout__}["log"])
    assert "\n" not in str(error.value) and header_text(sys.__stdout__).endswith(" #?")
    with pytest.raises(UsageError, match="has no content"):
        identity([Held(n for n in ())])


def test_tables_have_digits_only_where_two_options_would_have_one_text(tmp_path: Path) -> None:
    space = {"x": Choice(Held(1), Held(2)), "y": Choice(scaled), "z": Choice(adding(1), "add")}
    searched_here(space, tmp_path / "r")
    table, page = ((tmp_path / "r" / name).read_text() for name in ("trials.csv", "report.html"))
    cells = [line.split(",")[2:5] for line in table.splitlines()[1:]]
    (one, name, add), (two, *_) = cells[0], cells[2]
    assert one != two and one.startswith("<tests.mpitune.test_identity.Held object> #") and name == "scaled"
    assert add.startswith("add #") and cells[1][2] == "add"
    (data,) = re.findall(r'class="data">([^<]*)<', page)
    drawn = gzip.decompress(base64.b64decode(data)).decode()
    assert all(json.dumps(text) in drawn for text in (one, two, add, "scaled", "add"))


@pytest.mark.parametrize("door", ["parameter", "estimator", "choice", "constant"])
def test_a_folder_refuses_what_has_no_identity(door: str, tmp_path: Path) -> None:
    lock = threading.Lock()
    lock_holder = type("Keeps", (Held,), {"__deepcopy__": lambda self, memo: self})(lock)
    with pytest.raises(UsageError, match="Keeps object.* has no content that .*: give a text") as error:
        DOORS[door](lock_holder, tmp_path / "r", 0)
    assert "\n" not in str(error.value) and not (tmp_path / "r").exists()


def answer() -> float:
    """What each evaluation says: of which value it is, also in a worker."""
    return float(os.environ.get("ANSWER", 1))


X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])


class Answers(BaseEstimator):
    """Its score is the answer, whatever its value is."""

    def __init__(self, value: Any = None, other: int = 0) -> None:
        self.value, self.other = value, other

    def fit(self, X: Any, y: Any) -> Answers:
        return self

    def score(self, X: Any, y: Any) -> float:
        return answer()


@dataclass(frozen=True)
class Setting(Experiment):
    value: Any

    def searches(self) -> Any:
        yield one_round([Trial("t", {})])

    def objective(self, worker: Any) -> Any:
        return per_trial(lambda trial: {"loss": answer()})


def searched_here(space: Any, folder: Path, **more: Any) -> float:
    objective = lambda trial: answer()  # noqa: E731
    how: dict[str, Any] = {"strategy": "grid", "minimize": "loss", "workers": 0, "gpu": "none", **more}
    return search(objective, space, results=folder, **how).trials[0].values["loss"]


def of_scikit_learn(estimator: Any, grid: Any, folder: Path) -> float:
    found = GridSearchCV(estimator, grid, cv=2, results=folder, workers=0, refit=False, error_score="raise").fit(X, Y)
    return float(found.cv_results_["mean_test_score"][0])


def of_optuna(value: Any, folder: Path) -> float:
    sampler = optuna.samplers.PartialFixedSampler({"x": value}, optuna.samplers.RandomSampler(seed=1))
    door.studies_in.clear()  # as in another process
    study = optuna.create_study(sampler=sampler)
    options = RunOptions(workers=0, gpu="none", quiet=True, results=folder)
    optimizing.optimize(study, lambda trial: trial.suggest_float("y", 0, 1) * 0 + answer(), 1, options=options)
    return study.trials[0].values[0]


def of_experiment(value: Any, folder: Path) -> float:
    ((_, result),) = run_study(Setting(value), RunOptions(workers=0, gpu="none", quiet=True, results=folder))
    return result.values["loss"]


DOORS: dict[str, Callable[[Any, Path, int], float]] = {
    "parameter": lambda value, folder, turn: of_scikit_learn(Answers(), {"value": [value]}, folder),
    "estimator": lambda value, folder, turn: of_scikit_learn(Answers(value), {"other": [1]}, folder),
    "choice": lambda value, folder, turn: searched_here({"x": Choice(value, "another")}, folder),
    "constant": lambda value, folder, turn: searched_here({"x": Constant(value), "y": [1, 2]}, folder),
    "condition": lambda value, folder, turn: searched_here(
        {"x": Choice(value, "b"), "y": When([1], x=(value,))}, folder
    ),
    "adapt": lambda value, folder, turn: searched_here(
        {"x": Choice(value, *["another", "third"][: 1 + turn])}, folder, adapt=bool(turn)
    ),
    "optuna": lambda value, folder, turn: of_optuna(value, folder),
    "experiment": lambda value, folder, turn: of_experiment(value, folder),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_never_answers_for_another_value(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is the same has the known answer. One of the same text has its own, or is refused in one line."""
    for number, (one, same, other) in enumerate(
        ((lambda: complex(1, math.inf),) * 2 + (lambda: "(1+infj)",), (lambda: [Held(0)],) * 2 + (lambda: [Held(1)],))
    ):
        for answer, make in (("1", one), ("2", same), ("3", other)):
            monkeypatch.setenv("ANSWER", answer)
            try:
                found = DOORS[door](make(), tmp_path / str(number), int(answer != "1"))
            except UsageError as error:
                assert make is other and "\n" not in str(error)
            else:
                assert found == (3 if make is other else 1)
