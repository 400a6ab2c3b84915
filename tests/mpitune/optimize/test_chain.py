"""Chains: each link once for each key and node, the same results on any layout, wherever values are kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune import Choice, Float, Int
from mpitune.errors import UsageError
from mpitune.optimize import Chain, Link
from mpitune.optimize.strategies import Racing
from tests.mpitune.optimize.chains import FILE, features, model, powers, stepped
from tests.mpitune.optimize.objectives import searched

SCRIPT = ("-m", "tests.mpitune.optimize.chains")


def ran(program: Any, file: Path, ranks: int = 0, **how: Any) -> tuple[str, Counter[str]]:
    """What a script prints on each rank, all alike, and how often each link was computed."""
    file.unlink(missing_ok=True)
    done = program(*SCRIPT, json.dumps(how), ranks=ranks, env={FILE: str(file)})
    (line,) = set(done.stdout.splitlines())
    return line, Counter(text.split()[0] for text in file.read_text().splitlines())


@pytest.mark.slow
def test_a_link_is_computed_once_for_each_key_and_node_and_results_do_not_depend_on_the_layout(
    program: Any, tmp_path: Path
) -> None:
    """A link that fails is tried by each trial twice; its trials have failed. Two ranks are two nodes."""
    here, counts = ran(program, tmp_path / "links", workers=2)
    trials = json.loads(here)
    assert [t[1] for t in trials] == ["failed" if t[2]["degree"] == 2 else "complete" for t in trials]
    assert len(trials) == 12 and all(t[3]["names"] == 2 for t in trials if t[3])
    assert counts == {"features-1": 1, "features-3": 1, "powers-1": 2, "powers-2": 2, "features-2": 8}
    there, counts = ran(program, tmp_path / "links", workers=2, ranks=2)
    assert there == here
    assert all(n <= most for n, most in zip((counts["features-1"], counts["powers-1"]), (2, 4), strict=True))
    assert ran(program, tmp_path / "links", workers=1, limit_gb=1e-9)[0] == here  # nothing has room


def test_choices_and_seeds() -> None:
    space = {"kind": Choice(np.cos, np.sin), "x": Int(0, 1), "y": Int(0, 1)}

    def features(trial: Any) -> Any:
        return {"value": trial.params["kind"](trial.params.get("x", 0.0)), "seed": trial.seed}

    def model(trial: Any, features: Any) -> float:
        return float(features["value"]) + 1.0 + float(trial.params["y"])

    objective = Chain(Link(features, "kind", "x"), model)
    how: dict[str, Any] = dict(strategy="grid")
    study = searched(objective, space, **how)
    assert [t.values for t in searched(objective, space, workers=1, **how).trials] == [t.values for t in study.trials]
    for trial in study.trials:
        assert trial.values["loss"] == trial.params["kind"](trial.params["x"]) + 1.0 + trial.params["y"]

    seeds: list[tuple[int, int]] = []

    def drawn(trial: Any) -> int:
        return int(trial.seed)

    def last(trial: Any, drawn: int) -> float:
        seeds.append((trial.params["x"], drawn))
        return 0.0

    for seed in (0, 1):
        searched(Chain(Link(drawn, "x"), last), space, seed=seed, **how)
    assert len(seeds) == 16 and len(set(seeds)) == 4


def test_the_last_function_may_be_a_generator_and_folds_may_be_raced() -> None:
    chained = Chain(Link(features, "degree"), stepped)
    space = {"degree": 1, "penalty": Int(0, 8)}
    from mpitune.optimize.strategies import Halving

    study = searched(chained, space, strategy=Halving(max_steps=3), n_trials=9)
    assert study.best.params["penalty"] == 0 and {t.state for t in study.trials} == {"pruned", "complete"}

    def of_fold(trial: Any) -> float:
        return float(trial.fold)

    def scored(trial: Any, of_fold: float) -> float:
        assert of_fold == trial.fold
        return float(trial.params["x"] + of_fold)

    searched(Chain(Link(of_fold, "fold"), scored), {"x": Int(0, 3)}, strategy=Racing(folds=3), n_trials=4)


def reads(what: str) -> Any:
    def link(trial: Any) -> Any:
        return eval(what, {"trial": trial})

    return Chain(Link(link, "x"), lambda trial, link: 0.0)


def needs(trial: Any, wanted: Any) -> float:
    return 0.0


def generated(trial: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Chain(model), "a chain has links and ends with a function: Chain(Link(features,"),
        (lambda: Chain(Link(features)), "a chain has links and ends with a function"),
        (lambda: Chain(Link(features), Link(powers)), "a chain has links and ends with a function"),
        (lambda: Chain(Link(features), model), "model takes powers, which no link before it returns: there is feat"),
        (lambda: Chain(Link(features), lambda trial: 0.0), "no later function takes the value of features: give"),
        (lambda: Chain(Link(features), Link(features), model), "two functions of the chain are called features"),
        (lambda: Chain(Link(needs, "x"), needs), "needs takes wanted, which no link before it returns: there is none"),
        (lambda: Chain(Link(generated), stepped), "the link generated is a generator: return its value"),
        (lambda: Chain(Link(5), stepped), "a link is 5: give a function that has a name"),  # type: ignore[arg-type]
        (lambda: Chain(Link(features, 5), stepped), "the link features uses (5,): give names"),  # type: ignore[arg-type]
        (lambda: Chain(Link(features, "degre"), stepped), "features uses degre, which the space does not have: it has"),
        (lambda: Chain(Link(features, "x"), stepped, limit_gb=0), "limit_gb=0: give a number of gigabytes above 0"),
        (lambda: reads("trial.params['y']"), 'parameter y, which it does not name: name it, Link(link, ..., "y")'),
        (lambda: reads("trial.params.get('y', 1)"), "asks for the parameter y, which it does not name"),
        (lambda: reads("trial.number"), "the link link asks for trial.number, which trials do not have in common"),
        (lambda: reads("trial.fold"), 'name it, Link(link, ..., "fold")'),
        (lambda: reads("(i for i in [])"), "the link link returned a generator ("),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(make: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        searched(make(), {"x": Float(0, 1), "y": Float(0, 1)}, n_trials=1, results=tmp_path / "r")
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()
