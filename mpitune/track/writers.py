"""What writes trials for MLflow, TensorBoard and Weights & Biases while they run.

The tools are imported here, when they are asked for.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from mpitune.errors import needs
from mpitune.storage.trials import ExportedStudy, ExportedTrial
from mpitune.trial import FAILED, RUNNING, Steps

MOST_METRICS, MOST_PARAMS = 800, 100  # that MLflow takes in one call
MOST_OF_NAME = 250  # characters that it takes
MOST_RUNS = 50_000  # that it gives in one call
EVENTS = "events.out.tfevents.{}"  # a name by which TensorBoard finds a file


class Writer:
    """A study as another tool has it. One trial after the other is put there, some of them while they run.

    A trial that differs at its end from what is there, such as the second attempt of one, is written anew.
    """

    is_new = True  # whether the tool had nothing of this study

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}  # what the tool has of a trial, by key
        self.open: dict[str, tuple[Mapping[str, Any], Steps]] = {}  # parameters and steps of trials that run

    def put(self, trial: ExportedTrial) -> None:
        """Write what is new of a trial."""
        ends = trial.state != RUNNING
        params, there = self.open.pop(trial.key, (None, {}))
        steps = dict(sorted(trial.steps.items()))
        begins = params != trial.params or (ends and list(there.items()) != list(steps.items())[: len(there)])
        new = {n: values for n, values in steps.items() if begins or n not in there}
        if begins or new or ends:
            self.write(trial, new, begins, ends)
        if not ends:
            self.open[trial.key] = trial.params, new if begins else {**there, **new}

    def write(self, trial: ExportedTrial, steps: Steps, begins: bool, ends: bool) -> None:
        """Write new steps of a trial. What is there of one that `begins` is removed."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more is written: open trials are cut off."""


class MLflow(Writer):
    """An experiment, with a run for each trial. into: a database, or the URI of a server."""

    def __init__(self, study: ExportedStudy, into: Path | str) -> None:
        super().__init__()
        with needs("mlflow"):
            from mlflow import MlflowClient
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        uri, location = str(into), None
        if isinstance(into, Path):
            uri, location = f"sqlite:///{into.resolve()}", (into.resolve().parent / "artifacts").as_uri()
            _prepare(into)
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        known = self._client.get_experiment_by_name(study.name)
        tags = {name: str(value)[:5000] for name, value in study.header["settings"].items()}
        self._in = known.experiment_id if known else self._client.create_experiment(study.name, location, tags)
        runs = self._client.search_runs([self._in], max_results=MOST_RUNS) if known else []
        self.is_new, self.runs = not runs, {run.info.run_name: run.info.run_id for run in runs}

    def write(self, trial: ExportedTrial, steps: Steps, begins: bool, ends: bool) -> None:
        from mlflow.entities import Metric, Param, RunTag

        when = round(1000 * (trial.ended or 0))
        if begins:
            if trial.key in self.runs:
                self._client.delete_run(self.runs[trial.key])
            made = self._client.create_run(self._in, start_time=round(1000 * (trial.begun or 0)), run_name=trial.key)
            self.runs[trial.key] = made.info.run_id
        rows = [(f"step/{name}", value, n) for n, values in steps.items() for name, value in values.items()]
        rows += [(name, value, 0) for name, value in {**trial.values, **trial.measured}.items() if ends]
        metrics = [Metric(_taken(name), float(value), when, n) for name, value, n in rows]
        params = [Param(_taken(name), str(value)[:6000]) for name, value in trial.params.items() if begins]
        about = {"place": str(trial.last.place), "state": trial.state, "error": trial.error[:5000]} if ends else {}
        tags = [RunTag(name, text) for name, text in about.items()]
        while params or metrics or tags:
            self._client.log_batch(self.runs[trial.key], metrics[:MOST_METRICS], params[:MOST_PARAMS], tags)
            metrics, params, tags = metrics[MOST_METRICS:], params[MOST_PARAMS:], []
        if ends:
            self._client.set_terminated(self.runs[trial.key], "FAILED" if trial.state == FAILED else "FINISHED", when)

    def close(self) -> None:
        for key in self.open:
            self._client.set_terminated(self.runs[key], "KILLED")


def _prepare(database: Path) -> None:
    """Make a database of MLflow in one step, as a kill between its many would leave one that it cannot open."""
    from mlflow import MlflowClient
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: Any) -> None:
        with suppress(Exception):  # which its own first statement raises next
            connection.execute("PRAGMA synchronous = OFF")  # eleven commits a trial need not be durable: the journal is

    event.listen(Engine, "connect", connected)
    if not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".mlflow-", dir=database.resolve().parent) as folder:
            MlflowClient(f"sqlite:///{folder}/mlflow.db", f"sqlite:///{folder}/mlflow.db").search_experiments()
            Path(folder, "mlflow.db").rename(database)


