"""The journal: what is written is read back, what is torn is cut, what is foreign is refused."""

import fcntl
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpitune.errors import StorageError, UsageError
from mpitune.storage import journal as journal_module
from mpitune.storage import lines as lines_module
from mpitune.storage.history import JOURNAL, read_study
from mpitune.storage.journal import Journal, is_running
from mpitune.storage.table import last_line
from mpitune.trial import Result, Trial
from tests.helpers import HEADER, outcome


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    written = [
        outcome(0),
        outcome(1, values={"loss": float("inf"), "other": -float("inf")}),
        outcome(2, values={}, error="Traceback\nValueError: x", attempt=2),
        outcome(3, arrays={"p": array, "q": np.array(["a", "b"])}),
        outcome(4, ended=1.7e9, peak_bytes=1 << 30),
    ]
    journal = Journal(tmp_path, HEADER)
    stored = journal.append(written)
    journal.note(end={"complete": True})
    journal.close()
    history = read_study(tmp_path)
    assert history.complete
    for (trial, result), kept in zip(written, stored, strict=True):
        read = history.results[trial.key]
        assert history.trials[trial.key] == trial
        assert read.values == result.values and read.error == result.error
        assert (read.place, read.attempt, read.seconds) == (result.place, result.attempt, result.seconds)
        assert (read.ended, read.peak_bytes) == (result.ended, result.peak_bytes)
        for name, content in result.arrays.items():
            np.testing.assert_array_equal(read.arrays[name], content)
            np.testing.assert_array_equal(kept.arrays[name], content)
            assert read.arrays[name].dtype == content.dtype
    with pytest.raises(KeyError):
        history.results["a/3"].arrays["r"]


@pytest.mark.parametrize("size", [1, 100, 300, 1 << 20])
def test_a_journal_is_read_in_blocks_that_end_with_a_line(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(number) for number in range(9)])
        journal.note(end={"complete": True})
    monkeypatch.setattr(lines_module, "BLOCK_BYTES", size)
    whole = (tmp_path / JOURNAL).read_bytes()
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(whole.splitlines()[-1][:-1])  # torn: without its last byte and its newline
    history = read_study(tmp_path)
    assert list(history.results) == [f"a/{number}" for number in range(9)]
    assert history.size == len(whole) and history.complete
    (tmp_path / JOURNAL).write_bytes(whole.replace(b'"a/6"', b'"a/x"'))
    assert read_study(tmp_path).damaged[0].startswith("line 8 (trial a/x) is damaged: its checksum")


def test_what_is_acknowledged_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays and their folder before the line that names them, the journal at its full length, a new file's folder."""
    synced: list[tuple[str, int]] = []
    with_arrays: list[bool] = []
    fsync = os.fsync

    def spy(file: int) -> None:
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), tmp_path)
        synced.append(("arrays/part" if name.endswith(".part") else name, os.fstat(file).st_size))
        if name == ".":
            with_arrays.append((tmp_path / "arrays").exists())
        fsync(file)

    monkeypatch.setattr(os, "fsync", spy)
    with closing(Journal(tmp_path, HEADER)) as journal:
        assert [name for name, _ in synced] == [JOURNAL, "."] and synced[0][1] == (tmp_path / JOURNAL).stat().st_size
        synced.clear()
        journal.append([outcome(0, arrays={"a": np.zeros(2)})])
        assert [name for name, _ in synced] == [".", "arrays/part", "arrays", JOURNAL]
        assert with_arrays == [False, True]
        assert read_study(tmp_path).results.keys() == {"a/0"}  # nothing is left in a buffer
        assert synced[-1][1] == (tmp_path / JOURNAL).stat().st_size
        synced.clear()
        journal.append([outcome(1)])
        journal.append([])
        with pytest.raises(ValueError, match="not JSON"):
            journal.note(end={"seconds": float("nan")})
        with pytest.raises(ValueError, match="Object arrays cannot be saved"):
            journal.append([outcome(2, arrays={"a": np.array([None])})])
        assert synced == [(JOURNAL, (tmp_path / JOURNAL).stat().st_size)]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, kept: int) -> None:
    journal = Journal(tmp_path, HEADER)
    journal.append([outcome(0), outcome(1)])
    journal.close()
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    journal = Journal(tmp_path, HEADER)
    assert list(journal.history.results) == ["a/0"]
    journal.append([outcome(2)])
    journal.close()
    history = read_study(tmp_path)
    assert list(history.results) == ["a/0", "a/2"]


