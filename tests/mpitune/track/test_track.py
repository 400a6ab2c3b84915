"""Studies that MLflow, TensorBoard and W&B follow, read by these: what was found, also of a study that is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune.optimize.strategies.halving import Hyperband
from mpitune.sweeps.metrics import _records
from mpitune.track import tracker
from mpitune.track.writers import _taken
from tests.helpers import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("track")]
SPACE = {"lr": mpitune.Float(1e-5, 1e-1, log=True), "act [1]": mpitune.Choice("relu", "gelu")}
Read = dict[str, dict[str, Any]]  # of each run: params, steps, loss, state


def experiments(database: Path) -> list[Any]:
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{database}")
    return [each for each in client.search_experiments() if each.name != "Default"]


def in_mlflow(database: Path) -> Read:
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{database}")
    (experiment,) = experiments(database)
    found: Read = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.run_name not in found, "once"
        steps = client.get_metric_history(run.info.run_id, "step/loss")
        found[run.info.run_name] = {
            "params": run.data.params, "steps": {each.step: each.value for each in steps},
            "loss": run.data.metrics.get("loss"), "state": run.data.tags["state"],
        }  # fmt: skip
    return found


def in_tensorboard(folder: Path) -> Read:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    found: Read = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        read = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        losses = [(e.step, e.value) for e in read.Scalars("loss")] if "loss" in read.Tags()["scalars"] else []
        content = [
            read.SummaryMetadata(f"_hparams_/session_{tag}_info").plugin_data.content for tag in ("start", "end")
        ]
        begin, end = map(plugin_data_pb2.HParamsPluginData.FromString, content)
        params = {n: v.string_value or v.number_value for n, v in begin.session_start_info.hparams.items()}
        found[path.name] = {
            "params": params, "steps": dict(losses[:-1]), "loss": losses[-1][1] if losses else None,
            "state": "failed" if end.session_end_info.status == 2 else "",
        }  # fmt: skip
    return found


def in_wandb(folder: Path) -> Read:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    found: Read = {}
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        name, run = "", {"params": dict[str, Any](), "steps": dict[int, Any](), "loss": None, "state": ""}
        for record in map(Record.FromString, _records(path.read_bytes())):
            if record.HasField("run"):
                name, run["state"] = record.run.display_name, record.run.tags[0]
                run["params"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("history"):
                row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                run["steps"][row["_step"]] = row["loss"]
            if losses := [item.value_json for item in record.summary.update if item.key == "loss"]:
                run["loss"] = json.loads(losses[-1])
        assert name not in found, "once"
        run["params"].pop("_wandb", None)
        found[name] = run
    return found


def objective(trial: Any) -> Iterator[Any]:
    if trial.number == 2 and trial.start == 0:
        raise ValueError("it does not work")
    for step in range(trial.start, 4):
        yield {"step": step + 1, "loss": abs(trial.params["lr"] - 0.01) / (step + 1)}


@pytest.mark.parametrize("tool", ["mlflow", "tensorboard", "wandb"])
def test_a_tracker_has_what_was_found_also_once_it_goes_on(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that were there are there once, those that went on are whole; one of a study that is done has the same."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(tracker, "MOST_S", PATIENCE)
    read = {"mlflow": in_mlflow, "tensorboard": in_tensorboard, "wandb": in_wandb}[tool]
    first: Read = {}
    again = [("again", 100)] if tool != "mlflow" else []  # which takes half a minute for a new database
    for name, stop_after in [("here", 3), ("here", 100), *again]:
        ended: list[int] = []
        study = mpitune.search(
            objective, SPACE, strategy=Hyperband(max_steps=4), n_trials=8, minimize="loss", workers=0, window=4,
            results=tmp_path / "r", track=f"{tool}:{tmp_path / name}",
            callbacks=[lambda study, trial: bool(ended.append(trial.number)) or len(ended) == stop_after],  # noqa: B023
        )  # fmt: skip
        place = tmp_path / name
        if tool == "tensorboard":
            (place,) = place.iterdir()
        place = place / "mlflow.db" if tool == "mlflow" else place
        found = read(place)
        assert name == "here" or found == first
        first = found
        assert found.keys() == {f"t{trial.number:06}" for trial in study.trials}
        for trial in study.trials:
            run = found[f"t{trial.number:06}"]
            params = dict(trial.params)
            params = {_taken(name): str(v) for name, v in params.items()} if tool == "mlflow" else params
            assert run["params"] == (pytest.approx(params) if tool == "tensorboard" else params)
            assert run["steps"] == pytest.approx({n: values["loss"] for n, values in trial.steps.items()})
            assert run["loss"] == (None if trial.state == "failed" else pytest.approx(trial.values["loss"]))
            assert run["state"] == ("" if tool == "tensorboard" and trial.state != "failed" else trial.state)
    assert {"pruned", "complete", "failed"} == {trial.state for trial in study.trials}
