"""What writes a study for each tool, and for tables: the tools are imported here, when they are asked for."""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpitune.exchange.trials import ExportedStudy, ExportedTrial, needs
from mpitune.optimize.search_study import COMPLETE, FAILED, INFEASIBLE
from mpitune.storage.files import written_whole
from mpitune.storage.table import write_table

MOST_METRICS = 1000  # that MLflow takes in one call


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


def to_mlflow(study: ExportedStudy, into: Path) -> None:
    """Write the SQLite database `into`, which must not exist; `mlflow ui --backend-store-uri sqlite:///FILE` shows it.

    MLflow's folders of files are not written, as it reads them only when told to in its environment.
    """
    with needs("mlflow"):
        from mlflow import MlflowClient
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    uri = f"sqlite:///{into.resolve()}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    settings = {name: str(value)[:5000] for name, value in study.header["settings"].items()}
    location = (into.resolve().parent / "artifacts").as_uri()
    experiment = client.create_experiment(study.name, artifact_location=location, tags=settings)
    for trial in study.trials:
        _log(client, experiment, trial)


def _log(client: Any, experiment: str, trial: ExportedTrial) -> None:
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = (round(1000 * (when or 0)) for when in (trial.begun, trial.ended))
    run = client.create_run(experiment, start_time=begun, run_name=trial.key).info.run_id
    figures = {**trial.values, **trial.measured}
    metrics = [Metric(name, float(value), ended, 0) for name, value in figures.items()]
    metrics += [
        Metric(f"step/{name}", float(value), ended, step)
        for step, values in trial.steps.items()
        for name, value in values.items()
    ]
    params = [Param(name, str(value)[:6000]) for name, value in trial.params.items()]
    tags = [RunTag("place", str(trial.last.place)), RunTag("state", trial.state), RunTag("error", trial.error[:5000])]
    client.log_batch(run, params=params, tags=tags)
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run, metrics=metrics[start : start + MOST_METRICS])
    client.set_terminated(run, "FAILED" if trial.state == FAILED else "FINISHED", ended)


def to_tensorboard(study: ExportedStudy, into: Path) -> None:
    """Write the folder `into`, a new one, with one for each trial: `tensorboard --logdir FOLDER` shows it."""
    with needs("tensorboard"):
        from tensorboard.plugins.hparams import summary_v2 as hparams
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    metrics = list(dict.fromkeys(name for trial in study.trials for name in trial.values))
    about = hparams.hparams_config_pb([hparams.HParam(name) for name in names], [hparams.Metric(n) for n in metrics])
    with _Events(into) as events:
        events.add(about)
    for trial in study.trials:
        _tensorboard_trial(trial, into / quote(trial.key, safe=""), hparams)


def _tensorboard_trial(trial: ExportedTrial, folder: Path, hparams: Any) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = Status.Value("STATUS_FAILURE" if trial.state == FAILED else "STATUS_SUCCESS")
    end = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=trial.ended or 0.0))
    with _Events(folder) as events:
        events.add(hparams.hparams_pb(dict(trial.params), trial_id=trial.key, start_time_secs=trial.begun or 0.0))
        for step, values in sorted(trial.steps.items()):
            events.add(Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]), step)
        last = max(trial.steps, default=0)
        events.add(Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in trial.values.items()]), last)
        events.add(hparams._summary_pb(SESSION_END_INFO_TAG, end))


class _Events:
    """A file of events in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def add(self, summary: Any, step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(summary=summary, step=step))

    def __enter__(self) -> _Events:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()


def to_wandb(study: ExportedStudy, into: Path) -> None:
    """Write the folder `into`, which must not exist: `wandb sync FOLDER/wandb/offline-run-*`. Nothing is sent here."""
    os.environ.setdefault("WANDB_SILENT", "true")
    with needs("wandb"):
        import wandb
    into.mkdir(parents=True)
    for trial in study.trials:
        run = wandb.init(
            mode="offline", dir=into, project=str(study.header["settings"]["experiment"]), group=study.name,
            name=trial.key, config=dict(trial.params), tags=[trial.state], reinit="finish_previous",
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, x_disable_stats=True),
        )  # fmt: skip
        for step, values in sorted(trial.steps.items()):
            run.log(dict(values), step=step)
        facts = {"run/place": str(trial.last.place), "run/error": trial.error}
        run.summary.update({**trial.values, **trial.measured, **facts})
        run.finish(exit_code=1 if trial.state == FAILED else 0)
    wandb.teardown()  # its service writes the last records, and may do so after `finish`


# What writes a format, and the name in the results folder that it gets if no other is given.
FORMATS: dict[str, tuple[Callable[[ExportedStudy, Path], None], str]] = {
    "csv": (to_csv, "export.csv"),
    "json": (to_json, "export.json"),
    "optuna": (to_optuna, "optuna.log"),
    "mlflow": (to_mlflow, "mlflow.db"),
    "tensorboard": (to_tensorboard, "tensorboard"),
    "wandb-offline": (to_wandb, "wandb-offline"),
}
