"""A study for MLflow: an experiment with a run for each trial, in a database that `mlflow ui` shows."""

from __future__ import annotations

import logging
from pathlib import Path

from mpitune.export.extras import needs
from mpitune.export.trials import ExportedStudy, ExportedTrial
from mpitune.optimize.search_study import FAILED

STATUS = {FAILED: "FAILED"}
MOST = 1000  # metrics that MLflow takes in one call


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


def _log(client: object, experiment: str, trial: ExportedTrial) -> None:
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = (round(1000 * (when or 0)) for when in (trial.begun, trial.ended))
    run = client.create_run(experiment, start_time=begun, run_name=trial.key).info.run_id  # type: ignore[attr-defined]
    figures = {**trial.values, "seconds": trial.seconds, **trial.used}
    metrics = [Metric(name, float(value), ended, 0) for name, value in figures.items()]
    metrics += [
        Metric(f"step/{name}", float(value), ended, step)
        for step, values in trial.steps.items()
        for name, value in values.items()
    ]
    params = [Param(name, str(value)[:6000]) for name, value in trial.params.items()]
    tags = [RunTag("place", str(trial.last.place)), RunTag("state", trial.state), RunTag("error", trial.error[:5000])]
    client.log_batch(run, params=params, tags=tags)  # type: ignore[attr-defined]
    for start in range(0, len(metrics), MOST):
        client.log_batch(run, metrics=metrics[start : start + MOST])  # type: ignore[attr-defined]
    client.set_terminated(run, STATUS.get(trial.state, "FINISHED"), ended)  # type: ignore[attr-defined]
