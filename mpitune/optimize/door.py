"""What doors of other tuners share: a folder of each study, what all ranks agree on, one line of what is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.optimize.kept import kept_by
from mpitune.optimize.search import slots_here
from mpitune.options import RunOptions
from mpitune.ranks import launch
from mpitune.storage.history import read_header
from mpitune.studies import join, on_all_ranks

studies_in: dict[Path, dict[Hashable, int]] = {}  # those of this process that have a results folder
_told_kept: set[str] = set()


def own_folder(options: RunOptions, study: Hashable) -> RunOptions:
    """The first study of a script has the results folder, the others have folders in it.

    study: what only the same study has.
    """
    if options.results is None:
        return options
    studies = studies_in.setdefault(Path(options.results).absolute(), {})
    known = len(studies)
    number = studies.setdefault(study, known + 1)
    results = Path(options.results) / f"study-{number}" if number > 1 else options.results
    return replace(options, results=results, restart=options.restart and number > known)


def known_settings(options: RunOptions) -> dict[str, Any]:
    """What the journal in the results folder says of the study that is continued; nothing where one begins."""
    header = None if options.results is None or options.restart else read_header(options.results)
    return {} if header is None else header["settings"]


def require_script(options: RunOptions) -> None:
    """Raise UsageError where each rank runs the script, so that each would have a study of its own in memory."""
    if join(options).size > 1 and not launch.others_wait:
        raise UsageError(
            "each rank has a study of its own: start the script as mpirun -n 2 python -m mpitune script.py"
        )


def say_kept(function: Callable[..., Any], fix: str, options: RunOptions) -> None:
    """Say, once, what an objective stores for the script, which does not see it."""
    if (kept := named(kept_by(function), "")) and kept not in _told_kept and not join(options).rank:
        _told_kept.add(kept)
        print(
            f"the objective stores {kept}, which the script does not see, as it runs in a worker: {fix}",
            file=sys.stderr,
        )


@on_all_ranks()
def agreed(options: RunOptions, seed: int) -> tuple[int, int]:
    """The slots of all ranks, and the seed of rank 0. Raises UsageError on all, where one has no such devices."""
    transport = join(options)
    with transport.refusing_together():
        slots = slots_here(options)
    slots, seed = transport.broadcast((sum(transport.gather(slots)), seed))
    return slots, seed
