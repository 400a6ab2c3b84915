"""Trials that are evaluated together: the same bits whatever happens, and no trial pays for another."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune import Choice, Float, RunOptions, current_trial, search
from mpitune.engine.worker import answers, unpacked
from mpitune.errors import UsageError
from mpitune.optimize.strategies import ASHA
from mpitune.storage.history import read_study
from mpitune.trial import Evaluation, Result, Segment, Trial
from tests.mpitune.optimize.objectives import searched

X = {"x": Float(0, 1)}
TOGETHER, SPACE = 5, {"x": Float(0, 1), "units": Choice(16, 32)}


def units(params: Any) -> int:
    return int(params["units"])


def test_places_follow_from_the_order_alone(tmp_path: Path) -> None:
    """With more trials the groups are filled up, in their places; failed ones are tried again in theirs."""
    how: dict[str, Any] = {"together": TOGETHER, "alike": units, "results": tmp_path / "r", "seed": 4}
    bad, calls = {"all": True}, list[list[int]]()

    def objective(trials: Any) -> list[float]:
        calls.append([trial.number for trial in trials])
        losses = [10 * place + trial.params["x"] for place, trial in enumerate(trials)]
        return [loss if trial.number != 4 or not bad["all"] else math.nan for loss, trial in zip(losses, trials)]  # noqa: B905

    first = searched(objective, SPACE, n_trials=13, **how)
    assert [trial.state for trial in first.trials].count("failed") == 1
    bad["all"], n = False, len(calls)
    options = RunOptions(quiet=True, retry_failed=True)
    study = searched(objective, SPACE, n_trials=21, options=options, **how)
    later = calls[n:]
    whole = searched(objective, SPACE, n_trials=21, **{**how, "results": None})
    assert [trial.values for trial in study.trials] == [trial.values for trial in whole.trials]
    places = [int(trial.values["loss"]) // 10 for trial in whole.trials]
    kinds = [units(trial.params) for trial in whole.trials]
    assert places == [kinds[:number].count(kind) % TOGETHER for number, kind in enumerate(kinds)]
    known = {number for call in calls[:n] for number in call} - {4}
    assert all(set(call) - known for call in later), "a known trial was evaluated again without a new one"
    for other, told in ((4, "together = 5"), (None, "together = 5")):
        with pytest.raises(UsageError, match=told):
            searched(lambda trials: 1.0, SPACE, n_trials=21, **{**how, "together": other, "alike": None})


def test_a_strategy_that_learns_proposes_as_many_at_a_time() -> None:
    pytest.importorskip("optuna")
    told: list[int] = []
    for window in ({}, {"window": 8}):
        calls: list[list[int]] = []

        def objective(trials: Any, calls: list[list[int]] = calls) -> Any:
            import numpy

            calls.append([trial.number for trial in trials])
            return numpy.array([trial.params["x"] for trial in trials])

        study = searched(
            objective, X, strategy="tpe", n_trials=14, together=4, callbacks=[lambda s, t: told.append(t.number)],
            **window,
        )  # fmt: skip
        assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 12, 12]]
        assert told == list(range(14)) and len(study) == 14
        told.clear()
    slow = lambda trials: time.sleep(0.03) or [0.0] * 4  # noqa: E731
    study = searched(slow, X, n_trials=400, together=4, callbacks=[lambda s, t: t.number == 5])
    assert len(study) == 8, "a callback ends the search after the group that it was told of last"


def test_copies_leave_no_trace(tmp_path: Path) -> None:
    """What a copy writes and says is dropped, and nothing that is for one trial is for a group."""

    def objective(trials: Any) -> list[dict[str, float]]:
        for place, trial in enumerate(trials):
            with open(trial.folder / "place", "x") as file:  # a folder for each, copies too
                file.write(str(place))
            trial.set_user_attr("place", place)
            assert trial.seed == trials[place if place < 3 else 0].seed and len(trials) == 7
        assert current_trial().params == {}
        return [{"loss": trial.params["x"], "seed": float(trial.seed)} for trial in trials]

    study = searched(objective, X, n_trials=3, together=7, results=tmp_path / "r")
    assert [trial.user_attrs["place"] for trial in study.trials] == [0, 1, 2]
    folders = sorted((tmp_path / "r" / "trials").glob("t*"))
    assert [(folder / "place").read_text() for folder in folders] == ["0", "1", "2"]
    history = read_study(tmp_path / "r")
    assert all(result.read == ("folder", "seed") for result in history.results.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_known_result_counts_for_its_place(workers: int, tmp_path: Path) -> None:
    def objective(trials: Any) -> list[float]:
        return [10 * place + trial.params["x"] for place, trial in enumerate(trials)]

    how: dict[str, Any] = {"strategy": "grid", "together": 4, "workers": workers}
    searched(objective, {"x": Choice(0.2, 0.3)}, results=tmp_path / "r", **how)
    adapted = searched(objective, {"x": Choice(0.1, 0.2, 0.3)}, results=tmp_path / "r", adapt=True, **how)
    assert [trial.values["loss"] for trial in adapted.trials] == [0.1, 10.2, 20.3]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_one_trial_says_wrongly_is_its_own_fault(workers: int) -> None:
    """NaN, which no journal takes, as a user attribute."""

    def objective(trials: Any) -> list[float]:
        for trial in trials:
            trial.set_user_attr("acc", math.nan if trial.number == 6 else 1.0)
        return [trial.params["x"] for trial in trials]

    study = searched(objective, X, n_trials=12, together=4, workers=workers)
    assert [trial.number for trial in study.trials if trial.state == "failed"] == [6]


def evaluates(wrong: set[int], calls: list[int], error: type[Exception] = ValueError) -> Callable[..., Any]:
    def objective(batch: tuple[Trial, ...]) -> Any:
        calls.append(len(batch))
        numbers = [int(trial.params["i"]) for trial in batch]
        if wrong.intersection(numbers):
            raise error(f"{wrong.intersection(numbers)} is wrong")
        return [Evaluation(trial.key, {"v": 1.0}) for trial in batch]

    return objective


def test_one_that_raises_is_found_by_halves_and_blamed_alone() -> None:
    batch = tuple(Trial(f"t{i}", {"i": i}, Segment(place=i)) for i in range(40))
    goes_on = lambda error: not isinstance(error, MemoryError)  # noqa: E731
    for wrong, most in (({7}, 13), ({0, 39}, 23), (set(range(40)), 79)):
        calls: list[int] = []
        found = answers(evaluates(wrong, calls), batch, goes_on, lambda trial: None)
        results = [result for answer in found if isinstance(result := unpacked(answer, None), Result)]
        assert [result.key for result in results] == [trial.key for trial in batch]
        assert {i for i, result in enumerate(results) if result.failed} == wrong and len(calls) <= most
        assert all(result.raised == result.failed for result in results)
    whole = list(answers(evaluates(set(), []), batch, goes_on, lambda trial: None))
    shares = {result.seconds for one in whole if isinstance(result := unpacked(one, None), Result)}
    assert len(shares) == 1, "each has the same share"
    ends = [result.ended for one in whole if isinstance(result := unpacked(one, None), Result)]
    (seconds,) = shares
    assert ends == [pytest.approx(ends[0] + i * seconds, abs=1e-6) for i in range(40)], "as if one after the other"
    with pytest.raises(MemoryError):
        list(answers(evaluates({3}, [], MemoryError), batch, goes_on, lambda trial: None))


@pytest.mark.slow
def test_a_group_has_the_time_of_its_trials_and_one_that_hangs_fails_alone() -> None:
    def objective(trials: Any) -> list[float]:
        time.sleep(600 if any(trial.number == 2 for trial in trials) else 2.5)
        return [float(trial.number) for trial in trials]

    study = searched(objective, X, n_trials=6, together=3, workers=2, trial_timeout=2)
    assert [trial.state for trial in study.trials] == ["complete"] * 2 + ["failed"] + ["complete"] * 3
    assert "no result within 6 s" in study.trials[2].error
    assert max(trial.seconds for trial in study.trials[3:]) <= 2, "not the 2.5 s of their list"


def stepping(trials: Any) -> Any:
    yield 1.0


def reporting(trials: Any) -> list[float]:
    trials[0].report(1.0, step=1)
    return [1.0] * len(trials)


def sorting(trials: Any) -> list[float]:
    trials.sort(key=lambda trial: trial.params["x"])
    return [0.0] * len(trials)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"together": 0}, "together=0: give a whole number of at least 1"),
        ({"together": None, "alike": units}, "alike=units says which trials train together: give together= as well"),
        ({"alike": 5}, "alike=5 says which trials train together: give a function of parameters"),
        ({"alike": lambda p: [1]}, "alike returned a list for trial 0: give a number, a text or a tuple of them"),
        ({"alike": lambda p: p["d"]}, "alike raised KeyError('d') for trial 0: give a number, a text or a tuple"),
        ({"alike": lambda p: object()}, "alike returned a object for trial 0"),
        ({"objective": sorting}, "it changed the order of its list, which says whose a value is: sort a copy"),
        ({"objective": "train {x}"}, "together=3 evaluates whole trials as a list, but a command takes one trial"),
        ({"objective": stepping}, "but a generator yields steps of one trial: leave one of them out"),
        ({"strategy": ASHA(9)}, "but ASHA has stages of trials"),
        ({"devices": 2, "workers": 2}, "but devices= and nodes= are for one trial"),
        ({"nodes": lambda p: 1}, "but devices= and nodes= are for one trial"),
        ({"objective": lambda trials: [1.0] * 4}, "it returned 4 values for 3 trials: return a list of 3 with"),
        ({"objective": lambda trials: {"loss": [1.0] * 3}}, "it returned a dict: return a list of 3"),
        ({"objective": lambda trials: [None] * 3}, "correct the objective: it returned None: return"),
        ({"objective": reporting}, "it reports steps, but trials that train together are evaluated whole: return"),
    ],
)
def test_what_cannot_be_together_is_refused_in_one_line(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"n_trials": 6, "minimize": "loss", "workers": 0, "together": 3, "results": tmp_path / "r"}
    with pytest.raises(UsageError) as error:
        search(**{"objective": lambda trials: [1.0] * len(trials), "space": X, **how, **change})
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


def test_copies_of_a_killed_list_go_with_their_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)

    def objective(trials: Any) -> list[float]:
        for trial in trials:
            (trial.folder / "checkpoint").write_text("")
        if not (mark := tmp_path / "killed").exists():
            mark.write_text(str(len(list((tmp_path / "tmp").rglob("checkpoint")))))
            os.kill(os.getpid(), signal.SIGKILL)
        return [trial.params["x"] for trial in trials]

    searched(objective, X, n_trials=2, together=9, workers=1, results=tmp_path / "r")
    left = [path.name for path in (tmp_path / "tmp").rglob("*")]
    assert (tmp_path / "killed").read_text() == "7"
    assert all(name.startswith(("pymp-", "listener-")) for name in left)  # of the server, which waits for a next search
