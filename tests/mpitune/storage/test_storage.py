"""What becomes of a study whose folder fails it: full, read-only, removed, damaged, shared, or written long ago."""

import errno
import fcntl
import json
import os
import re
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpitune.errors import Exit, StorageError, UsageError
from mpitune.options import RunOptions
from mpitune.port import Reporting
from mpitune.storage.history import JOURNAL
from mpitune.storage.journal import Journal, is_running
from mpitune.studies import run_study
from mpitune.tools import status
from tests.helpers import HEADER, journal_lines, journal_of, outcome, studied, table_without_run
from tests.toys import Toy

# A mount namespace of the script's own: its file systems vanish with it, whatever happens.


def test_a_failing_fsync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that promises more than it has: writes succeed, fsync does not."""

    def failing(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(Journal(tmp_path, HEADER)) as journal:
        monkeypatch.setattr(os, "fsync", failing)
        for write in (lambda: journal.append([outcome(0)]), lambda: journal.note(end={"complete": True})):
            with pytest.raises(StorageError, match="cannot be written .Input/output error.: fix that, then run"):
                write()


@pytest.mark.parametrize("joined", [False, True])
def test_a_second_job_in_a_folder_is_refused(tmp_path: Path, joined: bool) -> None:
    """The lock is that of a job that works alone, or has joined others."""
    studied(tmp_path, 3)
    whole = (tmp_path / JOURNAL).read_bytes()
    with open(tmp_path / JOURNAL, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH if joined else fcntl.LOCK_EX)
        for options in ({}, {"restart": True}, *([] if joined else [{"join": True}])):
            who = "a job that does not join others" if "join" in options else "another job"
            with pytest.raises(UsageError, match=f"{who} is writing") as error:
                run_study(Toy(3), RunOptions(workers=0, results=tmp_path, quiet=True, **options))
            assert ("in both jobs, which then share the work" in str(error.value)) == (not options)
    assert not list(tmp_path.glob("*-1*")) and (tmp_path / JOURNAL).read_bytes() == whole


def test_the_files_of_others_are_left_alone(tmp_path: Path) -> None:
    foreign = {"notes.txt": "mine", "before-2/mine.npz": "mine", "figures/.mine.part": "mine", ".mine.part": "mine"}
    foreign["before-1"] = "mine"
    for name, text in foreign.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    studied(tmp_path, 3, array_size=2)
    run_study(Toy(3, array_size=2, rounds=2), RunOptions(workers=0, results=tmp_path, restart=True, quiet=True))
    assert {name: (tmp_path / name).read_text() for name in foreign} == foreign
    assert (tmp_path / "before-3" / JOURNAL).exists() and len(list((tmp_path / "before-3/arrays").iterdir())) == 3


@dataclass(frozen=True)
class Reported(Toy):
    """Its report writes files that it does not name."""

    def reporting(self) -> Reporting:
        return Reporting()


def test_a_study_does_not_begin_where_it_could_overwrite_a_user_s_file(tmp_path: Path) -> None:
    names = ["arrays/a", "trials/a", "jobs/a", "trials.csv", "report.html", "status.json"]
    for number, (name, kind) in enumerate([*((name, Toy) for name in names), ("notes.txt", Reported)]):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        for options in ({}, {"restart": True}, {"join": True}):
            with pytest.raises(UsageError, match=f"{name.split('/')[0]} is no part of a study.*: move it, or give"):
                run_study(kind(3), RunOptions(workers=0, results=folder, quiet=True, **options))
        assert [path for path in folder.rglob("*") if path.is_file()] == [folder / name]
        assert (folder / name).read_text() == "mine"
    run_study(Reported(3), RunOptions(workers=0, results=tmp_path / "new", quiet=True))


def test_a_digit_that_changed_is_found_and_evaluated_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two kinds of damage: a digit, and a line of zeros where a trial was. All else is kept."""
    settings = {"rounds": 2, "array_size": 3}
    studied(tmp_path / "clean", 6, **settings)
    folder = tmp_path / "r"
    shutil.copytree(tmp_path / "clean", folder)
    content = (folder / JOURNAL).read_bytes()
    (digit,) = (line for line in content.splitlines() if b'"key":"r0/t2"' in line)
    (zeros,) = (line for line in content.splitlines() if b'"key":"r1/t4"' in line)
    rotten = content.replace(digit, digit.replace(b'"square":4.0', b'"square":5.0')).replace(zeros, bytes(len(zeros)))
    assert rotten != content
    (folder / JOURNAL).write_bytes(rotten)
    assert status.main([str(folder)]) == Exit.STOPPED and "stopped" in capsys.readouterr().out
    assert "(trial r0/t2) is damaged: its checksum" in caplog.text and "(1 more are): it is left out" in caplog.text
    studied(folder, 6, **settings)
    assert table_without_run(folder / "trials.csv") == table_without_run(tmp_path / "clean" / "trials.csv")
    content = (folder / JOURNAL).read_bytes()
    assert content.startswith(rotten) and content[len(rotten) :].count(b'"key"') == 2
    assert status.main([str(folder)]) == Exit.DONE


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSYS, "file system without locks (Function not"), (errno.EIO, "cannot be written")]
)
def test_a_file_system_that_refuses_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """Lustre without -o flock and some NFS have none."""
    studied(tmp_path / "there", 1)

    def refused(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(UsageError, match=re.escape(words)):
        studied(tmp_path / "r", 3)
    if number == errno.ENOSYS:
        assert not is_running(tmp_path / "there"), "no job can hold it where there are no locks"


def test_a_version_that_asks_for_other_trials_is_refused(tmp_path: Path) -> None:
    studied(tmp_path, 3)
    lines = (tmp_path / JOURNAL).read_bytes().replace(b'"x":1', b'"x":7').splitlines()
    changed = journal_of([json.loads(line) for line in lines])
    (tmp_path / JOURNAL).write_bytes(changed)
    with pytest.raises(UsageError, match="has trial t1 with x = 7"):
        studied(tmp_path, 3)
    assert (tmp_path / JOURNAL).read_bytes() == changed


def test_a_table_that_cannot_be_written_is_one_line_and_made_later(tmp_path: Path) -> None:
    """As on a full disk: here a folder lies under its name, which a file cannot replace."""
    studied(tmp_path, 3)
    (tmp_path / "trials.csv").unlink()
    in_its_way = tmp_path / "trials.csv" / "something"
    in_its_way.mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot be written \(Is a directory\)"):
        studied(tmp_path, 3)
    in_its_way.rmdir()
    in_its_way.parent.rmdir()
    studied(tmp_path, 3)
    assert len(journal_lines(tmp_path)) == 3 and (tmp_path / "trials.csv").is_file()
