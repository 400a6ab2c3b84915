"""Studies that a results folder had before the one that is there now, whose header says where they are.

    "before": ["before-1"]                              the study there may use results of these, the oldest first
    RESULTS/before-1/journal.jsonl, arrays/, ...        each is a results folder of its own
    "aside": "before-1"                                 the study there was begun anew (restart), and uses none

A study that was set aside itself may use the results of one that is set aside beside it.

The journal of the study before is copied first, then the new one appears in its place, then the rest is moved. A start
that was killed in between is completed by the next one. Until then the new journal is a header alone, and no reader
takes the jobs beside it for its own (`History.half_moved`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.storage.files import JOBS, JOURNAL, PAGE, STATUS_FILE, TRIALS, regular_file, sync_folder, written_whole
from mpitune.storage.history import History, read_journal
from mpitune.storage.lines import LONGEST_LINE, read_header

MADE = ("arrays", "printed", TRIALS)  # by a study beside its journal, before its tables
MOVED = (*MADE, JOBS, PAGE, STATUS_FILE)  # with the files of its report, as far as they are known


@dataclass(frozen=True)
class Earlier:
    """A study whose results another one may use.

    Attributes:
        folder: Its results folder.
        history: Its content.
    """

    folder: Path
    history: History

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of its header."""
        settings: Mapping[str, Any] = self.history.header["settings"]
        return settings


def earlier_studies(folder: Path, header: Mapping[str, Any]) -> list[Earlier]:
    """Those that the header of the study in `folder` names, the oldest first. Raises UsageError where one is gone."""
    studies = []
    for name in header.get("before", ()):
        own, beside = folder / name, folder.absolute().parent / name
        place = beside if _is_aside(folder) and not own.exists() else own
        history = None if place.is_symlink() else read_journal(place)
        if history is None:
            raise UsageError(
                f"{place} holds no study, but {folder} uses its results: put it back, or give another folder"
            )
        studies.append(Earlier(place, history))
    return studies


def _is_aside(folder: Path) -> bool:
    return re.fullmatch("before-[0-9]+", folder.absolute().name) is not None


def require_moved(folder: Path) -> None:
    """Raise UsageError for a study that was set aside by half: the folder above still has what belongs to it."""
    above, history = folder.absolute().parent, None
    with suppress(UsageError):  # of a damaged journal
        history = read_journal(above) if _is_aside(folder) else None
    if history is not None and history.half_moved:
        raise UsageError(
            f"the study in {above} was being begun when its job was killed, so {folder} is not whole: run the command "
            f"of {above} first"
        )


def keep_before(folder: Path, size: int) -> str:
    """Copy the first `size` bytes of the journal in `folder` to a new folder in it, whose name is returned."""
    places = (folder, folder.absolute().parent) if _is_aside(folder) else (folder,)
    names = (f"before-{n}" for n in count(1))
    name = next(name for name in names if not any(os.path.lexists(place / name) for place in places))
    os.mkdir(folder / name)
    sync_folder(folder)
    with open(regular_file(folder / JOURNAL), "rb") as old, written_whole(folder / name / JOURNAL) as copy:
        shutil.copyfileobj(old, copy, 1 << 20)
        copy.truncate(size)  # without what a crash left of a last line
    sync_folder(folder / name)
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
