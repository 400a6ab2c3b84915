"""The process of a tracker: it writes what the journal has, and what rank 0 tells of the trials that run."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from mpitune.engine.tracking import FAILED
from mpitune.exchange.formats import MLflow, TensorBoard, Wandb, Written
from mpitune.exchange.trials import RUNNING, ExportedStudy, read
from mpitune.locks import locked, open_lock, try_lock
from mpitune.processes.process import die_with
from mpitune.storage.table import last_line


def main(parent: int, folder: Path, track: str, told: Any, counts: Any) -> None:
    """Follow the study in a folder until it is over: None is told then. For the rest see `Tracker`."""
    die_with(parent)
    with open(os.devnull, "w") as nowhere:
        for standard in (1, 2):  # what libraries print
            os.dup2(nowhere.fileno(), standard)
    try:
        _follow(folder, track, told, counts)
    except Exception as error:  # whatever the tracker's own code raises
        told.send(last_line(" ".join(f"{type(error).__name__}: {error}".split())))
        os._exit(FAILED)


def _follow(folder: Path, track: str, told: Any, counts: Any) -> None:
    """Of jobs that join that one writes which has the lock of a file. The file says which trials have their end."""
    with os.fdopen(open_lock(folder / f".tracked-{quote(track, safe='')[-200:]}"), "r+") as file:
        while not try_lock(file.fileno()):
            if told.recv() is None:
                return
        written = _tracker(track, study := read(folder))
        counts[0] += 1
        if written.is_new:
            file.truncate(0)
        ended = dict(json.loads(line) for line in file if line.endswith("]\n"))
        counts[1] = sum(when is not None for when in ended.values())
        file.write("\n")  # after half a line, perhaps
        running: dict[str, tuple[Any, dict[int, Any]]] = {}
        over, next_look = False, 0.0
        while not over:
            over = (now := told.recv()) is None
            running = {key: (some[0], running.get(key, some)[1] | some[1]) for key, some in (now or {}).items()}
            if not over and time.monotonic() < next_look:
                continue
            began = time.monotonic()
            study = read(folder, running)
            for trial in study.trials:
                counts[0] += 1
                when = None if trial.state == RUNNING else trial.ended or 0.0
                if when is None or ended.get(trial.key) != when:
                    written.put(trial)
                    counts[1] += when is not None and ended.get(trial.key) is None
                if ended.get(trial.key) != when:  # also one that goes on: from now on it has no end
                    ended[trial.key] = when
                    file.write(json.dumps([trial.key, when]) + "\n")
                    file.flush()  # this process may be killed
            next_look = time.monotonic() + 5 * (time.monotonic() - began)
    written.close(study)


def _tracker(track: str, study: ExportedStudy) -> Written:
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
