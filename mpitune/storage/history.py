"""Reading a journal: its trials and results, checked line by line, since anyone may have written it."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mpitune.errors import UsageError, shortened
from mpitune.storage.files import regular_file
from mpitune.storage.lines import NAME, UNREADABLE, TrialLines, damaged_journal, has_checksum, parsed
from mpitune.storage.notes import Death, check_header, read_death, read_end, read_run
from mpitune.storage.stored import StoredResults, StoredTrials
from mpitune.trial import Result, Trial

FORMAT = 2  # 1 has no checksums; it is still read, and continued
BEGINNING = b'{"format":'
BLOCK = 1 << 20  # bytes that are read at a time
LONGEST_LINE = 64 << 20  # bytes: more than any program here writes, and no computer's memory
MOST_DAMAGED = 100_000  # lines, after which a journal is none
_KEY = re.compile(rb'"key":"((?:[^"\\]|\\.){1,1000})"')


@dataclass
class History:
    """The content of a journal: its header, the trials with their results by key, its starts and ends, and deaths."""

    header: dict[str, Any]
    trials: Mapping[str, Trial] = field(default_factory=dict)
    results: MutableMapping[str, Result] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)  # with the "seconds" of its end, unless it was killed
    ends: list[dict[str, Any]] = field(default_factory=list)  # fewer than runs where a run was killed
    deaths: list[Death] = field(default_factory=list)
    open: bool = False  # the last run has no end so far
    size: int = 0  # bytes up to the end of the last whole line
    complete: bool = False  # the last thing written is the mark of a finished study


@dataclass(frozen=True)
class Damage:
    """A line of a journal that cannot be used.

    Attributes:
        number: of the line, from 1.
        key: of its trial, None if not known.
    """

    number: int
    key: str | None
    reason: str

    def __str__(self) -> str:
        trial = f" (trial {self.key})" if self.key is not None else ""
        return f"line {self.number}{trial} is damaged: {self.reason}"


def read_journal(folder: Path) -> History | None:
    """Read the journal in `folder`; None where there is none. Trials and results are parsed when they are looked at.

    Raises:
        UsageError: for a line that is damaged or no record of this format, naming file, line number and trial.
    """
    found = read_lines(folder, keep=False)
    if found is None:
        return None
    history, _, damaged = found
    if damaged:
        more = f" ({len(damaged) - 1} more are)" if len(damaged) > 1 else ""
        raise damaged_journal(folder, f"{damaged[0]}{more}")
    return history


def read_lines(folder: Path, keep: bool = True) -> tuple[History, list[bytes], list[Damage]] | None:
    """The content of the whole lines of the journal in `folder`, the lines themselves, and the damaged ones.

    Args:
        folder: of the study.
        keep: whether to return the lines, which take much memory; else the header alone.

    Returns:
        (what the sound lines say, all lines without their newlines, the damaged ones in order); None where there is
        no journal yet.

    Raises:
        UsageError: where the file cannot be read, or its first line is no header that can be trusted.
    """
    path = folder / NAME
    try:
        file = open(regular_file(path), "rb")  # noqa: SIM115 - closed by the with below
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with file, no_collection():
        try:
            first = _line_of(file, path)
            if not first.endswith(b"\n") and first[: len(BEGINNING)] == BEGINNING[: len(first)]:
                return None
            if not first.endswith(b"\n"):
                raise _no_header(path)
            trials = TrialLines(folder)
            header = _read_header(path, first[:-1])
            history = History(header, StoredTrials(trials), StoredResults(trials), size=len(first))
            lines = [first[:-1]]
            damaged: list[Damage] = []
            number = 2
            while block := file.read(BLOCK):
                if not block.endswith(b"\n"):
                    block += _line_of(file, path)
                *some, torn = block.split(b"\n")
                history.size += len(block) - len(torn)
                others = range(len(some)) if keep else trials.take(some)  # to be repaired: each is parsed
                _read_some(some, others, number, history, trials, damaged)
                number += len(some)
                if len(damaged) > MOST_DAMAGED:
                    raise UsageError(f"{path} has over {MOST_DAMAGED:,} damaged lines: use another --results folder")
                if keep:
                    lines += some
                if torn:  # by a crash, or it is being written
                    break
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return history, lines, damaged


def _line_of(file: IO[bytes], path: Path) -> bytes:
    """A line, or the rest of one. Raises UsageError for one without an end, such as a hole of a sparse file."""
    line = file.readline(LONGEST_LINE)
    if len(line) == LONGEST_LINE:
        raise UsageError(
            f"{path} has a line of more than {LONGEST_LINE >> 20} MiB, which no study writes: cut it off there, "
            "or use another --results folder"
        )
    return line


def _read_some(
    lines: list[bytes],
    others: Iterable[int],
    number: int,
    history: History,
    trials: TrialLines,
    damaged: list[Damage],
) -> None:
    """Read neighbouring lines, the first of which has this number; those at the places `others` are parsed."""
    checked = history.header["format"] >= 2
    place = -1
    for place in others:
        line = lines[place]
        try:
            record = parsed(line, checked)
            history.complete = False
            if "key" in record:
                trials.take_parsed(record, line)
            else:
                _read_note(record, history)
        except UsageError:
            raise
        except UNREADABLE as error:
            key = _KEY.search(line)
            name = None if key is None else key[1].decode(errors="replace")
            damaged.append(Damage(number + place, name, str(error) or type(error).__name__))
    if place < len(lines) - 1:  # a trial comes last
        history.complete = False


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header of the journal in `folder`, without reading more; None where there is none. Raises UsageError."""
    try:
        with open(regular_file(folder / NAME), "rb") as file:
            line = _line_of(file, folder / NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{folder / NAME} cannot be read: {error.strerror}") from error
    return _read_header(folder / NAME, line[:-1]) if line.endswith(b"\n") else None


def read_study(folder: Path) -> History:
    """Read the journal in `folder`, with all trials and results parsed, for those who look at them more than once.

    Raises:
        UsageError: as `read_journal`, and where there is none.
    """
    history = read_journal(folder)
    if history is None:
        raise UsageError(f"{folder} holds no study: give the results folder of one")
    assert isinstance(history.results, StoredResults)
    with no_collection():
        history.trials, history.results = history.results.lines.all()
    return history


def require_same_study(
    folder: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any], *, fix: str, first: Path | None = None
) -> None:
    """Raise UsageError, which names the first setting that differs, unless two studies have the same settings.

    Args:
        folder: of the study with the settings `theirs`.
        theirs: settings that are there.
        mine: settings that are expected.
        fix: what the user can do.
        first: folder of the study with the settings `mine`; None where they are those of the command.
    """
    if (name := differing_setting(mine, theirs)) is not None:
        there, wanted = (shortened(str(one.get(name)), 1000) for one in (theirs, mine))
        expected = f"not {wanted}" if first is None else f"{first} one with {wanted}"
        raise UsageError(f"{folder} holds a study with {name} = {there}, {expected}: {fix}")


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk all records again and again while they grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header = parsed(line, checked=False)
        version = header["format"]
        if type(version) is int and version > FORMAT:
            raise UsageError(
                f"{path} has format {version}, this program reads up to {FORMAT}: use a newer version of it"
            )
        check_header(header)
    except UsageError:
        raise
    except UNREADABLE as error:
        raise _no_header(path) from error
    if version >= 2 and not has_checksum(line):
        raise _no_header(path)
    return header


def _no_header(path: Path) -> UsageError:
    return UsageError(
        f"line 1 of {path} is not a journal header, or is damaged: use another --results folder, or --restart"
    )


def _read_note(record: dict[str, Any], history: History) -> None:
    """Take in a line that is no trial: a start, an end, a death or a repair."""
    if "run" in record:
        history.runs.append(read_run(record["run"]))
        history.open = True
    elif "end" in record:
        end = read_end(record["end"])
        if not history.open and history.ends:  # the run was told to stop, and now it has
            history.ends.pop()
        history.ends.append(end)
        if history.runs and "seconds" in end:
            history.runs[-1]["seconds"] = float(end["seconds"])
        history.open = False
        history.complete = end["complete"]
    elif "death" in record:
        history.deaths.append(read_death(record["death"]))
    elif "repair" not in record:  # which says for people what was set aside
        raise ValueError("it has no key, run or end")


def differing_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first setting in which two studies differ, None where they are the same study."""
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)
