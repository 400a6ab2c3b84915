"""The process of a tracker: it writes what the journal has, and what rank 0 tells of the trials that run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from mpitune.locks import locked, open_lock, try_lock
from mpitune.processes.process import die_with
from mpitune.storage.table import last_line
from mpitune.storage.trials import ExportedStudy, Running, read
from mpitune.track.writers import MLflow, TensorBoard, Wandb, Writer
from mpitune.trial import RUNNING

HAS_SAID = 1  # exit status of one that has said why


def main(parent: int, folder: Path, track: str, pipe: Any) -> None:
    """Follow the study in a folder until it is over: None is told then. For the rest see `Tracker`."""
    die_with(parent)
    with open(os.devnull, "w") as nowhere:
        for standard in (1, 2):  # what libraries print
            os.dup2(nowhere.fileno(), standard)
    try:
        follow(folder, track, iter(pipe.recv, None), partial(_writer, track))
    except Exception as error:  # whatever the tracker's own code raises
        pipe.send(last_line(" ".join(f"{type(error).__name__}: {error}".split())))
        os._exit(HAS_SAID)


def follow(folder: Path, track: str, told: Iterator[Running], writer_of: Callable[[ExportedStudy], Writer]) -> None:
    """Write a study until nothing more is told of it.

    Of jobs that join, and of trackers of one name, one writes: who has the lock of a file. The file says which trials
    have their end there, and when that was.
    """
    with os.fdopen(open_lock(folder / f".tracked-{quote(track, safe='')[-200:]}"), "r+") as file:
        while not try_lock(file.fileno()):
            if next(told, None) is None:
                return
        writer = writer_of(read(folder))
        if writer.is_new:
            file.truncate(0)
        ended = dict(json.loads(line) for line in file if line.endswith("]\n"))
        file.write("\n")  # after half a line, perhaps
        running: dict[str, tuple[Any, dict[int, Any]]] = {}
        next_look = 0.0
        for now in chain(told, (None,)):
            running = {key: (some[0], {**running.get(key, some)[1], **some[1]}) for key, some in (now or {}).items()}
            if now is not None and time.monotonic() < next_look:
                continue
            began = time.monotonic()
            for trial in read(folder, running).trials:
                when = None if trial.state == RUNNING else trial.ended or 0.0
                if when is None or ended.get(trial.key) != when:
                    writer.put(trial)
                if ended.get(trial.key) != when:  # also one that goes on: from now on it has no end
                    ended[trial.key] = when
                    file.write(json.dumps([trial.key, when]) + "\n")
                    file.flush()  # this process may be killed
            next_look = time.monotonic() + 5 * (time.monotonic() - began)
    writer.close()


def _writer(track: str, study: ExportedStudy) -> Writer:
    kind, _, place = track.partition(":")
    if kind == "mlflow" and "://" in place:
        return MLflow(study, place)
    if kind == "mlflow":
        with locked(Path(place, ".mlflow.lock")):  # MLflow makes a database without one
            return MLflow(study, Path(place, "mlflow.db"))
    if kind == "tensorboard":
        return TensorBoard(study, Path(place, quote(study.name, safe=" :")))
    os.environ.setdefault("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")
    return Wandb(study, Path(place or os.environ.get("WANDB_DIR", ".")), os.environ.get("WANDB_MODE") or _mode())


def _mode() -> str:
    """Online where W&B has a key and its server answers."""
    import wandb

    try:
        with suppress(HTTPError):  # it has answered
            urlopen(wandb.setup().settings.base_url, timeout=2.0).close()
    except OSError:
        return "offline"
    return "online" if wandb.api.api_key else "offline"
