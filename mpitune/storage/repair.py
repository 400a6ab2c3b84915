"""Repair of a journal: what is damaged is set aside as it is, in a file of its own, and all else is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

from mpitune.errors import UsageError
from mpitune.storage.arrays import StoredArrays
from mpitune.storage.earlier import unused
from mpitune.storage.files import sync_folder, written_whole
from mpitune.storage.history import NAME, Damage, History, read_lines
from mpitune.storage.journal import open_locked
from mpitune.storage.lines import whole_lines
from mpitune.storage.records import UNREADABLE, TrialLine, read_other, require_checksum, written


def repair(folder: Path) -> tuple[list[Damage], Path]:
    """Set the damaged lines of a journal aside, and trials whose arrays are damaged, in a file of their own.

    The journal is then written again, whole or not at all, with all other lines as they were.

    Returns:
        (what was damaged, in the order of lines; the file that holds these lines, which is made only if there is any).

    Raises:
        UsageError: where the header is damaged, another job holds the folder, or a file cannot be written.
    """
    if not os.path.lexists(folder / NAME):
        return [], folder / "damaged-1.jsonl"
    try:
        with open_locked(folder / NAME):
            read = read_lines(folder)
            aside = folder / f"damaged-{unused(folder, 'damaged-{}.jsonl')}.jsonl"
            if read is None:
                return [], aside
            history, damaged = read
            lines = whole_lines(folder)
            reasons = _damaged_arrays(history)
            damaged += [Damage(number, key, reasons[key]) for number, key in _lines_of(reasons.keys(), lines)]
            damaged.sort(key=lambda damage: damage.number)
            if damaged:
                # An older failure of such a trial may be left, and must not become its result again.
                lost = {damage.key for damage in damaged if damage.key is not None}
                failed = {key for key in lost & history.results.keys() if history.results[key].failed}
                numbers = {damage.number for damage in damaged} | {number for number, _ in _lines_of(failed, lines)}
                _set_lines_aside(folder, lines, numbers, aside)
            return damaged, aside
    except OSError as error:
        raise UsageError(f"{folder} cannot be repaired: {error.strerror}") from error


def _damaged_arrays(history: History) -> dict[str, str]:
    """Why the arrays of a trial cannot be read, by key."""
    reasons = {}
    for key in history.with_arrays:
        try:
            arrays = history.results[key].arrays
            assert isinstance(arrays, StoredArrays)
            arrays.check()
        except UsageError as error:
            reasons[key] = str(error)
    return reasons


def _lines_of(keys: Set[str], lines: Sequence[bytes]) -> list[tuple[int, str]]:
    """(number, key) of each sound line of these trials."""
    numbers = []
    for number, line in enumerate(lines, start=1) if keys else ():
        with suppress(*UNREADABLE):
            require_checksum(line)
            record = read_other(line)
            if isinstance(record, TrialLine) and record.key in keys:
                numbers.append((number, record.key))
    return numbers


def _set_lines_aside(folder: Path, lines: Sequence[bytes], numbers: set[int], aside: Path) -> None:
    """Write the lines with these numbers to `aside`, then the journal without them."""
    with written_whole(aside) as file:
        file.writelines(line + b"\n" for number, line in enumerate(lines, 1) if number in numbers)
    note = {"repair": {"lines": len(numbers), "aside": aside.name, "time": time.strftime("%FT%T%z")}}
    with written_whole(folder / NAME) as file:
        file.writelines(line + b"\n" for number, line in enumerate(lines, 1) if number not in numbers)
        file.write(written(note))
    sync_folder(folder)
