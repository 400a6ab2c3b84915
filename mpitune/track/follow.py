"""The process of a tracker: it reads the journal while it grows, and writes each trial that has ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from mpitune.locks import locked, open_lock, try_lock
from mpitune.processes.process import die_with
from mpitune.storage.table import last_line
from mpitune.storage.trials import ExportedStudy, read
from mpitune.track.writers import MLflow, TensorBoard, Wandb, Writer

EVERY_S = 1.0
HAS_SAID = 1  # exit status of one that has said why


def main(parent: int, folder: Path, track: str, pipe: Any) -> None:
    """Follow the study in a folder until rank 0 sends something. An error is sent there, as a line."""
    die_with(parent)
    with open(os.devnull, "w") as nowhere:
        for standard in (1, 2):  # what libraries print
            os.dup2(nowhere.fileno(), standard)
    try:
        follow(folder, track, pipe.poll, partial(_writer, track))
    except Exception as error:  # whatever the tracker's own code raises
        pipe.send(last_line(" ".join(f"{type(error).__name__}: {error}".split())))
        os._exit(HAS_SAID)


def follow(
    folder: Path, track: str, is_over: Callable[[float], bool], writer_of: Callable[[ExportedStudy], Writer]
) -> None:
    """Write a study until it is over, which `is_over` says within the seconds that it is given.

    Of jobs that join, and of trackers of one name, one writes: who has the lock of a file. The file says which trials
    are written, and when they had ended.
    """
    with os.fdopen(open_lock(folder / f".tracked-{quote(track, safe='')[-200:]}"), "r+") as file:
        while not try_lock(file.fileno()):
            if is_over(EVERY_S):
                return
        writer = writer_of(read(folder))
        if writer.is_new:
            file.truncate(0)
        written = dict(json.loads(line) for line in file if line.endswith("]\n"))
        file.write("\n")  # after half a line, perhaps
        pause, is_last = 0.0, False
        while not is_last:
            is_last = is_over(pause)
            began = time.monotonic()
            for trial in read(folder).trials:
                ended = trial.ended or 0.0
                if written.get(trial.key) != ended:  # also one that was tried again, or has had another stage
                    writer.write(trial)
                    written[trial.key] = ended
                    file.write(json.dumps([trial.key, ended]) + "\n")
                    file.flush()  # this process may be killed
            pause = max(EVERY_S, 5 * (time.monotonic() - began))
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