def _taken(name: str) -> str:
    """A name that MLflow takes: other characters are there by their codes, such as _28_ for a bracket."""
    kept = r"[\w/. :-]" if name and name == posixpath.normpath(name) and name[0] not in "/." else r"[\w :-]"
    taken = "".join(c if re.match(kept, c) else f"_{ord(c):x}_" for c in name) or "_"
    return taken if len(taken) <= MOST_OF_NAME else f"{taken[:230]}_{sha256(name.encode()).hexdigest()[:16]}"


class TensorBoard(Writer):
    """A folder with a file of events for each trial, in the folder `into`."""

    def __init__(self, study: ExportedStudy, into: Path) -> None:
        super().__init__()
        with needs("tensorboard"):
            from tensorboard.plugins.hparams import summary_v2
        self._into, self.is_new, self._hparams = into, not into.exists(), summary_v2

    def write(self, trial: ExportedTrial, steps: Steps, begins: bool, ends: bool) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        events: list[tuple[int, Any]] = []
        if begins:
            folder = self._into / quote(trial.key, safe="")
            for old in folder.glob(EVENTS.format("*")):
                old.unlink()
            self.runs[trial.key] = folder / EVENTS.format(time.time_ns())
            start = {"trial_id": trial.key, "start_time_secs": trial.begun or 0.0}
            events.append((0, self._hparams.hparams_pb(dict(trial.params), **start)))
        for step, values in [*steps.items(), *([(max(trial.steps, default=0), trial.values)] if ends else [])]:
            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            events.append((step, Summary(value=scalars)))
        if ends:
            status = Status.Value("STATUS_FAILURE" if trial.state == FAILED else "STATUS_SUCCESS")
            end = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=trial.ended or 0.0))
            events.append((0, self._hparams._summary_pb(SESSION_END_INFO_TAG, end)))
        _add_events(self.runs[trial.key], events)


def _add_events(path: Path, events: list[tuple[int, Any]]) -> None:
    """Add events to a file of TensorBoard, whose own writers keep files open."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    first = [] if path.exists() else [Event(wall_time=time.time(), file_version="brain.Event:2")]
    with open(path, "ab") as file:
        for event in [*first, *(Event(wall_time=time.time(), step=step, summary=summary) for step, summary in events)]:
            RecordWriter(file).write(event.SerializeToString())


class Wandb(Writer):
    """A group with a run for each trial, in a folder `wandb` in `into`."""

    def __init__(self, study: ExportedStudy, into: Path, mode: str = "offline") -> None:
        super().__init__()
        os.environ.setdefault("WANDB_SILENT", "true")
        with needs("wandb"):
            import wandb
        into.mkdir(parents=True, exist_ok=True)
        self.is_new, self._wandb = not (into / "wandb").exists(), wandb
        self._how: dict[str, Any] = {
            "mode": mode, "dir": into, "project": str(study.header["settings"]["experiment"]), "group": study.name,
            "reinit": "create_new", "resume": None if mode == "offline" else "allow",
            "settings": wandb.Settings(console="off", disable_git=True, save_code=False, x_disable_stats=True),
        }  # fmt: skip

    def write(self, trial: ExportedTrial, steps: Steps, begins: bool, ends: bool) -> None:
        if begins:
            name = sha256(f"{self._how['group']}/{trial.key}".encode()).hexdigest()[:16]
            if trial.key in self.runs:
                self.runs.pop(trial.key).finish()
            for left in self._how["dir"].glob(f"wandb/offline-run-*-{name}"):
                rmtree(left)
            about: dict[str, Any] = {"name": trial.key, "id": name, "config": dict(trial.params), "tags": [trial.state]}
            self.runs[trial.key] = self._wandb.init(**about, **self._how)
        run = self.runs[trial.key]
        for step, values in steps.items():
            run.log(dict(values), step=step, commit=True)
        if ends:
            run.tags = (trial.state,)
            run.summary.update({**trial.values, **trial.measured, "run/place": str(trial.last.place)})
            run.summary.update({"run/error": trial.error})
            self.runs.pop(trial.key).finish(exit_code=1 if trial.state == FAILED else 0)

    def close(self) -> None:
        for run in self.runs.values():
            run.finish(exit_code=255)
        self._wandb.teardown()  # its service writes the last records, and may do so after `finish`
