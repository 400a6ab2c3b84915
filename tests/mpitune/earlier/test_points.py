"""Studies survive change: what counts is used, nothing is evaluated twice, and the table is one of a study begun so."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune import Choice, Float, Int, RunOptions, When, search
from mpitune.errors import UsageError
from mpitune.optimize.strategies import ASHA, Hyperband
from tests.helpers import journal_lines

XN = {"x": Float(0, 4, step=1), "n": Int(1, 3)}


class Noted:
    """An objective that writes down each point that it evaluates. Its loss may be a number that it draws."""

    def __init__(self, file: Path, draw: Any = None):
        self.file, self.draw = file, draw

    def setup(self, device: str) -> None:
        self.drawn = random.random() if self.draw == "setup" else 0.0

    def __call__(self, trial: Any) -> Any:
        p, drawn = trial.params, self.draw(trial) if callable(self.draw) else self.drawn
        with open(self.file, "a") as file:
            file.write(json.dumps([p], sort_keys=True, default=str) + "\n")
        loss = (p.get("x", 0.3) - 1) ** 2 + p.get("n", 0) * p.get("m", 0.5) + len(str(p.get("kind", "")))
        loss += math.sin(7 * (p.get("x", 0.3) + p.get("n", 0) + 1))
        loss = float(drawn) or loss + p.get("k", 2) + p.get("degree", 0)
        return {"loss": loss, "cost": -p.get("x", 0.3) - p.get("n", 0)}


class Steps:
    """One that can be stopped, and goes on from its checkpoint; it cannot go on without it."""

    staged = True

    def __init__(self, file: Path, seeded: bool = False):
        self.file, self.seeded = file, seeded

    def __call__(self, trial: Any) -> Any:
        saved = trial.folder / "state.json"
        step, total = json.loads(saved.read_text()) if trial.start else (0, float(self.seeded and trial.seed))
        while True:
            step, total = step + 1, total + trial.params["x"] / (step + 1)
            saved.write_text(json.dumps([step, total]))
            with open(self.file, "a") as file:
                file.write(json.dumps([trial.params, step]) + "\n")
            yield {"step": step, "loss": math.sin(5 * total)}


def left(trial: Any) -> float:
    if not (file := trial.folder / "seed").exists():  # of an attempt that has died
        file.write_text(str(trial.seed))
        os._exit(1)
    return float(file.read_text())


HELD = np.random.default_rng(1)
DRAWS: dict[str, Any] = {
    "seeds": lambda its: its.seed, "random": lambda _: random.random(), "held": lambda _: HELD.normal(), "left": left,
    "torch": lambda _: pytest.importorskip("torch").rand(1), "numpy": lambda _: np.random.normal(), "setup": "setup",
}  # fmt: skip
SEEDED = partial(Noted, draw=DRAWS["seeds"])
N5, STEPPED = {"x": Float(0, 4, step=1)}, {"space": {"x": Float(0, 4)}}
SAME = dict(space={"x": Int(0, 3)}, strategy=ASHA(9), n_trials=12)
SHORT, LONG = {**STEPPED, "n_trials": 9}, {**STEPPED, "n_trials": 12}
CHANGES: dict[str, tuple[Any, ...]] = {
    # before, after, results that are used and results in all (0 where these depend on the values), an objective
    "a range is widened": (dict(space=XN), dict(space={**XN, "x": Float(0, 6, step=1)}), 15, 21),
    "a range is narrowed": (dict(space=XN), dict(space={**XN, "x": Float(1, 3, step=1)}), 9, 9),
    "choices are added": (
        dict(space={**XN, "kind": Choice("a", "b")}), dict(space={**XN, "kind": Choice("a", "ccc", "b")}), 30, 45,
    ),
    "a choice with parameters of its own": (
        dict(space={**XN, "kind": ["a"]}),
        dict(space={**XN, "kind": ["a", "poly"], "degree": When(Int(2, 3), kind="poly")}), 15, 45,
    ),
    "a constant becomes a parameter": (dict(space={**XN, "k": 2}), dict(space={**XN, "k": Int(1, 3)}), 15, 45),
    "a parameter becomes a constant": (dict(space={**XN, "k": Int(1, 3)}), dict(space={**XN, "k": 2}), 15, 15),
    "another goal": (dict(space=XN), dict(space=XN, minimize="cost"), 15, 15),
    "another strategy": (dict(space=XN), dict(space=XN, strategy="random", n_trials=12), 12, 12),
    "another seed": (
        dict(space=XN, strategy="random", n_trials=6), dict(space=XN, strategy="random", n_trials=9, seed=3), 0, 0,
    ),
    "points to begin with": (dict(space=XN), dict(space=XN, enqueue=[{"x": 2.5, "n": 1}]), 15, 16),
    # Results that depend on the seed of a trial count for this trial only: the first ones keep their numbers.
    "trials after those of a seed": (dict(space=N5), dict(space={"x": Float(0, 5, step=1)}), 5, 6, SEEDED),
    "trials before those of a seed": (dict(space=N5), dict(space={"x": Float(-1, 4, step=1)}), 0, 6, SEEDED),
    **{f"new seed, {n}": (dict(space=N5), dict(space=N5, seed=1), 0, 5, partial(Noted, draw=DRAWS[n])) for n in DRAWS},
    # Stages go on from the checkpoints of before.
    "more steps": (dict(SHORT, strategy=ASHA(9, eta=3)), dict(LONG, strategy=ASHA(27, eta=3)), 1, 0, Steps),
    "another seed of stages": (SAME, {**SAME, "seed": 1}, 0, 0, partial(Steps, seeded=True)),
    "other stages": (dict(SHORT, strategy=ASHA(8, eta=2)), dict(LONG, strategy=Hyperband(27, eta=3)), 1, 0, Steps),
}  # fmt: skip


def find(folder: Path, objective: Any, **how: Any) -> Any:
    how = {"strategy": "grid", "minimize": "loss", "workers": 0, "window": 4, **how}
    return search(objective, results=folder, options=RunOptions(quiet=True), **how)


def evaluated(tmp_path: Path) -> list[str]:
    """What was evaluated since this was last asked."""
    lines = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    (tmp_path / "calls").write_text("")
    return lines


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 0) for kind in CHANGES),
        *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in ("a range is widened", "another seed")),
    ],
)
def test_what_counts_is_used_and_the_table_is_that_of_a_study_begun_so(tmp_path: Path, kind: str, workers: int) -> None:
    before, after, n_used, n, evaluates = (*CHANGES[kind], Noted)[:5]
    objective, fewest = evaluates(tmp_path / "calls"), int(kind.endswith(("held", "left")))  # of workers
    before, after = ({"workers": workers or fewest, **how} for how in (before, after))
    find(tmp_path / "r", objective, **before)
    known, old = set(evaluated(tmp_path)), journal_lines(tmp_path / "r")
    find(tmp_path / "r", objective, **{"adapt": True, **after})
    fresh, new = evaluated(tmp_path), journal_lines(tmp_path / "r")
    assert known.isdisjoint(fresh) or (n_used == 0 and evaluates is not Noted)
    assert evaluates is not Steps or len(set(fresh)) == len(fresh)
    assert journal_lines(tmp_path / "r" / "before-1") == old
    if n:
        assert (len(new) - len(fresh), len(new)) == (n_used, n)
        kept, taken = ([(line["values"], line["place"], line["ended"]) for line in some] for some in (old, new))
        assert sum(line in kept for line in taken) == n_used, "places and times are those of before"
    find(tmp_path / "r", objective, **{**after, "adapt": False})
    assert not evaluated(tmp_path), "the same command goes on, also without adapt"
    find(tmp_path / "fresh", objective, **{**after, "adapt": False, "workers": fewest})
    assert (tmp_path / "r" / "trials.csv").read_bytes() == (tmp_path / "fresh" / "trials.csv").read_bytes()


def test_a_strategy_that_learns_begins_with_what_is_known(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    objective = Noted(tmp_path / "calls")
    narrow, wide = {"x": Float(0, 2)}, {"x": Float(-2, 4)}
    first = find(tmp_path / "r", objective, space=narrow, strategy="tpe", n_trials=12)
    shutil.copytree(tmp_path / "r", tmp_path / "other")
    assert len(evaluated(tmp_path)) == 12
    again = find(tmp_path / "r", objective, space=wide, strategy="tpe", n_trials=20, adapt=True)
    assert len(evaluated(tmp_path)) == 8
    assert [t.params for t in again.trials[:12]] == [t.params for t in first.trials] and len(again) == 20
    more = find(tmp_path / "r", objective, space=wide, strategy="tpe", n_trials=24)
    assert len(evaluated(tmp_path)) == 4 and [t.params for t in more.trials[:20]] == [t.params for t in again.trials]
    find(tmp_path / "other", objective, space=wide, strategy="tpe", n_trials=24, adapt=True, workers=1)
    assert (tmp_path / "r" / "trials.csv").read_bytes() == (tmp_path / "other" / "trials.csv").read_bytes()


def test_a_learning_strategy_with_stages_hears_of_what_is_known(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    objective, space = Steps(tmp_path / "calls"), {"x": Float(-1, 3)}
    find(tmp_path / "r", objective, space={"x": Float(0, 2)}, strategy=ASHA(9), n_trials=12)
    how: dict[str, Any] = dict(space=space, strategy=ASHA(9, sampler="tpe"), n_trials=8)
    shutil.copytree(tmp_path / "r", tmp_path / "again")
    find(tmp_path / "r", objective, **how, adapt=True)
    find(tmp_path / "again", objective, **how, adapt=True, workers=1)
    find(tmp_path / "fresh", objective, **how)
    table, again, fresh = ((tmp_path / name / "trials.csv").read_bytes() for name in ("r", "again", "fresh"))
    assert table == again != fresh


XNK = {**XN, "k": 1}
BAD: list[tuple[dict[str, Any], str]] = [
    (dict(space={**XNK, "m": [1, 2]}, adapt=True), "has no m, this one m = Choice(1, 2): no result"),
    (dict(space={**XN, "k": 2}, adapt=True), "has k = 1, this one k = 2: no result can count"),
    (dict(space={"x": XN["x"], "k": 1}, adapt=True), "this one no n: no result can count"),
    (dict(space=XNK, adapt={"m": 1}), "adapt={'m': 1}: give True or False"),
    (dict(space=XNK, adapt=True, options=RunOptions(restart=True)), "adapt uses the results of the old study"),
]


def test_what_cannot_be_meant_is_refused_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    usual: dict[str, Any] = dict(strategy="grid", minimize="loss", workers=0, results=tmp_path / "r")
    search(Noted(tmp_path / "calls"), XNK, **usual, options=RunOptions(quiet=True))
    there = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    for how, said in BAD:
        with pytest.raises(UsageError) as error:
            search(Noted(tmp_path / "calls"), **{**usual, **how})
        assert said in str(error.value) and "\n" not in str(error.value)
        assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == there


def test_code_that_results_depend_on_must_be_the_same(tmp_path: Path) -> None:
    usual: dict[str, Any] = dict(strategy="grid", minimize="loss", workers=0, results=tmp_path / "r")
    search(lambda trial: trial.params["x"] * 2.0, {"x": Int(1, 3)}, **usual)
    usual |= {"space": {"x": Int(1, 4)}, "adapt": True}
    with pytest.raises(UsageError, match=r"objective changed since .* say changed=\[\"objective\"\]"):
        search(lambda trial: trial.params["x"] * 3.0, **usual)
    study = search(lambda trial: trial.params["x"] * 3.0, **usual, changed="objective")
    assert [trial.values["loss"] for trial in study.trials] == [2.0, 4.0, 6.0, 12.0]
    usual |= {"changed": "objective", "space": {"x": Int(1, 6)}}
    study = search(lambda trial: 1 / 0, **{**usual, "strategy": "random", "n_trials": 20})
    assert {(t.params["x"] > 4, t.state) for t in study.trials} == {(False, "complete"), (True, "failed")}
    with pytest.raises(UsageError, match="it returned loss, more, before loss: return the same names"):
        search(lambda trial: {"loss": 1.0, "more": 2.0}, **{**usual, "space": {"x": Int(1, 7)}})


def test_jobs_join_a_changed_study_and_a_study_that_jobs_joined_is_changed(tmp_path: Path) -> None:
    objective, wider = Noted(tmp_path / "calls"), {**XN, "x": Float(0, 6, step=1)}
    find(tmp_path / "r", objective, space=XN, join=True)
    assert len(evaluated(tmp_path)) == 15 and (tmp_path / "r" / "jobs").is_dir()  # with the journal of each
    find(tmp_path / "r", objective, space=wider, adapt=True, callbacks=[lambda study, trial: True])
    journal = tmp_path / "r" / "journal.jsonl"
    whole = journal.read_text()
    journal.write_text(whole.split("\n")[0] + "\n")  # as if it had been killed at its start
    with pytest.raises(UsageError, match="run the same command once without join"):
        find(tmp_path / "r", objective, space=wider, join=True)
    journal.write_text(whole)
    find(tmp_path / "r", objective, space=wider, join=True)
    assert len(evaluated(tmp_path)) == 6
    find(tmp_path / "fresh", objective, space=wider)
    assert (tmp_path / "r" / "trials.csv").read_bytes() == (tmp_path / "fresh" / "trials.csv").read_bytes()
