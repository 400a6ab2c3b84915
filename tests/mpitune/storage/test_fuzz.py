"""Readers of files, given what no program wrote: they refuse it in one line, or read it; they never fall over."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitune.errors import UsageError
from mpitune.report.page import page, report_of
from mpitune.storage.history import JOURNAL, read_journal, read_study
from mpitune.storage.journal import Journal
from mpitune.storage.trials import read as exported
from mpitune.tools.status import described, status_of
from tests.helpers import HEADER, journal_of, outcome

quickly = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


def accepted(folder: Path) -> bool:
    """Whether the journal is read; if it is, all that is done with one works, and if not, it says so in one line."""
    try:
        history = read_journal(folder)
        if history is not None:
            "\n".join(described(status_of(folder, history, running=False))).encode()
            for result in history.results.values():
                assert isinstance(result.failed, bool) and isinstance(result.seconds, float)
            whole = read_study(folder)
            page(report_of(folder, whole, None, None)).encode()
            assert len(exported(folder).rows()) <= len(whole.trials)
    except UsageError as error:
        assert "\n" not in str(error) and JOURNAL in str(error)
        return False
    try:
        Journal(folder, HEADER).close()
    except UsageError as error:
        assert "\n" not in str(error)
    return True


@quickly
@given(content=st.binary(max_size=400))
def test_a_journal_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    accepted(tmp_path)


@quickly
@given(data=st.data())
def test_a_journal_with_a_part_replaced(tmp_path: Path, data: st.DataObject) -> None:
    """One value somewhere in a sound journal becomes any other JSON value, or is left out."""
    lines = _sound_lines(tmp_path)
    spots = [(number, path) for number, line in enumerate(lines) for path in _paths(line)]
    number, path = data.draw(st.sampled_from(spots))
    changed = copy.deepcopy(lines)
    inside: Any = changed[number]
    for step in path[:-1]:
        inside = inside[step]
    if isinstance(inside, dict) and data.draw(st.booleans()):
        del inside[path[-1]]
    else:
        inside[path[-1]] = data.draw(values)
    (tmp_path / JOURNAL).write_bytes(journal_of(changed, compact=data.draw(st.booleans())))
    accepted(tmp_path)


@quickly
@given(data=st.data())
def test_a_journal_with_bytes_changed(tmp_path: Path, data: st.DataObject) -> None:
    """What is read then are lines as they were written: a change of a digit is found by the checksum."""
    sound = journal_of(_sound_lines(tmp_path))
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / JOURNAL).write_bytes(content)
    if accepted(tmp_path):
        lines, whole = bytes(content).split(b"\n")[:-1], sound.split(b"\n")
        history = read_journal(tmp_path)
        assert history is None or len(set(lines) - set(whole)) <= len(history.damaged)


@pytest.mark.parametrize("garbage", [b"[" * 100_000, b'{"a":' * 100_000, b'"\\ud800"', b"1" * 10_000, b"1e999"])
@pytest.mark.parametrize("line", [0, 2])
def test_a_journal_with_a_line_that_parsers_dislike(tmp_path: Path, garbage: bytes, line: int) -> None:
    lines = journal_of(_sound_lines(tmp_path)).splitlines()
    lines[line] = garbage
    (tmp_path / JOURNAL).write_bytes(b"\n".join(lines) + b"\n")
    assert accepted(tmp_path) == (line > 0)


def test_a_sound_journal_is_accepted(tmp_path: Path) -> None:
    lines = _sound_lines(tmp_path)
    (tmp_path / JOURNAL).write_bytes(journal_of(lines))
    assert accepted(tmp_path) and len(lines) == 6


def _sound_lines(folder: Path) -> list[Any]:
    path = folder / "sound"
    if not (path / JOURNAL).exists():
        journal = Journal(path, HEADER)
        journal.note(run={"n_trials": 9, "slots": []})
        journal.append([outcome(0), outcome(1, values={}, error="Killed"), outcome(2, arrays={"a": np.zeros(2)})])
        journal.note(end={"complete": False})
        journal.close()
    records = [json.loads(line) for line in (path / JOURNAL).read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "crc"} for record in records]


def _paths(thing: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value inside a JSON value."""
    items = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    return [found for step, inner in items for found in [(*path, step), *_paths(inner, (*path, step))]]
