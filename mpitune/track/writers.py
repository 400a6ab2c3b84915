"""What writes trials that have ended for MLflow, TensorBoard and Weights & Biases.

The tools are imported here, when they are asked for.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from mpitune.errors import needs
from mpitune.storage.trials import ExportedStudy, ExportedTrial
from mpitune.trial import FAILED

MOST_METRICS, MOST_PARAMS = 800, 100  # that MLflow takes in one call
MOST_OF_NAME = 250  # characters that it takes
MOST_RUNS = 50_000  # that it gives in one call


class Writer:
    """A study as another tool has it."""

    is_new = True  # whether the tool had nothing of this study

    def write(self, trial: ExportedTrial) -> None:
        """Write a trial, in place of what is there of it: it may have been cut off, tried again, or gone on."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more is written."""


class MLflow(Writer):
    """An experiment, with a run for each trial. into: a database, or the URI of a server."""

    def __init__(self, study: ExportedStudy, into: Path | str) -> None:
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
        self.is_new, self._runs = not runs, {run.info.run_name: run.info.run_id for run in runs}

    def write(self, trial: ExportedTrial) -> None:
        from mlflow.entities import Metric, Param, RunTag

        if trial.key in self._runs:
            self._client.delete_run(self._runs[trial.key])
        made = self._client.create_run(self._in, start_time=round(1000 * (trial.begun or 0)), run_name=trial.key)
        run = self._runs[trial.key] = made.info.run_id
        when = round(1000 * (trial.ended or 0))
        rows = [(f"step/{name}", value, n) for n, values in trial.steps.items() for name, value in values.items()]
        rows += [(name, value, 0) for name, value in {**trial.values, **trial.measured}.items()]
        metrics = [Metric(_taken(name), float(value), when, n) for name, value, n in rows]
        params = [Param(_taken(name), str(value)[:6000]) for name, value in trial.params.items()]
        about = {"place": str(trial.last.place), "state": trial.state, "error": trial.error[:5000]}
        tags = [RunTag(name, text) for name, text in about.items()]
        while params or metrics or tags:
            self._client.log_batch(run, metrics[:MOST_METRICS], params[:MOST_PARAMS], tags)
            metrics, params, tags = metrics[MOST_METRICS:], params[MOST_PARAMS:], []
        self._client.set_terminated(run, "FAILED" if trial.state == FAILED else "FINISHED", when)


def _prepare(database: Path) -> None:
    """Make a database of MLflow in one step, as a kill between its many would leave one that it cannot open."""
    from mlflow import MlflowClient

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
        with needs("tensorboard"):
            from tensorboard.plugins.hparams import summary_v2
        self._into, self.is_new, self._hparams = into, not into.exists(), summary_v2

    def write(self, trial: ExportedTrial) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
        from tensorboard.summary.writer.record_writer import RecordWriter

        start = {"trial_id": trial.key, "start_time_secs": trial.begun or 0.0}
        summaries = [(0, self._hparams.hparams_pb(dict(trial.params), **start))]
        for step, values in [*sorted(trial.steps.items()), (max(trial.steps, default=0), trial.values)]:
            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            summaries.append((step, Summary(value=scalars)))
        status = Status.Value("STATUS_FAILURE" if trial.state == FAILED else "STATUS_SUCCESS")
        end = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=trial.ended or 0.0))
        summaries.append((0, self._hparams._summary_pb(SESSION_END_INFO_TAG, end)))
        folder, now = self._into / quote(trial.key, safe=""), time.time()
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        events = [Event(wall_time=now, step=step, summary=summary) for step, summary in summaries]
        with open(folder / f"events.out.tfevents.{time.time_ns()}", "wb") as file:  # its own writers keep files open
            for event in [Event(wall_time=now, file_version="brain.Event:2"), *events]:
                RecordWriter(file).write(event.SerializeToString())


class Wandb(Writer):
    """A group with a run for each trial, in a folder `wandb` in `into`."""

    def __init__(self, study: ExportedStudy, into: Path, mode: str = "offline") -> None:
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

    def write(self, trial: ExportedTrial) -> None:
        name = sha256(f"{self._how['group']}/{trial.key}".encode()).hexdigest()[:16]
        for left in self._how["dir"].glob(f"wandb/offline-run-*-{name}"):
            rmtree(left)
        about: dict[str, Any] = {"name": trial.key, "id": name, "config": dict(trial.params), "tags": [trial.state]}
        run = self._wandb.init(**about, **self._how)
        for step, values in sorted(trial.steps.items()):
            run.log(dict(values), step=step, commit=True)
        run.tags = (trial.state,)  # of one that goes on, too
        run.summary.update({**trial.values, **trial.measured, "run/place": str(trial.last.place)})
        run.summary.update({"run/error": trial.error})
        run.finish(exit_code=1 if trial.state == FAILED else 0)

    def close(self) -> None:
        self._wandb.teardown()  # its service writes the last records, and may do so after `finish`
