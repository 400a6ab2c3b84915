"""A study that another one in its results folder follows is set aside: moved to a folder there.

    "before": ["before-1"]   in a header: the study may use results of these, the oldest first
    "aside": "before-1"      it was begun anew (restart), and uses none
    RESULTS/before-1/journal.jsonl, arrays/, ...   each is a results folder of its own

The journal of the study before is copied first, then the new one appears in its place, then the rest is moved. A start
that was killed in between is completed by the next one. Until then the new journal is a header alone, and no reader
takes the jobs beside it for its own (`History.half_moved`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.storage.files import JOBS, JOURNAL, PAGE, STATUS_FILE, TRIALS, regular_file, sync_folder, written_whole
from mpitune.storage.lines import LONGEST_LINE, read_header

MADE = ("arrays", TRIALS)  # by a study beside its journal, before its tables
MOVED = (*MADE, JOBS, PAGE, STATUS_FILE)  # with the files of its report, as far as they are known


def keep_before(folder: Path, size: int) -> str:
    """Copy the first `size` bytes of the journal in `folder` to a new folder in it, whose name is returned."""
    for name in map("before-{}".format, count(1)):
        with suppress(OSError):
            os.rmdir(folder / name)  # empty, of a start that found the disk full
        if not os.path.lexists(folder / name):
            break
    with open(regular_file(folder / JOURNAL), "rb") as old, written_whole(folder / name / JOURNAL) as copy:
        shutil.copyfileobj(old, copy, 1 << 20)
        copy.truncate(size)  # without what a crash left of a last line
    sync_folder(folder / name)
    sync_folder(folder)
    return name


def move_before(folder: Path, files: Collection[str]) -> None:
    """Move what the newest study before has beside its journal to its place, if the new journal is a header alone."""
    header: Mapping[str, Any] = {}
    with open(regular_file(folder / JOURNAL), "rb") as journal, suppress(UsageError):  # a damaged header says nothing
        if len(journal.readline(LONGEST_LINE)) == os.fstat(journal.fileno()).st_size:
            header = read_header(folder) or {}
    before = [header["aside"]] if header.get("aside") else [*header.get("before", ())]
    for name in (*MOVED, *files) if before else ():
        to = folder / before[-1] / name
        if os.path.lexists(folder / name) and not os.path.lexists(to):
            os.rename(folder / name, to)
            sync_folder(folder)
