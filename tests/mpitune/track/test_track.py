"""Trackers that follow a study, each read by its own package: the same records as the export of the journal."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune.errors import Exit
from mpitune.optimize.strategies.halving import Hyperband
from mpitune.tools.export import main
from tests.mpitune.track.test_export import wandb_records

pytestmark = pytest.mark.xdist_group("track")
SPACE = {"lr": mpitune.Float(1e-5, 1e-1, log=True), "act": mpitune.Choice("relu", "gelu")}
PATIENCE_S = 120.0


def in_mlflow(uri: str) -> dict[str, Any]:
    """All runs, of one experiment."""
    client = pytest.importorskip("mlflow").MlflowClient(tracking_uri=uri)
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    found: dict[str, Any] = {"": (experiment.name, experiment.tags)}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.run_name not in found, "once"
        values = {
            name: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        tags = {name: run.data.tags[name] for name in ("place", "state", "error")}
        found[run.info.run_name] = run.data.params, values, tags, run.info.status, run.info.end_time
    return found


def in_tensorboard(folder: Path) -> dict[str, Any]:
    """All runs of a folder: scalars, and what the page HParams is told of their begin and end."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    found = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        read = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        scalars = {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}
        about = []
        for tag in ("start", "end"):
            content = read.SummaryMetadata(f"_hparams_/session_{tag}_info").plugin_data.content
            said = plugin_data_pb2.HParamsPluginData.FromString(content)
            about.append(said.session_start_info.hparams if tag == "start" else said.session_end_info)
        found[path.name] = scalars, {name: str(value) for name, value in about[0].items()}, str(about[1])
    return found


def in_wandb(folder: Path) -> dict[str, Any]:
    """All offline runs of a folder, from their files."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {}
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        name, config, tags, ends = "", {}, [], []
        history, summary = dict[int, Any](), dict[str, Any]()
        for record in map(Record.FromString, wandb_records(path.read_bytes())):
            if record.HasField("run"):
                name, tags = record.run.display_name, list(record.run.tags)
                group = record.run.run_group
                config.update({item.key: item.value_json for item in record.run.config.update})
            if record.HasField("history"):
                row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                history[row["_step"]] = {key: value for key, value in row.items() if key[0] != "_"}
            for item in record.summary.update:
                key = item.key or ".".join(item.nested_key)
                summary.update({key: json.loads(item.value_json)} if key[0] != "_" else {})
            ends += [record.exit.exit_code] if record.HasField("exit") else []
        assert name not in found, "once"
        config.pop("_wandb", None)
        found[name] = group, config, tags, history, summary, ends
    return found


def waiting(trial: Any) -> Iterator[Any]:
    """An objective that waits until TensorBoard's folder shows its first step; one trial fails."""
    if trial.number == 2 and trial.start == 0:
        raise ValueError("it does not work")
    for step in range(trial.start, 4):
        yield {"step": step + 1, "loss": abs(trial.params["lr"] - 0.01) / (step + 1), "other": 2.0}
        seen = lambda: [  # noqa: E731
            path.parent.name
            for path in Path(os.environ["TRACK_SEEN"]).glob("*/*/events*")
            if b"other" in path.read_bytes()
        ]
        end = time.monotonic() + PATIENCE_S
        while step == 0 and f"t{trial.number:06}" not in seen():
            assert time.monotonic() < end, "its first step is not shown while it runs"
            time.sleep(0.1)


def same_as_export(folder: Path, board: Path, base: Path, into: Path) -> dict[str, Any]:
    """Compare what three trackers have with exports of the journal. Returns what MLflow has."""
    for to in ("mlflow", "tensorboard", "wandb-offline"):
        assert main([str(folder), "--to", to, "--into", str(into / to)]) == Exit.DONE
    followed = in_mlflow(f"sqlite:///{base / 'm/mlflow.db'}")
    assert followed == in_mlflow(f"sqlite:///{into / 'mlflow'}")
    (here,) = board.iterdir()
    assert in_tensorboard(here) == in_tensorboard(into / "tensorboard")
    assert in_wandb(base / "w") == in_wandb(into / "wandb-offline")
    assert len(followed) == 1 + len(mpitune.load(folder).trials)
    return followed


