"""What writes a study for each tool, and for tables: the tools are imported here, when they are asked for."""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import posixpath
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from mpitune.errors import needs
from mpitune.exchange.trials import RUNNING, ExportedStudy, ExportedTrial
from mpitune.optimize.search_study import COMPLETE, FAILED, INFEASIBLE
from mpitune.storage.files import written_whole
from mpitune.storage.table import write_table

MOST_METRICS, MOST_PARAMS = 800, 100  # that MLflow takes in one call
MOST_OF_NAME = 250  # characters that it takes
MOST_RUNS = 50_000  # that it gives in one call
EVENTS = "events.out.tfevents.{}"  # a name by which TensorBoard finds a file
Steps = Mapping[int, Mapping[str, float]]


def to_csv(study: ExportedStudy, into: Path) -> None:
    """A row for each trial, the columns of `ExportedStudy.rows`; empty for missing values."""
    write_table(into, study.rows())


def to_json(study: ExportedStudy, into: Path) -> None:
    """One object: study, the journal's header, objectives, trials with their steps. Infinity is the text "inf"."""
    trials = [{**trial.row(), "params": dict(trial.params), "values": dict(trial.values)} for trial in study.trials]
    for row, trial in zip(trials, study.trials, strict=True):
        for name in [name for name in row if name.startswith(("param_", "value_"))]:
            del row[name]
        row["steps"] = {str(step): dict(values) for step, values in trial.steps.items()}
        row["user_attrs"], row["constraints"] = dict(trial.user_attrs), list(trial.constraints)
    content = {"study": study.name, "header": study.header, "objectives": study.objectives, "trials": trials}
    with written_whole(into, "w") as file:
        json.dump(_plain(content), file, indent=1, allow_nan=False)
        file.write("\n")


def _plain(thing: Any) -> Any:
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    if isinstance(thing, dict):
        return {name: _plain(value) for name, value in thing.items()}
    return [_plain(item) for item in thing] if isinstance(thing, list | tuple) else thing


