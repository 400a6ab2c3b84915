"""Repair of a journal: damaged lines are set aside as they are, all else is kept."""

import errno
import json
import os
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mpitune.errors import Exit, UsageError
from mpitune.storage.history import NAME, read_journal, read_study
from mpitune.storage.journal import Journal
from mpitune.storage.repair import repair
from mpitune.tools import report
from tests.helpers import HEADER, journal_of, outcome, studied


def test_what_is_not_damaged_is_not_touched(tmp_path: Path) -> None:
    assert repair(tmp_path) == ([], tmp_path / "damaged-1.jsonl") and not any(tmp_path.iterdir())
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0)])
    before = (tmp_path / NAME).read_bytes()
    assert repair(tmp_path)[0] == []
    assert [path.name for path in tmp_path.iterdir()] == [NAME] and (tmp_path / NAME).read_bytes() == before


def test_damaged_lines_and_arrays_are_set_aside_as_they_are(tmp_path: Path) -> None:
    """An array of the second line, then a byte of the third: named in the order of lines, however they were found."""
    with closing(Journal(tmp_path, HEADER)) as journal:
        stored = journal.append([outcome(0, arrays={"a": np.zeros(9)}), outcome(1), outcome(2)])
    array = tmp_path / "arrays" / "a%2F0.npz"
    array.write_bytes(array.read_bytes()[:-30])
    assert stored[0].arrays.keys() == {"a"}
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"0.25", b"0.26")
    (tmp_path / NAME).write_bytes(b"".join(lines))
    damaged, aside = repair(tmp_path)
    assert [(damage.number, damage.key) for damage in damaged] == [(2, "a/0"), (3, "a/1")]
    assert aside.read_bytes() == lines[1] + lines[2]
    kept = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    assert kept[1] == lines[3] and all(line.count(b'"crc"') == 1 for line in kept)
    (note,) = (json.loads(line)["repair"] for line in kept[2:])
    assert note["lines"] == 2 and note["aside"] == aside.name
    history = read_journal(tmp_path)
    assert history is not None and list(history.results) == ["a/2"]
    assert repair(tmp_path) == ([], tmp_path / "damaged-2.jsonl")


def test_a_repair_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0)])
    rotten = (tmp_path / NAME).read_bytes().replace(b"0.25", b"0.26")
    (tmp_path / NAME).write_bytes(rotten)

    def full(part: str, path: str, **folders: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="cannot be repaired: No space left"):
        repair(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME] and (tmp_path / NAME).read_bytes() == rotten


def test_an_array_or_an_error_of_another_kind_is_damage(tmp_path: Path) -> None:
    """In the file of arrays lies a text under the name of an array; an error is a number."""
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0, arrays={"a": np.zeros(9)}), outcome(1), outcome(2)])
    with zipfile.ZipFile(tmp_path / "arrays" / "a%2F0.npz", "w") as file:
        file.writestr("a", "no array")
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    lines[2]["error"] = 3
    (tmp_path / NAME).write_bytes(journal_of(lines))
    reasons = [(damage.key, damage.reason) for damage in repair(tmp_path)[0]]
    assert [key for key, _ in reasons] == ["a/0", "a/1"]
    assert "its a is not an array" in reasons[0][1] and "Expected `str | null`, got `int`" in reasons[1][1]


def test_a_failure_before_a_damaged_success_does_not_become_the_result(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0), outcome(1, values={}, error="Killed")])
        journal.append([outcome(1)])
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[:-30] + b"?" + content[-29:])
    damaged, _ = repair(tmp_path)
    assert [damage.key for damage in damaged] == ["a/1"]
    assert read_study(tmp_path).results.keys() == {"a/0"}


def test_a_study_whose_start_was_set_aside_has_a_report(tmp_path: Path) -> None:
    """Without a start there is no timeline; all else is there."""
    studied(tmp_path, 3)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content.replace(b'"threads"', b'"thraeds"'))
    assert [damage.number for damage in repair(tmp_path)[0]] == [2]
    assert report.main([str(tmp_path)]) == Exit.DONE
    page = (tmp_path / "report.html").read_text()
    assert "does not say when trials ended" in page and "3 candidates" in page
