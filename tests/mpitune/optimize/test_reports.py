"""Functions that report their values after each step are stopped and continued as generators are."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpitune import Float, TrialStopped, current_trial
from mpitune.errors import UsageError
from mpitune.strategies import Halving, PopulationBased
from tests.mpitune.optimize.objectives import SPACE, reported, searched, stepped

LINE = {"x": Float(0, 1)}
FLAT = {name: part for name, part in SPACE.items() if name != "y"}


def table(study: Any) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, dict(t.params), t.values, t.steps) for t in study.trials]


@pytest.mark.parametrize(
    "strategy", ["random", Halving(27), PopulationBased(6, 2)], ids=lambda strategy: type(strategy).__name__
)
def test_the_table_is_that_of_a_generator(strategy: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(strategy=strategy, n_trials=9, window=3, seed=17)
    studies = [
        searched(objective, FLAT, results=tmp_path / objective.__name__, workers=workers, **how)
        for objective, workers in ((stepped, 0), (reported, 2))
    ]
    assert table(studies[0]) == table(studies[1])
    assert any(len(trial.steps) > 1 for trial in studies[1].trials)
    again = searched(reported, FLAT, results=tmp_path / "reported", **how)
    assert table(again) == table(studies[1])


def test_a_function_that_keeps_no_checkpoint_begins_anew() -> None:
    begun = []

    def objective(trial: Any) -> float:
        begun.append(trial.number)
        for step in range(1, 10):
            current_trial().report(trial.params["x"] + 1 / step, step)
        return -1.0  # never returned: the last stage ends with its last step

    study = searched(objective, LINE, strategy=Halving(9), n_trials=9)
    assert [t.state for t in study.trials].count("pruned") == 8
    assert study.best.values["loss"] == study.best.params["x"] + 1 / 9 and list(study.best.steps) == list(range(1, 10))
    assert [begun.count(t.number) for t in study.trials] == [{1: 1, 3: 2, 9: 3}[len(t.steps)] for t in study.trials]


def test_without_a_strategy_that_stops_it_a_function_returns() -> None:
    def objective(trial: Any) -> Any:
        for step in range(3):
            trial.report({"loss": trial.params["x"], "epoch": float(step)})
        return {"loss": 2 * trial.params["x"], "epoch": 3.0} if trial.number else None

    first, second = searched(objective, LINE, n_trials=2).trials
    assert first.values == {"loss": first.params["x"], "epoch": 2.0}
    assert second.values == {"loss": 2 * second.params["x"], "epoch": 3.0}
    assert list(second.steps) == [1, 2, 3]


@pytest.mark.parametrize("way", ["catches it", "wraps it", "goes on"])
def test_a_trainer_may_do_with_the_exception_what_it_likes(way: str) -> None:
    def objective(trial: Any) -> Any:
        for step in range(1, 10):
            try:
                trial.report(trial.params["x"], step)
            except TrialStopped as error:
                if way == "wraps it":
                    raise RuntimeError("training failed") from error
                if way == "catches it":
                    return 7.0

    study = searched(objective, LINE, strategy=Halving(9), n_trials=9)
    assert [t.state for t in study.trials].count("pruned") == 8
    assert all(t.values["loss"] == t.params["x"] for t in study.trials)


def test_an_error_after_the_end_of_a_stage_is_one_of_the_objective() -> None:
    """Such as a checkpoint that cannot be written."""

    def objective(trial: Any) -> None:
        with suppress(TrialStopped):
            for step in range(1, 4):
                trial.report(trial.params["x"], step)
        if trial.number == 1:
            raise OSError("disk full")

    study = searched(objective, LINE, strategy=Halving(3, 3), n_trials=2, workers=1)
    assert [trial.state for trial in study.trials] == ["complete", "failed"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([], r"call trial.report\({...}, step=...\), after each"),
        ([(1.0, 1), (1.0, 2)], "it ended after 2 steps, before the 3 of its strategy: give max_steps=2"),
        ([(1.0, 2), (1.0, 2)], "it said step 2 after step 2: say whole numbers that begin at 0 or 1 and grow"),
        *([(([(1.0, bad)], f"it said step {bad!r}: say whole numbers")) for bad in ("two", -1, 0.5)]),
        ([({"cost": 1.0}, 1)], "it returned cost without loss"),
        ([({"loss": "low"}, 1)], "it returned a str as loss"),
    ],
)
@pytest.mark.parametrize("way", ["lets it pass", "swallows it", "wraps it"])
def test_reports_that_cannot_be_are_told_whatever_a_trainer_does_with_it(way: str, said: list[Any], told: str) -> None:
    def objective(trial: Any) -> float:
        for values, step in said:
            try:
                trial.report(values, step)
            except Exception as error:
                if way == "wraps it":
                    raise RuntimeError("training failed") from error
                if way == "lets it pass":
                    raise
        return 1.0

    with pytest.raises(UsageError, match=told):
        searched(objective, LINE, strategy=Halving(3, 3), n_trials=2)


@pytest.mark.parametrize("torn", [False, True])
def test_steps_of_an_attempt_that_died_are_not_those_of_the_next(torn: bool, tmp_path: Path) -> None:
    """The first attempt dies after step 6; the next one goes on at step 4 and dies; the last goes on at step 6."""

    def objective(trial: Any) -> None:
        begun = trial.folder / "begun"
        attempt = int(begun.read_text()) if begun.exists() else 0
        begun.write_text(str(attempt + 1))
        for step in range((1, 4)[attempt], (7, 6)[attempt]):
            trial.report(step + attempt / 10, step)
        if attempt == 0:
            log = trial.folder / "steps.jsonl"
            log.write_text(log.read_text()[: -5 if torn else None])
            raise ValueError("dies")

    (trial,) = searched(objective, LINE, n_trials=1, workers=1, results=tmp_path / "r").trials
    assert [values["loss"] for values in trial.steps.values()] == [1, 2, 3, 4.1, 5.1] and trial.values["loss"] == 5.1


def test_outside_of_a_search_a_report_goes_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trial = current_trial()
    trial.report({"loss": 1.0}, step=1)
    trial.set_user_attr("name", "value")
    assert (dict(trial.params), trial.until, trial.folder) == ({}, 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_copy_of_the_trial_reports_nothing_and_a_search_within_has_its_own() -> None:
    def inner(trial: Any) -> float:
        assert current_trial().params == trial.params
        return float(trial.params["y"])

    def objective(trial: Any) -> float:
        trial.report(1.0, 1)
        for other in (copy.copy(trial), pickle.loads(pickle.dumps(trial))):
            other.report(1.0, 9)
        searched(inner, {"y": Float(0, 1)}, n_trials=2)
        assert current_trial() is trial
        return float(trial.params["x"])

    study = searched(objective, LINE, n_trials=2)
    assert [list(trial.steps) for trial in study.trials] == [[1], [1]]
    assert current_trial().params == {}


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("strategy", ["random", Halving(4, 4)])
def test_what_an_attempt_said_before_it_died_counts_as_far_as_another_goes_on(strategy: Any, resumes: bool) -> None:
    def objective(trial: Any) -> None:
        state = trial.folder / "done"
        first, done = not state.exists(), int(state.read_text()) if state.exists() and resumes else 0
        if not done:
            trial.set_user_attr("size", trial.number)
        if first:
            trial.set_user_attr("never", "in the log")
        for step in range(done + 1, 5):
            if first and step == 3:
                trial.set_user_attr("diverged_at", step)
            trial.report({"loss": 9.0 if first and step > 2 else 1 / step}, step)
            state.write_text(str(min(step, 2) if first else step))
            if first and step == 3:
                raise RuntimeError("a full disk, say")

    study = searched(objective, LINE, strategy=strategy, n_trials=2, workers=1)
    never = {"never": "in the log"} if resumes else {}
    for trial in study.trials:
        assert trial.user_attrs == {"size": trial.number, **never} and trial.steps[4] == {"loss": 0.25}, trial