@pytest.mark.slow
def test_trackers_have_what_an_export_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once the study goes on: trials that were there are there once, those that went on are whole."""
    board, results = tmp_path / "b", tmp_path / "r"
    monkeypatch.setenv("TRACK_SEEN", str(board))
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracks = [f"mlflow:{tmp_path / 'm'}", f"tensorboard:{board}", f"wandb:{tmp_path / 'w'}"]

    def run(n_trials: int, stop_after: int | None = None) -> Any:
        told: list[int] = []
        return mpitune.search(
            waiting, SPACE, strategy=Hyperband(max_steps=4), n_trials=n_trials, minimize="loss", workers=2, window=4,
            results=results, track=tracks,
            callbacks=[lambda study, trial: bool(told.append(trial.number)) or len(told) == stop_after],
        )  # fmt: skip

    run(8, stop_after=3)
    first = same_as_export(results, board, tmp_path, tmp_path / "1")
    mine = [folder / "notes.txt" for folder in board.glob("*/t*")]
    for path in mine:
        path.write_text("of the user")
    study = run(8)
    second = same_as_export(results, board, tmp_path, tmp_path / "2")
    assert second.keys() >= first.keys() and second != first and second[""] == first[""], "the same experiment"
    assert {t.state for t in study.trials} == {tags["state"] for _, _, tags, _, _ in list(second.values())[1:]}
    assert all(path.exists() for path in mine)
    assert {"pruned", "complete", "failed"} == {t.state for t in study.trials}


@pytest.mark.slow
def test_a_sweep_is_followed(tmp_path: Path) -> None:
    """The steps of a program are shown while it runs. A journal without objectives is the same as its export, too."""
    (tmp_path / "train.py").write_text(
        "import sys, time, json, pathlib\n"
        "print(json.dumps({'loss': 0.5, 'step': 1}), flush=True)\n"
        "while not any(b'loss' in p.read_bytes() for p in pathlib.Path('b').glob('*/*/events*')): time.sleep(0.1)\n"
        "print(json.dumps({'loss': 0.25, 'step': 2}), flush=True)\n"
    )
    sweep = {"program": "train.py", "method": "grid", "metric": {"name": "loss"}, "parameters": {"x": {"values": [1]}}}
    (tmp_path / "s.json").write_text(json.dumps(sweep))
    words = ["-m", "mpitune", "run", "s.json", "--workers", "1", "--results", "r", "--track", "tensorboard:b"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=PATIENCE_S,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main([str(tmp_path / "r"), "--to", "tensorboard", "--into", str(tmp_path / "e")]) == Exit.DONE
    (board,) = (tmp_path / "b").iterdir()
    assert in_tensorboard(board) == in_tensorboard(tmp_path / "e")
    assert in_tensorboard(board)["t000000"][0]["loss"] == [(1, 0.5), (2, 0.25), (2, 0.25)]


SCRIPT = """
import mpitune, sys
mpitune.search(lambda trial: trial.params["x"], {"x": mpitune.Float(0, 1)}, strategy="random", n_trials=5,
    minimize="x", workers=0, results=sys.argv[1], track=sys.argv[2:])
"""


@pytest.mark.slow
def test_a_kill_leaves_no_half_database_and_no_words(tmp_path: Path) -> None:
    client_of = pytest.importorskip("mlflow").MlflowClient
    words, around = [sys.executable, "-c", SCRIPT, "r", "mlflow:m"], {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(words, cwd=tmp_path, env=around, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        end = time.monotonic() + PATIENCE_S
        while not (tmp_path / "m/mlflow.db").exists():
            assert time.monotonic() < end and job.poll() is None
        job.kill()
        assert "semaphore" not in job.stderr.read()
    assert client_of(f"sqlite:///{tmp_path / 'm/mlflow.db'}").search_experiments()
    assert subprocess.run(words, cwd=tmp_path, env=around).returncode == 0
    assert len(in_mlflow(f"sqlite:///{tmp_path / 'm/mlflow.db'}")) == 1 + 5


@pytest.mark.slow
def test_names_that_mlflow_does_not_take_and_an_experiment_that_was_deleted(tmp_path: Path) -> None:
    client_of = pytest.importorskip("mlflow").MlflowClient
    space = {name: mpitune.Float(0, 1) for name in ("x", "a/b", "lr (log)", "..", "/a", "a//b", "\u00fc", "n" * 300)}
    uri = f"sqlite:///{tmp_path / 'm/mlflow.db'}"
    for n_trials in (3, 5):
        mpitune.search(
            lambda trial: {"loss [%]": trial.params["x"], "..": 1.0}, space, strategy="random", n_trials=n_trials,
            minimize="loss [%]", workers=0, results=tmp_path / "r", track=f"mlflow:{tmp_path / 'm'}",
        )  # fmt: skip
        assert main([str(tmp_path / "r"), "--to", "mlflow", "--into", str(tmp_path / f"{n_trials}")]) == Exit.DONE
        found = in_mlflow(uri)
        assert found == in_mlflow(f"sqlite:///{tmp_path / str(n_trials)}")
        assert len(found) == 1 + n_trials
        params, values, *_ = found["t000000"]
        assert len(params) == len(space) and {"x", "a/b", "lr _28_log_29_", "_2e__2e_", "\u00fc"} <= params.keys()
        assert {"loss _5b__25__5d_", "_2e__2e_"} <= values.keys()
        client = client_of(uri)
        for each in client.search_experiments():
            if each.name != "Default":
                client.delete_experiment(each.experiment_id)


@pytest.mark.slow
def test_two_studies_that_begin_at_once_are_two(tmp_path: Path) -> None:
    """Also where their folders have the same name, as those of the tasks of a job array."""
    around = {**os.environ, "PYTHONPATH": os.getcwd()}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, f"{n}/r", "mlflow:m", "tensorboard:b"], cwd=tmp_path, env=around,
            stderr=subprocess.PIPE, text=True,
        ) for n in "12"
    ]  # fmt: skip
    assert not any("has failed" in job.communicate(timeout=PATIENCE_S)[1] for job in jobs)
    client = pytest.importorskip("mlflow").MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'm' / 'mlflow.db'}")
    each = [client.search_runs([one.experiment_id]) for one in client.search_experiments() if one.name != "Default"]
    assert list(map(len, each)) == [5, 5] and len(list((tmp_path / "b").iterdir())) == 2