def test_keys_may_contain_anything(tmp_path: Path) -> None:
    journal = Journal(tmp_path, HEADER)
    keys = ["a/b", "a%2Fb", "../../x", "ü λ", "."]
    journal.append([(Trial(key, {}), Result(key, {}, {"k": np.array([i])})) for i, key in enumerate(keys)])
    journal.close()
    history = read_study(tmp_path)
    assert [int(history.results[key].arrays["k"][0]) for key in keys] == list(range(len(keys)))
    assert {path.parent for path in tmp_path.rglob("*.npz")} == {tmp_path / "arrays"}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    Journal(tmp_path, HEADER).close()
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        Journal(tmp_path / JOURNAL / "below", HEADER)


def test_a_look_at_the_folder_does_not_keep_a_job_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks whether a job runs holds the lock for an instant; a job that begins just then tries again."""
    Journal(tmp_path, HEADER).close()
    with open(tmp_path / JOURNAL, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(journal_module, "time", SimpleNamespace(sleep=lambda seconds: looking.close()))
        Journal(tmp_path, HEADER).close()


def test_a_journal_that_is_replaced_before_it_is_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(tmp_path, HEADER).close()
    whole = (tmp_path / JOURNAL).read_bytes()
    flock, fates = fcntl.flock, ["removed", "replaced"]

    def late(file: int, how: int) -> None:
        if fates:
            (tmp_path / JOURNAL).unlink()
        if fates and fates.pop() == "replaced":
            (tmp_path / JOURNAL).write_bytes(whole)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0)])
    assert not fates and is_running(tmp_path) is False


def test_a_journal_that_was_cut_or_replaced_under_its_writer_is_noticed(tmp_path: Path) -> None:
    """Nothing is written to the rest of a line, so the same command can go on."""
    journal = Journal(tmp_path, HEADER)
    journal.append([outcome(0), outcome(1), outcome(2)])
    size = (tmp_path / JOURNAL).stat().st_size
    os.truncate(tmp_path / JOURNAL, size - 100)
    for act in (
        journal.verify, lambda: journal.append([outcome(3)]), lambda: journal.note(end={"complete": True})
    ):  # fmt: skip
        with pytest.raises(StorageError, match="was cut while the study ran.*same command to continue"):
            act()
    journal.close()
    journal = Journal(tmp_path, HEADER)
    assert journal.history.results.keys() == {"a/0", "a/1"}
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b"\n")
    with pytest.raises(StorageError, match="written by another program"):
        journal.verify()
    (tmp_path / "copy").write_bytes((tmp_path / JOURNAL).read_bytes())
    (tmp_path / "copy").rename(tmp_path / JOURNAL)
    with pytest.raises(StorageError, match="removed or replaced"):
        journal.verify()
    journal.close()


def test_long_texts_are_cut_before_they_are_written(tmp_path: Path) -> None:
    long = "begin " + "x" * 5_000_000 + " end"
    with closing(Journal(tmp_path, HEADER)) as journal:
        (stored,) = journal.append([outcome(0, values={}, error=long)])
    history = read_study(tmp_path)
    for text in (stored.error, history.results["a/0"].error):
        assert text is not None and len(text) <= 64 << 10
        assert text.startswith("begin ") and text.endswith(" end") and "characters were cut" in text
    assert (tmp_path / JOURNAL).stat().st_size < 140_000
    assert len(last_line(long)) < 5000 and last_line(long).endswith(" end")


def test_trials_whose_arrays_were_removed_are_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(n, arrays={"a": np.zeros(2)} if n else {}) for n in range(40)])
    for number in (*range(1, 30), 35):
        (tmp_path / "arrays" / f"a%2F{number}.npz").unlink()
    with closing(Journal(tmp_path, HEADER)) as journal:
        assert len(journal.history.results) == 10 and "a/35" not in journal.history.results
    (line,) = caplog.messages
    assert "30 trials are evaluated again" in line and "and 10 others" in line
