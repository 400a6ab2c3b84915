"""How a study is run: the options of every program that results do not depend on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, is_kept
from mpitune.settings import MOST_SECONDS, Parser, add_settings, require_numbers, setting

seconds = partial(setting, low=0, high=MOST_SECONDS, metavar="S", advanced=True)


@dataclass(frozen=True)
class RunOptions:
    """How a study is run; none of it changes the results."""

    gpu: str | None = setting(
        None, "GPUs of each node: positions in the visible list (0,1), GPU-/MIG- names, all, or none; 0,0 puts two "
        "workers on one (default: the first GPU, else the CPU)"
    )  # fmt: skip
    workers: int | None = setting(
        None, "CPU workers per node, with --gpu none (default: one per core)", low=1, high=4096
    )
    threads: int = setting(
        1, "numerical threads per worker; another number changes the last bits", low=1, high=1024, advanced=True
    )
    batch: int = setting(
        0, "tuning parameters (parameter sets; all folds of one count once) per worker before a new one is started; 0 "
        "keeps the worker", low=0, metavar="N"
    )  # fmt: skip
    results: Path | None = setting(None, "folder of the study (default results/ and the program's name)")
    restart: bool = setting(False, "move the study in the results folder to before-1/ there, and begin a new one")
    adapt: bool = setting(
        False, "use what the study in the results folder knows for one of other settings, as far as it counts"
    )
    changed: tuple[str, ...] = setting(
        (), "functions that were changed since, by name, whose known results still count", metavar="NAME", advanced=True
    )  # fmt: skip
    retry_failed: bool = setting(False, "evaluate again the trials that have failed", advanced=True)
    trial_timeout: float | None = seconds(
        None, "seconds without a result after which a trial is killed and tried again", low=0.001
    )
    join: bool = setting(
        False, "work on the study in the results folder beside other jobs that join it, now or later", advanced=True
    )
    grace: float = seconds(30.0, "seconds left to running trials when the job is told to stop")
    walltime_margin: float = seconds(
        60.0, "begin no batch that would end later than this before the time limit of a Slurm job"
    )
    heartbeat_timeout: float = seconds(
        20.0, "seconds without a heartbeat after which a node counts as dead; 0 for never"
    )
    expect_nodes: int | None = setting(
        None, "refuse to run on another number of nodes", low=1, metavar="N", advanced=True
    )
    track: tuple[str, ...] = setting(
        (), "write the study as it runs to mlflow:FOLDER (or its URI), tensorboard:FOLDER, wandb or wandb:FOLDER; "
        "several may be given", metavar="TRACKER", advanced=True,
    )  # fmt: skip
    worker_folders: Path | None = setting(
        None, "each worker works in a folder of its own in this one, so that files of one name do not meet; they stay",
        metavar="DIR", advanced=True,
    )  # fmt: skip
    verbose: bool = setting(False, "log more, and show all that the workers print", flag="-v/--verbose")
    quiet: bool = setting(False, "log errors only", flag="-q/--quiet")
    debug: bool = False  # of Python alone: as workers=0, and what an objective raises is raised, for a debugger

    def __post_init__(self) -> None:
        for name, value in of_job().items():
            shared = name != "join" or (self.results is not None and is_kept())
            if shared and name not in ("gpu", "workers") and getattr(self, name) == getattr(RunOptions, name):
                object.__setattr__(self, name, value)
        if self.debug and self.workers:
            raise UsageError(f"debug runs everything in this process: leave workers={self.workers} out")
        if self.debug:
            object.__setattr__(self, "workers", 0)
        require_numbers(self, workers=0)  # in Python 0 is for none: everything in this process
        if self.adapt and self.restart:
            raise UsageError("adapt uses the results of the old study, restart uses none: give one of them")
        if self.join and (name := next(filter(partial(getattr, self), ("restart", "adapt", "retry_failed")), "")):
            raise UsageError(f"join and {name} exclude each other: other jobs may be at work in the results folder")
        object.__setattr__(self, "track", _trackers(self.track))
        names = (self.changed,) if isinstance(self.changed, str) else self.changed
        if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"changed={self.changed!r}: give the names of functions")
        object.__setattr__(self, "changed", tuple(names))
        if isinstance(self.gpu, Integral) and not isinstance(self.gpu, bool) and self.gpu >= 0:  # from Python
            object.__setattr__(self, "gpu", str(self.gpu))
        if not isinstance(self.gpu, str | None):
            raise UsageError(f'gpu={self.gpu!r}: give a position such as 0, or a text such as "0,1", "all" or "none"')
        for name in ("worker_folders", "results"):
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))
        if (folder := self.worker_folders) and os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"worker_folders={str(folder)!r} is no folder: give another")


@cache
def of_job() -> dict[str, Any]:
    """MPITUNE_OPTIONS, options of a batch job for what no call says. Workers and what they start do not see them."""
    parser = Parser(prog="MPITUNE_OPTIONS")
    add_settings(parser, RunOptions)
    said = parser.parse_args(os.environ.pop("MPITUNE_OPTIONS", "").split())
    return {name: getattr(said, name) for name in vars(said).get("given", ())}


@dataclass
class OfScript:
    """What `python -m mpitune` is given for the studies of its script, by name; nothing in any other process."""

    given: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, *names: str) -> dict[str, Any]:
        """Those of these options that are given, for a study whose call does not say otherwise."""
        found = {name: self.given[name] for name in names if name in self.given}
        self.taken.update(found)
        return found

    def window(self, own: int | None) -> int | None:
        return self.take("window").get("window") if own is None else own


of_script = OfScript()
DEVICES = "gpu", "workers", "worker_folders"


def usual_options(*, keeps: bool, **more: Any) -> RunOptions:
    """The options of a call without any. keeps: whether its door has a results folder for each study of a script."""
    return RunOptions(**more, **of_script.take(*DEVICES, *(("results", "restart", "join") if keeps else ())))


def _trackers(value: object) -> tuple[str, ...]:
    """The trackers, each once, from a text or several. Raises UsageError for an unknown one."""
    tracks = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    for track in tracks:
        kind, _, place = track.partition(":") if isinstance(track, str) else ("", "", "")
        if kind not in ("mlflow", "tensorboard", "wandb") or (kind != "wandb" and not place):
            raise UsageError(f"track={track!r:.100}: give mlflow:FOLDER, tensorboard:FOLDER or wandb")
    return tuple(dict.fromkeys(tracks))
