"""What a tracker writes of a journal, by a small writer in this process; and a tracker that hangs or fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

import mpitune
from mpitune.errors import UsageError
from mpitune.locks import open_lock, try_lock
from mpitune.storage.journal import Journal
from mpitune.storage.trials import ExportedTrial
from mpitune.track import follow, tracker
from mpitune.track.writers import Writer
from mpitune.trial import RUNNING, Ending, Result, Segment, Trial
from tests.helpers import HEADER

Told = Iterable[dict[str, Any]]


class Board(Writer):
    """Writes into a dict, as a tool that is still there when this process has gone."""

    def __init__(self, runs: dict[str, Any], at_end: Exception | None = None):
        super().__init__()
        self.is_new, self.runs, self.at_end = not runs, runs, at_end
        self.wrote: list[str] = []

    def write(self, trial: ExportedTrial, steps: Any, begins: bool, ends: bool) -> None:
        self.wrote.append(trial.key)
        if begins:
            self.runs[trial.key] = {"params": dict(trial.params), "steps": {}, "times": []}
        run = self.runs[trial.key]
        assert not run["steps"].keys() & steps.keys(), "once"
        run["steps"].update(steps)
        run["times"] += [ends]
        if ends:
            run |= {"state": trial.state, "values": dict(trial.values)}

    def close(self) -> None:
        if self.at_end:
            raise self.at_end


def of(steps: dict[int, float] | None = None, state: str = RUNNING, x: int = 1, **values: float) -> ExportedTrial:
    return ExportedTrial(0, {"x": x}, values, state, {n: {"loss": v} for n, v in (steps or {}).items()}, key="a")


@pytest.mark.parametrize(
    ("trials", "n_writes", "times"),
    [
        ([of(state="complete", loss=1.0)], 1, [True]),
        ([of(), of(), of({1: 3.0}), of({1: 3.0}), of({1: 3.0, 2: 1.0}, "complete", loss=1.0)], 3, [False, False, True]),
        ([of({1: 3.0}), of({1: 2.0, 2: 1.0}, "complete", loss=1.0)], 2, [True]),  # a second attempt
        ([of({1: 3.0, 2: 2.0}), of({2: 2.0, 3: 1.0}, "pruned")], 2, [True]),
        ([of({2: 9.0}), of({1: 1.0, 2: 9.0}, "complete")], 2, [True]),
        ([of({1: 3.0}), of({1: 3.0}, x=2), of({1: 3.0}, "failed", x=2)], 3, [False, True]),  # other parameters
        ([of({1: 3.0}, "pruned"), of({1: 3.0}), of({1: 3.0, 2: 1.0}, "complete", loss=1.0)], 3, [False, True]),
    ],
)
def test_what_is_put_is_there_once_as_it_ended(trials: list[ExportedTrial], n_writes: int, times: list[bool]) -> None:
    board, last = Board({}), trials[-1]
    for trial in trials:
        board.put(trial)
    assert len(board.wrote) == n_writes and not board.open
    about = {"params": last.params, "steps": last.steps, "state": last.state, "values": last.values}
    assert board.runs == {"a": {**about, "times": times}}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "r", HEADER)) as journal:
        yield journal


def done(*keys: str, journal: Journal, **how: Any) -> None:
    how = {"ended": 5.0, **how}
    journal.append(
        [(Trial(key, {"x": 1}), Result(key, {} if "error" in how else {"loss": 1.0}, **how)) for key in keys]
    )


def followed(journal: Journal, runs: dict[str, Any], told: Told = (), at_end: Exception | None = None) -> list[str]:
    """The keys of what a tracker has written, until it was told that all is over."""
    boards: list[Board] = []

    def board_of(study: Any) -> Board:
        boards.append(Board(runs, at_end))
        return boards[0]

    follow.follow(journal.folder, "board", iter(told), board_of)
    return boards[0].wrote if boards else []


def test_each_trial_is_there_once_wherever_its_tracker_is_killed(journal: Journal) -> None:
    (file,), runs = [journal.folder / ".tracked-board"], {}
    done("a", "b", journal=journal)
    assert followed(journal, runs) == ["a", "b"] and followed(journal, runs) == []
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        again = followed(journal, runs)
        assert again == [key for key in "ab" if f'["{key}", 5.0]\n'.encode() not in whole[:size]]
        assert followed(journal, runs) == [], "half a line has not spoiled the next"
    done("c", journal=journal, error="Error: c")
    assert followed(journal, runs) == ["c"]
    done("c", journal=journal, ended=6.0)  # tried again
    assert followed(journal, runs) == ["c"] and {run["state"] for run in runs.values()} == {"complete"}
    assert followed(journal, {}) == ["a", "b", "c"], "a tool that has nothing of the study gets all of it"


def test_a_running_trial_gets_its_steps_and_then_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # it looks whenever it is told
    a, b, runs = "t000000", "t000001", dict[str, Any]()
    first, second = (Trial(key, {"x": n}, Segment(number=n)) for n, key in enumerate((a, b)))
    settings = {"experiment": "toy", "space": [], "strategy": "", "objectives": ["minimize loss"]}
    with closing(Journal(tmp_path, {**HEADER, "kind": "search", "settings": settings})) as journal:

        def told() -> Told:
            yield {a: (first, {1: {"loss": 3.0}}), b: (second, {})}
            yield {a: (first, {2: {"loss": 2.0}}), b: (second, {})}
            steps = {1: {"loss": 3.0}, 2: {"loss": 2.0}}
            assert runs[a]["steps"] == steps and runs[b]["times"] == [False]
            journal.append([(first, Result(a, {"loss": 2.0}, ending=Ending(steps=steps), ended=5.0))])
            yield {b: (second, {})}

        followed(journal, runs, told())
        assert runs[a]["times"] == [False, False, True] and "state" not in runs[b]
        noted = (tmp_path / ".tracked-board").read_text().split()
        assert noted == f'["{a}", 5.0]'.split()
        journal.append([(second, Result(b, {"loss": 1.0}, ended=6.0))])
        assert followed(journal, runs) == [b] and runs[b]["times"] == [True]


def test_of_trackers_of_one_name_one_writes_and_another_takes_over(journal: Journal) -> None:
    done("a", journal=journal)
    lock = open_lock(journal.folder / ".tracked-board")
    assert try_lock(lock) and followed(journal, {}, [{}, {}]) == []

    def told() -> Told:
        yield {}
        os.close(lock)
        yield {}

    assert followed(journal, {}, told()) == ["a"]


def hangs(parent: int, folder: Path, track: str, pipe: Any) -> None:
    time.sleep(600)


def fails(parent: int, folder: Path, track: str, pipe: Any) -> None:
    pipe.send("ValueError: it does not work")
    os._exit(follow.HAS_SAID)


def dies(parent: int, folder: Path, track: str, pipe: Any) -> None:
    os._exit(9)


def opens_slowly(parent: int, folder: Path, track: str, pipe: Any) -> None:
    time.sleep(0.5)


@pytest.mark.parametrize(
    ("main", "most", "text"),
    [
        (hangs, 0.1, "is left at the end; the study is whole without it; the same command writes the rest"),
        (hangs, 600.0, "is left at the end; "),  # as the user stops it
        (fails, 600.0, "has failed: ValueError: it does not work; "),
        (dies, 600.0, "has ended with exit status 9; "),
        (opens_slowly, 600.0, ""),
    ],
)
def test_a_tracker_holds_nothing_up_and_costs_a_line(
    main: Any, most: float, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(follow, "main", main)
    monkeypatch.setattr(tracker, "MOST_S", most)
    monkeypatch.setattr(tracker, "EVERY_S", 0.01)
    one = tracker.Tracker("mlflow:m", tmp_path)
    for _ in range(3):
        one.update(lambda: {"a": {"x": 1}})
    stop = Timer(1.0 if main is hangs and most > 1 else 1000.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    tracker.close([one])
    stop.cancel()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == bool(text) and text.format(tmp_path) in "".join(said)
    one._process.join(60)
    assert not one._process.is_alive()


def test_what_cannot_be_tracked_is_said_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tracker, "find_spec", lambda kind: None if kind == "tensorboard" else os.__spec__)
    how: Any = {"n_trials": 1, "minimize": "loss", "workers": 0, "results": tmp_path / "r"}
    for track, text in (
        ("excel:x", "give mlflow:FOLDER, tensorboard:FOLDER or wandb"),
        ("mlflow", "give mlflow:FOLDER"),
        (3, "give mlflow:FOLDER"),
        (f"tensorboard:{tmp_path}", r"tensorboard is not installed: pip install \"mpitune\[export\]\""),
        (f"mlflow:{tmp_path / 'file'}", "cannot be written .*: name another folder"),
        ("wandb:/proc/none", "cannot be written .*: name another folder"),
    ):
        with pytest.raises(UsageError, match=text):
            mpitune.search(lambda trial: 1.0, {"x": mpitune.Float(0, 1)}, track=track, **how)
        assert not (tmp_path / "r").exists()
