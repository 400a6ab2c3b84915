"""Studies of a results folder whose results the study there may use, though its settings are others.

    RESULTS/journal.jsonl           its header has "before": [{"folder": "before-1", "adapt": {...}}], the oldest first
    RESULTS/before-1/journal.jsonl  the study before, a results folder of its own, with arrays/, printed/ and trials/

`adapt` is what `Experiment.adapted` said of the step from that study to the next one. The journal of the study before
is copied first, then the new one appears in its place, then folders are moved. A start that was killed in between is
completed by the next one, as long as the new journal has nothing but its header.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.storage.files import JOURNAL, regular_file, sync_folder, written_whole
from mpitune.storage.history import LONGEST_LINE, History, read_header, read_journal
from mpitune.trial import Parameter

MOVED = ("arrays", "printed", "trials", "jobs")


@dataclass(frozen=True)
class Earlier:
    """A study whose results another one may use.

    Attributes:
        folder: Its results folder.
        history: Its content.
        adapt: What `Experiment.adapted` said of the step from it to the next study.
    """

    folder: Path
    history: History
    adapt: Mapping[str, Parameter | None]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of its header."""
        settings: Mapping[str, Any] = self.history.header["settings"]
        return settings


def earlier_studies(folder: Path, header: Mapping[str, Any]) -> list[Earlier]:
    """Those that the header of the study in `folder` names, the oldest first. Raises UsageError where one is gone."""
    studies = []
    for entry in header.get("before", ()):
        place = folder / entry["folder"]
        history = None if place.is_symlink() else read_journal(place)
        if history is None:
            raise UsageError(
                f"{place} holds no study, but {folder} uses its results: put it back, or give another folder"
            )
        studies.append(Earlier(place, history, entry.get("adapt", {})))
    return studies


def keep_before(folder: Path, size: int) -> str:
    """Copy the first `size` bytes of the journal in `folder` to a new folder in it, whose name is returned."""
    number = 1
    while os.path.lexists(folder / f"before-{number}"):
        number += 1
    name = f"before-{number}"
    os.mkdir(folder / name)
    sync_folder(folder)
    with open(regular_file(folder / JOURNAL), "rb") as old, written_whole(folder / name / JOURNAL) as copy:
        shutil.copyfileobj(old, copy, 1 << 20)
        copy.truncate(size)  # without what a crash left of a last line
    sync_folder(folder / name)
    return name


def move_before(folder: Path) -> None:
    """Move what the newest study before has beside its journal to its folder, if the new journal is a header alone."""
    with open(regular_file(folder / JOURNAL), "rb") as journal:
        begun = len(journal.readline(LONGEST_LINE)) < os.fstat(journal.fileno()).st_size
    header = None if begun else read_header(folder)
    for entry in (header or {}).get("before", ())[-1:]:
        for name in MOVED:
            if os.path.lexists(folder / name) and not os.path.lexists(to := folder / entry["folder"] / name):
                os.rename(folder / name, to)
        sync_folder(folder)