def to_optuna(study: ExportedStudy, into: Path) -> None:
    """Write `into`, which `optuna.storages.JournalStorage` reads, and `optuna-dashboard` shows.

    What Optuna has no place for are user attributes, too: other values, run/key, run/place, run/seconds, run/error. A
    distribution is the range of a parameter, or its values where they are texts. A trial with an infinite value is a
    failed one there.

    Args:
        study: What is exported, with at least one objective.
        into: The file, which must not exist.
    """
    with needs("optuna"):
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = ["maximize" if up else "minimize" for up in study.objectives.values()]
    storage = JournalStorage(JournalFileBackend(str(into)))
    made = optuna.create_study(storage=storage, study_name=study.name, directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of objectives are experimental there, and no more than names
        made.set_metric_names(list(study.objectives))
    distributions = _optuna_distributions(study.trials)
    made.add_trials([_optuna_trial(optuna, trial, list(study.objectives), distributions) for trial in study.trials])


def _optuna_trial(optuna: Any, trial: ExportedTrial, names: Sequence[str], distributions: Mapping[str, Any]) -> Any:
    values = [trial.values.get(name, math.nan) for name in names]
    state = {COMPLETE: "COMPLETE", INFEASIBLE: "COMPLETE", FAILED: "FAIL"}.get(trial.state, "PRUNED")
    if state == "COMPLETE" and not all(map(math.isfinite, values)):
        state = "FAIL"
    measured = {"run/key": trial.key, "run/place": str(trial.last.place), **trial.measured, **trial.values}
    facts = {**trial.user_attrs, **measured}
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        values=values if state != "FAIL" and all(map(math.isfinite, values)) else None,
        params=dict(trial.params),
        distributions={name: distributions[name] for name in trial.params},
        user_attrs={k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
        | ({"run/error": trial.error} if trial.error else {}),
        system_attrs={"constraints": list(trial.constraints)} if trial.constraints else {},
        intermediate_values={
            step: values[names[0]] for step, values in trial.steps.items() if names[0] in values
        } if len(names) == 1 else {},
    )  # fmt: skip
    if trial.begun is not None and trial.ended is not None:
        made.datetime_start, made.datetime_complete = map(datetime.datetime.fromtimestamp, (trial.begun, trial.ended))
    return made


def _optuna_distributions(trials: Sequence[ExportedTrial]) -> dict[str, Any]:
    """The range of each parameter, or its values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in trial.params.items():
            values.setdefault(name, []).append(value)
    distributions: dict[str, Any] = {}
    for name, there in values.items():
        kinds = {type(value) for value in there}
        if kinds <= {int}:
            distributions[name] = IntDistribution(min(there), max(there))
        elif kinds <= {int, float}:
            low, high = float(min(there)), float(max(there))
            distributions[name] = FloatDistribution(low, high, log=low > 0 and high > 100 * low)
        else:
            distributions[name] = CategoricalDistribution(sorted(set(there), key=repr))
    return distributions


class Written:
    """A study as another tool has it: trials are put there while they run, or all at the end.

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

    def close(self, study: ExportedStudy) -> None:
        """Nothing more is written: open trials are cut off."""


def _into(kind: Callable[[ExportedStudy, Path], Written], study: ExportedStudy, into: Path) -> None:
    written = kind(study, into)
    for trial in study.trials:
        written.put(trial)
    written.close(study)


class MLflow(Written):
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
        if known and known.lifecycle_stage == "deleted":  # its name cannot be used again
            self._client.restore_experiment(known.experiment_id)
        tags = {name: str(value)[:5000] for name, value in study.header["settings"].items()}
        self._in = known.experiment_id if known else self._client.create_experiment(study.name, location, tags)
        runs = self._client.search_runs([self._in], max_results=MOST_RUNS) if known else []
        self.is_new, self.runs = not runs, {run.info.run_name: run.info.run_id for run in runs}

    def write(self, trial: ExportedTrial, steps: Steps, begins: bool, ends: bool) -> None:
        from mlflow.entities import Metric, Param, RunTag

        begun, when = (round(1000 * (time or 0)) for time in (trial.begun, trial.ended))
        if begins:
            if trial.key in self.runs:
                self._client.delete_run(self.runs[trial.key])
            made = self._client.create_run(self._in, start_time=begun, run_name=trial.key)
            self.runs[trial.key] = made.info.run_id
        run, figures = self.runs[trial.key], {**trial.values, **trial.measured} if ends else {}
        params = [Param(_taken(name), str(value)[:6000]) for name, value in trial.params.items() if begins]
        metrics = [Metric(_taken(name), float(value), when, 0) for name, value in figures.items()]
        metrics += [
            Metric(_taken(f"step/{name}"), float(value), when, step)
            for step, values in steps.items()
            for name, value in values.items()
        ]
        facts = {"place": str(trial.last.place), "state": trial.state, "error": trial.error[:5000]} if ends else {}
        tags = [RunTag(name, text) for name, text in facts.items()]
        while params or metrics or tags:
            self._client.log_batch(run, metrics[:MOST_METRICS], params[:MOST_PARAMS], tags)
            metrics, params, tags = metrics[MOST_METRICS:], params[MOST_PARAMS:], []
        if ends:
            self._client.set_terminated(run, "FAILED" if trial.state == FAILED else "FINISHED", when)

    def close(self, study: ExportedStudy) -> None:
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


class TensorBoard(Written):
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
            folder, start = self._into / quote(trial.key, safe=""), trial.begun or 0.0
            for old in folder.glob(EVENTS.format("*")):
                old.unlink()
            self.runs[trial.key] = folder / EVENTS.format(time.time_ns())
            about = self._hparams.hparams_pb(dict(trial.params), trial_id=trial.key, start_time_secs=start)
            events.append((0, about))
        said = [*steps.items(), *([(max(trial.steps, default=0), trial.values)] if ends else [])]
        events += [
            (step, Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]))
            for step, values in said
        ]
        if ends:
            status = Status.Value("STATUS_FAILURE" if trial.state == FAILED else "STATUS_SUCCESS")
            end = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=trial.ended or 0.0))
            events.append((0, self._hparams._summary_pb(SESSION_END_INFO_TAG, end)))
        _add_events(self.runs[trial.key], events)

    def close(self, study: ExportedStudy) -> None:
        names = dict.fromkeys(name for trial in study.trials for name in trial.params)
        metrics = dict.fromkeys(name for trial in study.trials for name in trial.values)
        of = self._hparams
        about = of.hparams_config_pb([of.HParam(name) for name in names], [of.Metric(name) for name in metrics])
        _add_events(self._into / EVENTS.format(time.time_ns()), [(0, about)])


def _add_events(path: Path, events: Sequence[tuple[int, Any]]) -> None:
    """Add summaries with their steps to a file. It is open for this time alone, however many trials run."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    first = [] if path.exists() else [Event(wall_time=time.time(), file_version="brain.Event:2")]
    with open(path, "ab") as file:
        for event in [*first, *(Event(wall_time=time.time(), step=step, summary=said) for step, said in events)]:
            RecordWriter(file).write(event.SerializeToString())


class Wandb(Written):
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
            facts = {"run/place": str(trial.last.place), "run/error": trial.error}
            run.summary.update({**trial.values, **trial.measured, **facts})
            self.runs.pop(trial.key).finish(exit_code=1 if trial.state == FAILED else 0)

    def close(self, study: ExportedStudy) -> None:
        for run in self.runs.values():
            run.finish(exit_code=255)
        self._wandb.teardown()  # its service writes the last records, and may do so after `finish`


# What writes a format, and the name in the results folder that it gets if no other is given.
FORMATS: dict[str, tuple[Callable[[ExportedStudy, Path], None], str]] = {
    "csv": (to_csv, "export.csv"),
    "json": (to_json, "export.json"),
    "optuna": (to_optuna, "optuna.log"),
    "mlflow": (partial(_into, MLflow), "mlflow.db"),
    "tensorboard": (partial(_into, TensorBoard), "tensorboard"),
    "wandb-offline": (partial(_into, Wandb), "wandb-offline"),
}
