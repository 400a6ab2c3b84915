"""What a tracker writes of a journal, by a small writer in this process; and a tracker that hangs or fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
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
from mpitune.trial import Result, Segment, Trial
from tests.helpers import HEADER


class Board(Writer):
    """Writes into a dict, as a tool that is still there when this process has gone."""

    def __init__(self, runs: dict[str, str]):
        self.is_new, self.runs, self.wrote = not runs, runs, list[str]()

    def write(self, trial: ExportedTrial) -> None:
        self.wrote.append(trial.key)
        self.runs[trial.key] = trial.state


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "r", HEADER)) as journal:
        yield journal


def done(*keys: str, journal: Journal, **how: Any) -> None:
    how = {"ended": 5.0, **how}
    journal.append(
        [(Trial(key, {"x": 1}), Result(key, {} if "error" in how else {"loss": 1.0}, **how)) for key in keys]
    )


def followed(journal: Journal, runs: dict[str, str], looks: Sequence[Callable[[], object]] = ()) -> list[str]:
    """The keys of what a tracker has written, which did these things between its looks."""
    boards: list[Board] = []
    left = [*looks]

    def is_over(seconds: float) -> bool:
        if left:
            left.pop(0)()
        return not left

    def board_of(study: Any) -> Board:
        boards.append(Board(runs))
        return boards[0]

    follow.follow(journal.folder, "board", is_over, board_of)
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
    assert followed(journal, runs) == ["c"] and set(runs.values()) == {"complete"}
    assert followed(journal, {}) == ["a", "b", "c"], "a tool that has nothing of the study gets all of it"


def test_a_trial_that_goes_on_is_written_again(tmp_path: Path) -> None:
    settings = {"experiment": "toy", "space": [], "strategy": "", "objectives": ["minimize loss"]}
    stages = [Trial(f"t000000/{n}", {"x": 1}, Segment(0, stage=n, last=n == 1)) for n in (0, 1)]
    runs: dict[str, str] = {}
    with closing(Journal(tmp_path, {**HEADER, "kind": "search", "settings": settings})) as journal:

        def stage(n: int) -> None:
            assert list(runs.values()) == ["pruned"] * n
            journal.append([(stages[n], Result(stages[n].key, {"loss": 2.0}, ended=5.0 + n))])

        assert followed(journal, runs, [lambda: stage(0), lambda: stage(1)]) == ["t000000"] * 2
        assert runs == {"t000000": "complete"} and followed(journal, runs) == []


def test_of_trackers_of_one_name_one_writes_and_another_takes_over(journal: Journal) -> None:
    done("a", journal=journal)
    lock = open_lock(journal.folder / ".tracked-board")
    assert try_lock(lock) and followed(journal, {}, [int, int]) == []
    assert followed(journal, {}, [int, lambda: os.close(lock), int]) == ["a"]


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
    one = tracker.Tracker("mlflow:m", tmp_path)
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
        (f"tensorboard:{tmp_path}", r"tensorboard is not installed: pip install \"mpitune\[track\]\""),
        (f"mlflow:{tmp_path / 'file'}", "cannot be written .*: name another folder"),
        ("wandb:/proc/none", "cannot be written .*: name another folder"),
    ):
        with pytest.raises(UsageError, match=text):
            mpitune.search(lambda trial: 1.0, {"x": mpitune.Float(0, 1)}, track=track, **how)
        assert not (tmp_path / "r").exists()
