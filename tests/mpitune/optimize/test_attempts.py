"""Each attempt of each job has its own folder. One process plays several jobs here, with the class that workers use."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mpitune.errors import StorageError
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.strategies.base import trial_of


def began(trials: Path, job: str, stage: int | None = None, wrote: str = "") -> AttemptFolder:
    """An attempt at trial 7 that has written its name, after those that it has found."""
    attempt = AttemptFolder(trial_of(7, {}, stage), trials, job)
    state = attempt.make() / "state"
    state.write_text((state.read_text() if state.exists() else "") + (wrote or job))
    return attempt


def test_jobs_do_not_meet_in_a_trial_s_folder(tmp_path: Path) -> None:
    def found() -> str:
        return (tmp_path / "t000007" / "state").read_text()

    sleeper = began(tmp_path, "a")
    other = began(tmp_path, "b")  # which takes it for dead
    assert sleeper.path != other.path and found() == "ab"
    other.finish()
    (sleeper.path / "state").write_text("awake")
    sleeper.finish()
    assert found() == "ab"  # the first that has finished stays the trial's
    died = began(tmp_path, "b", 1, "-died")
    assert died.path == other.path and found() == "ab-died"  # its own job goes on there
    late = began(tmp_path, "a", 0, "late")  # which knows nothing of it
    late.finish()
    retry = began(tmp_path, "c", 1)
    retry.finish()
    assert found() == "ab-diedlatec" and not late.path.exists()  # its stage is over: nobody goes on from there
    died.finish()
    assert found() == "ab-diedlatec"
    began(tmp_path, "a", 0, "later").finish()
    assert found() == "ab-diedlatec"  # which is further
    last = began(tmp_path, "a", 2)
    assert retry.path.exists() and found() == "ab-diedlateca"
    last.finish()
    assert not retry.path.exists() and found() == "ab-diedlateca"


def test_an_attempt_of_a_job_alone_takes_over_and_removes_what_was_before(tmp_path: Path) -> None:
    died = began(tmp_path, "", 0, "1")
    os.mkfifo(died.path / "socket")
    (died.path / "latest").symlink_to(died.path / "state")
    again = began(tmp_path, "", 0, "2")
    assert again.path.name == ".t000007.2" and not died.path.exists()
    assert (again.path / "latest").read_text() == "12" and not (again.path / "socket").exists()
    again.finish()
    assert began(tmp_path, "", 1).path == again.path and sorted(os.listdir(tmp_path)) == [".t000007.2", "t000007"]
    (tmp_path / "t000007").unlink()
    again.path.rename(tmp_path / "t000007")  # as a copy that has followed links
    assert (began(tmp_path, "x", 1, "3").path / "state").read_text() == "123"


def test_work_that_is_gone_is_said(tmp_path: Path) -> None:
    """As in a copy of the results without links, or without hidden files."""
    began(tmp_path, "a", 0).finish()
    (tmp_path / "t000007").unlink()
    with pytest.raises(StorageError, match=r"t000007 cannot .*the link to \.t000007\.1-a is gone"):
        began(tmp_path, "a", 1)
    shutil.rmtree(tmp_path / ".t000007.1-a")
    died = began(tmp_path, "a", 0)
    shutil.rmtree(died.path)
    of_parent = trial_of(8, {}, 1, parent="t000007/0")
    for segment, job in ((trial_of(7, {}, 0), "a"), (trial_of(7, {}, 1), "b"), (of_parent, "a")):
        with pytest.raises(
            StorageError, match=r"t\d+(-1)? cannot .*t000007 leads to \.t000007\.1-a, which is not there"
        ):
            AttemptFolder(segment, tmp_path, job).make()
    assert os.listdir(tmp_path) == ["t000007"]


def test_a_fault_that_an_objective_swallows_is_raised_in_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t000007")
    attempt = AttemptFolder(trial_of(7, {}), tmp_path)
    attempt.finish()  # as it has not asked for the folder
    with suppress(StorageError):
        attempt.make()
    with pytest.raises(StorageError, match="t000007 cannot be read or written"):
        attempt.finish()


def test_a_folder_is_copied_as_it_was_at_one_moment(tmp_path: Path) -> None:
    """The first file says what the others are like; a job that is awake writes them all the time."""
    awake = began(tmp_path, "a").path
    over = threading.Event()

    def write() -> None:
        n = 0
        while not over.is_set():
            n += 1
            for name in range(40):
                (awake / f"{name:02}").write_text(str(n))
            time.sleep(0.5)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.2)
        for job in ("b", "c", "d"):
            (tmp_path / "t000007").unlink()
            (tmp_path / "t000007").symlink_to(awake.name)
            copy = began(tmp_path, job).path
            assert len({(copy / f"{name:02}").read_text() for name in range(40)}) == 1
    finally:
        over.set()
        writer.join()
