"""The process of a tracker: it writes what the journal has, and what rank 0 tells of the trials that run."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from mpitune.exchange.formats import MLflow, TensorBoard, Wandb, Written
from mpitune.exchange.trials import RUNNING, ExportedStudy, ExportedTrial, read
from mpitune.locks import lock_byte, open_lock
from mpitune.processes.process import die_with
from mpitune.trial import PRUNED, chosen_of


def main(parent: int, folder: str, track: str) -> None:
    """Follow the study in a folder until it is over. A line for each second comes on stdin, see `Tracker`."""
    die_with(parent)
    progress = os.dup(1)
    os.dup2(2, 1)  # what libraries print
    try:
        _follow(Path(folder), track, progress)
    except Exception as error:  # whatever the tracker's own code raises
        print(f"\n{type(error).__name__}: {error}".rstrip().replace("\n", " "), file=sys.stderr, flush=True)
        os._exit(1)


def _follow(folder: Path, track: str, progress: int) -> None:
    # Of jobs that join, one at a time writes. The file says which trials are written to their end, and when that was.
    file = os.fdopen(open_lock(folder / f".tracked-{quote(track, safe='')[-200:]}"), "r+")
    written: Written | None = None
    opened = threading.Event()
    threading.Thread(target=_beat, args=(opened, progress), daemon=True).start()
    known: dict[str, dict[int, Any]] = {}  # steps of trials that run, or will soon be said to
    before: dict[str, Any] = {}
    next_look = 0.0
    for line in iter(sys.stdin.readline, ""):
        running, steps, over = json.loads(line)
        known = {key: some for key, some in known.items() if key in running or key not in before}
        for key, some in steps:
            known.setdefault(key, {}).update((int(n), values) for n, values in some.items())
        if not written and not _has(file.fileno()):
            if over:  # another job writes, or will
                break
            continue
        if not over and time.monotonic() < next_look:
            continue
        began, before = time.monotonic(), running
        now = {} if over else {key: (params, known.get(key, {})) for key, params in running.items()}
        study = read(folder, now)
        if written is None:
            written = _tracker(track, study)
            opened.set()
            if written.is_new:
                file.truncate(0)
            ended = dict(json.loads(line) for line in file if line.endswith("]\n"))
            file.write("\n")  # after half a line, perhaps
        for trial in study.trials:
            os.write(progress, b".")
            if ended.get(trial.key) == (trial.ended or 0.0):
                continue
            written.put(trial, ends := over or _has_ended(trial))
            if ends:
                ended[trial.key] = trial.ended or 0.0
                file.write(json.dumps([trial.key, ended[trial.key]]) + "\n")
        file.flush()
        if over:
            break
        next_look = time.monotonic() + 5 * (time.monotonic() - began)
    if written is not None:
        written.close()


def _beat(opened: threading.Event, progress: int) -> None:
    """Say that there is progress while a tracker is imported, and a database made: that takes time of the CPU."""
    last = 0.0
    while not opened.wait(1.0):
        if (now := time.process_time()) > last + 0.02:
            last = now
            os.write(progress, b".")


def _has(lock: int) -> bool:
    """Whether this process may write: another job does not, or the file system has no locks."""
    try:
        return lock_byte(lock, 0, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True


def _has_ended(trial: ExportedTrial) -> bool:
    """Whether a trial is done for good: one that its strategy stopped may go on until the study is over."""
    return trial.state != RUNNING and (trial.state != PRUNED or chosen_of(trial.last, "state") == PRUNED)


def _tracker(track: str, study: ExportedStudy) -> Written:
    kind, _, place = track.partition(":")
    if kind == "mlflow":
        return MLflow(study, place if "://" in place else Path(place, "mlflow.db"))
    if kind == "tensorboard":
        return TensorBoard(study, Path(place, quote(study.name, safe=" :")))
    os.environ.setdefault("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")
    return Wandb(study, Path(place or os.environ.get("WANDB_DIR", ".")), os.environ.get("WANDB_MODE") or _mode())


def _mode() -> str:
    """Online where W&B has a key and its server answers."""
    import wandb

    url = urlsplit(wandb.setup().settings.base_url)
    try:
        socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), 2.0).close()
    except OSError:
        return "offline"
    return "online" if wandb.api.api_key else "offline"
