"""What a running study says of itself: steps, the longest trial, the time left, the status file."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitune.engine import worker
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.messages import AT_WORK, STARTING, Returned, Stepped, WorkerProgress
from mpitune.engine.progress import AT_TRIALS, StatusFile, note_of, read_status_file
from mpitune.engine.slots import Resources
from mpitune.engine.study import Study
from mpitune.port import Scheduling
from mpitune.storage.journal import Journal
from mpitune.trial import Place, Result, Trial
from tests.helpers import PATIENCE, start, wait_for_lines


def once(trials: list[Trial]) -> Any:
    yield [(trial,) for trial in trials]


def test_an_overview_says_what_slots_do(tmp_path: Path) -> None:
    trials = [Trial(f"t{i}", {"i": i}) for i in range(6)]
    study = Study([once(trials)], {}, {})
    now = 100.0
    slots = {(0, n): Place("host", 0, n, "cpu") for n in range(3)}
    journal = Journal(tmp_path, {"settings": {"experiment": "toy"}})
    resources = Resources(slots, lambda rank, message: None, clock=lambda: now)
    coordinator = Coordinator(study, journal, Scheduling(n_trials=6), resources)
    coordinator.step()
    coordinator.handle(0, Stepped({0: WorkerProgress(STARTING), 1: WorkerProgress("epoch", 2.4, 20), 2: AT_WORK}))
    now = 130.0
    seen = coordinator.overview()
    assert (seen.n_running, dict(seen.waiting), seen.total, seen.left) == (2, {STARTING: 1}, 6, None)
    assert [(one.key, one.step) for one in seen.running] == [("t1", "epoch 3 of 20"), ("t2", "")]
    note = note_of(seen)
    assert note == "2 running, 1 starting; longest: t1 at host/0/1/cpu for 30.0 s, epoch 3 of 20"
    coordinator.handle(0, Returned(0, (Result("t0", {"v": 0.0}, seconds=30.0),), 1))
    coordinator.step()
    assert coordinator.overview().left == 30.0, "three trials of 30 s on three slots"
    StatusFile(tmp_path).write(AT_TRIALS, seen)
    read = read_status_file(tmp_path)
    assert read is not None and (read.doing, read.overview) == (AT_TRIALS, seen)


def test_rank_0_keeps_a_small_file_while_it_runs(tmp_path: Path) -> None:
    job = start(tmp_path / "r", 4, "--seconds", 2.5, "--steps", 30)
    deadline = time.monotonic() + PATIENCE
    seen = None
    while seen is None or not any("lap" in one.step for one in seen.overview.running):
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
        seen = read_status_file(tmp_path / "r")
    assert seen.doing == AT_TRIALS and (seen.overview.total, seen.overview.slots) == (4, 2)
    assert re.fullmatch(r"lap \d+ of 30", next(one.step for one in seen.overview.running if one.step))
    assert abs(time.time() - seen.time) < 60
    wait_for_lines(tmp_path / "r", 2)
    assert job.wait(PATIENCE) == 0
    assert not list((tmp_path / "r").glob("*status*")), "the file is gone, with what was left of its writing"


def test_a_worker_sends_one_step_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = 0.0, list[WorkerProgress]()
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(worker._Wire, "send", lambda self, message: sent.append(message))
    wire = worker._Wire(SimpleNamespace(fileno=lambda: -1))  # type: ignore[arg-type]
    for step in range(1, 251):
        wire.report_step(step, 250, "lap")
        now += 0.01
    assert sent == [WorkerProgress("lap", float(step), 250.0) for step in (1, 101, 201)]


def test_a_file_of_a_stranger_is_no_status(tmp_path: Path) -> None:
    for content in (b"", b"[1]", b"{}", b'{"time": 3, "doing": "x"}', b"\xff", b"[" * 100_000):
        (tmp_path / "status.json").write_bytes(content)
        assert read_status_file(tmp_path) is None
