"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from common.storage.waiting import waiting


@contextmanager
def written_whole(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """A file to write that appears under its name only when it is complete and on disk.

    It is written under a neighbouring name, fsynced and renamed; on an exception it is removed.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    slow = f"folder {path.parent} has not answered"
    try:
        text = "b" not in mode
        with waiting(slow):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(part, mode, newline="" if text else None, encoding="utf-8" if text else None)  # noqa: SIM115
        with file:
            yield file
            with waiting(slow):
                file.flush()
                os.fsync(file.fileno())
        with waiting(slow):
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replaced(path: Path, text: str) -> None:
    """Replace a file's content so that a reader finds the old or the new one whole; not durable. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with waiting(f"folder {path.parent} has not answered"):
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def remove_parts(folder: Path) -> None:
    """Remove what writers of `written_whole` that were killed left in a folder. No writer may be at work there."""
    for path in folder.glob(".*.part"):
        if re.fullmatch(r"\..+\.\d+\.part", path.name):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, as fsync of a file does for its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with waiting(f"folder {folder} has not answered"):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
