"""The lines of a journal, whatever they say, and its header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mpitune.errors import UsageError, or_typed
from mpitune.storage.files import JOURNAL, regular_file
from mpitune.storage.records import UNREADABLE, HeaderLine, checked, read_line, require_checksum

FORMAT = 5
BEGINNING = b'{"format":'
BLOCK_BYTES = 1 << 17  # bytes that are read at a time: what is made of them fits the processor's cache
LONGEST_LINE = 64 << 20  # bytes: more than any program here writes, and no computer's memory


def blocks(folder: Path) -> Iterator[list[bytes]]:
    """The whole lines of a journal without newlines, the first one alone, then many at a time; none where it is not.

    Raises:
        UsageError: where the file cannot be read, begins like no journal, or has a line without an end, such as a hole
            of a sparse file.
    """
    path = folder / JOURNAL
    try:
        with open(regular_file(path), "rb") as file:
            block = _rest_of_line(file, path)
            if not block.endswith(b"\n") and block[: len(BEGINNING)] != BEGINNING[: len(block)]:
                raise _no_header(path)
            while block:
                *lines, torn = block.split(b"\n")
                yield lines
                if torn:  # by a crash, or it is being written
                    return
                block = file.read(BLOCK_BYTES)
                if block and not block.endswith(b"\n"):
                    block += _rest_of_line(file, path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _rest_of_line(file: IO[bytes], path: Path) -> bytes:
    """A line, or the rest of one. Raises UsageError for one without an end."""
    line = file.readline(LONGEST_LINE)
    if len(line) == LONGEST_LINE:
        raise UsageError(
            f"{path} has a line of more than {LONGEST_LINE >> 20} MiB, which no study writes: keep a copy, then cut it "
            "off there, or use another results folder"
        )
    return line


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header of the journal in `folder`, without reading more; None where there is none. Raises UsageError."""
    first = next(blocks(folder), [])
    return header_of(folder / JOURNAL, first[0]) if first else None


def header_of(path: Path, line: bytes) -> dict[str, Any]:
    """The first line of a journal. Raises UsageError where it is none that can be trusted."""
    try:
        header = read_line(line)
        if not isinstance(header, dict):
            raise _no_header(path)
        version = header["format"]
        if type(version) is int and version != FORMAT:
            raise UsageError(f"{path} has format {version}, this program reads {FORMAT}: use the version that wrote it")
        require_checksum(line)
        return checked(header, HeaderLine)
    except UsageError:
        raise
    except UNREADABLE as error:
        raise _no_header(path) from error


def _no_header(path: Path) -> UsageError:
    return UsageError(
        f"line 1 of {path} is not a journal header, or is damaged: use another results folder{or_typed('restart')}"
    )
