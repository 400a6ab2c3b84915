"""The values of a metric that a program logs, read while it runs: W&B's run file, JSON lines, TensorBoard."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from mpitune.errors import needs
from mpitune.optimize.commands import OUTPUT
from mpitune.storage.files import JOURNAL, TRIALS, make_folder, put_link

MOST_FOLDERS = 10_000  # that are searched for a run
Logged = Iterator[tuple[str, Any, int | None]]  # names, values, steps; those without a step are of a summary
# Of LevelDB's log format, which W&B's run file has.
HEAD, RECORD_BLOCK, WHOLE_RECORD, LAST_PART = struct.Struct("<IHB"), 32768, 1, 4
RUN_NAME = re.compile(r"(offline-)?run-\d{8}_\d{6}-")  # begins the name of a run's folder


class MetricValues:
    """What is known of a metric."""

    def __init__(self, name: str, maximize: bool, logged: Logged):
        self.steps: dict[int, float] = {}  # its values, those that are finite
        self.others: set[str] = set()  # names of all numbers that are logged
        self.no_number: Any = None  # what was logged in its place, such as a text
        ends: dict[bool, Any] = {}
        for other, value, step in logged:
            if isinstance(value, dict):  # of `define_metric(..., summary="min")`
                value = value.get("max" if maximize else "min", next(iter(value.values()), None))
            if not isinstance(value, int | float) or isinstance(value, bool):
                self.no_number = value if other == name else self.no_number
                continue
            self.others |= {other} if other[:1] != "_" else set()
            if other == name:
                ends[step is None] = value
                if step is not None and math.isfinite(value):
                    self.steps[step] = float(value)
        end = ends.get(True, ends.get(False))
        worst = -math.inf if maximize else math.inf  # what a training that has diverged counts as
        # In the summary, or the last one; None where it was never logged.
        self.end = None if end is None else worst if math.isnan(end) else float(end)


def metric_in(
    folder: Path, source: str | None, name: str, maximize: bool, run: str = "", ended: bool = True
) -> MetricValues:
    """What the program of a trial has logged by now. source: None for W&B where it has that run, else JSON.

    Once it has ended, a run that is not where it should be is looked for below the working folder, which takes a while.
    """
    if source in ("json", "tensorboard"):
        return MetricValues(name, maximize, _in_output(folder) if source == "json" else _in_tensorboard(folder))
    files = _runs(_near(folder, run), run)
    metric = MetricValues(name, maximize, _in_wandb(files) if files or source else _in_output(folder))
    if ended and not files and metric.end is None and (files := _runs(_below(folder, run), run)):
        metric = MetricValues(name, maximize, _in_wandb(files))
    return metric


def _in_wandb(files: list[Path]) -> Logged:
    with needs("wandb"):
        from wandb.proto.wandb_internal_pb2 import Record
    for path in files:
        for content in _records(path.read_bytes()):
            record = Record.FromString(content)
            history = record.WhichOneof("record_type") == "history"
            for item in record.history.item if history else record.summary.update:
                name = item.key or ".".join(item.nested_key)
                yield name, json.loads(item.value_json), record.history.step.num if history else None


def _runs(places: Iterator[Path], run: str) -> list[Path]:
    """The files of a run in the first of these folders that has any. A program may have begun the run several times."""
    for place in places:
        if files := sorted(place.glob(f"*run-*-{run}*/run-{run}.wandb")):
            return files
    return []


def link_open_run(folder: Path, run: str) -> None:
    """Link a run into the `wandb` of its trial's folder, where a process below this one, as W&B's own, has it open.

    So it is found wherever it is, whatever W&B says of it.
    """
    queue = [] if any(folder.glob(f"wandb/*run-*-{run}*")) else [os.getpid()]
    for process in (Path(f"/proc/{number}") for number in queue):  # which grows meanwhile
        with suppress(OSError):
            for children in process.glob("task/*/children"):
                queue += map(int, children.read_text().split())
            for file in map(Path, map(os.path.realpath, (process / "fd").iterdir())):
                if file.name == f"run-{run}.wandb":
                    make_folder(folder / "wandb")
                    put_link(folder / "wandb" / file.parent.name, str(file.parent))


def _near(folder: Path, run: str) -> Iterator[Path]:
    """Where W&B is told to write, and where it says that it writes, as `init(dir=...)` wins."""
    yield from (path.resolve().parent for path in sorted(folder.glob(f"wandb/*run-*-{run}*")))
    output = (folder / OUTPUT).read_text(errors="replace") if (folder / OUTPUT).exists() else ""
    for line in (line for line in output.splitlines() if run in line):
        if match := re.search(rf"(/.*?|\S*?){RUN_NAME.pattern}{run}", line):
            yield Path(match[0]).parent


def _below(folder: Path, run: str) -> Iterator[Path]:
    """Folders with one of the run, below the trial's and the working folder, the nearest first. No link is followed."""
    queue = [folder, Path()]
    for place in islice(queue, MOST_FOLDERS):  # which grows meanwhile
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
            if any(RUN_NAME.match(name) and run in name for name in names):
                yield place
            known = TRIALS if (place / JOURNAL).exists() else ""
            others = [name for name in names if name != known and not RUN_NAME.match(name)]
            queue += [place / name for name in others if name[0] != "." or name == ".wandb"]


def _records(content: bytes, at: int = 7) -> Iterator[bytes]:
    """The whole records of a run file, after the head that it has itself. W&B 0.31 has no reader for it in Python."""
    part = b""
    while True:
        at += RECORD_BLOCK - at % RECORD_BLOCK if RECORD_BLOCK - at % RECORD_BLOCK < HEAD.size else 0
        begin = at + HEAD.size
        size, kind = HEAD.unpack(content[at:begin])[1:] if begin <= len(content) else (0, 0)
        if not kind or begin + size > len(content):
            return
        part, at = part + content[begin : begin + size], begin + size
        if kind in (WHOLE_RECORD, LAST_PART):
            yield part
            part = b""


def _in_output(folder: Path) -> Logged:
    n = 0
    for line in (folder / OUTPUT).read_text(errors="replace").splitlines() if (folder / OUTPUT).exists() else ():
        with suppress(ValueError):
            if isinstance(values := json.loads(line), dict):
                step = values.get("step", n)
                yield from ((name, value, step if isinstance(step, int) else n) for name, value in values.items())
                n += 1


def _in_tensorboard(folder: Path) -> Logged:
    with needs("tensorboard"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    for place in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for name in events.Tags()["scalars"]:
            yield from ((name, event.value, event.step) for event in events.Scalars(name))
        for name in events.Tags()["tensors"]:
            known = [(make_ndarray(event.tensor_proto), event.step) for event in events.Tensors(name)]
            yield from ((name, value.item(), step) for value, step in known if value.size == 1)
