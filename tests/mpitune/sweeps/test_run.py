"""`python -m mpitune run`: scripts as they are, on any number of workers; stopped early, killed, continued."""

from __future__ import annotations

import math
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mpitune import current_trial
from mpitune.optimize.commands import OUTPUT, _run
from mpitune.optimize.values import FolderFault
from mpitune.sweeps.metrics import HEAD, MetricValues, _records
from mpitune.sweeps.program import Program
from mpitune.sweeps.reading import Sweep
from mpitune.tools.run import main
from tests.helpers import journal_lines, table
from tests.mpitune.sweeps.scripts import PLAIN, WITH_WANDB, ran, written

FAST = {"WANDB_X_DISABLE_STATS": "true"}
NET = {
    "lr": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1},
    "net": {"parameters": {"units": {"value": 2}}},
}
VAL = {"name": "val.loss", "goal": "minimize"}


def stopped_by_hyperband(
    lines: list[dict[str, Any]], name: str, window: int, eta: float, bands: list[int]
) -> list[int]:
    """Which trials the rule of W&B's package `sweeps` stops, and where; it needs NumPy 1, so it is not run here.

    Each trial is compared with those that were told before it began.
    """
    histories = []
    for line in lines:
        steps = line["ending"]["steps"]
        histories.append([steps[step][name] for step in sorted(steps, key=int)])
    ended = []
    for number, history in enumerate(histories):
        known = histories[: max(0, number - window + 1)]
        at = [0]
        for band in (band for band in bands if band <= len(history)):
            losses = sorted([*(other[band - 1] for other in known if len(other) >= band), history[band - 1]])
            at += [band] * (history[band - 1] > losses[int(len(losses) / eta)] and at == [0])
        ended.append(at[-1])
    return ended


def test_early_terminate_stops_what_hyperband_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = {"type": "hyperband", "min_iter": 2, "eta": 2}
    file = written(tmp_path, early_terminate=early, run_cap=30)
    monkeypatch.chdir(tmp_path)
    assert main([file.name, "--workers", "2", "--window", "4", "--results", "kept"]) == 0
    lines = sorted(journal_lines(tmp_path / "kept"), key=lambda line: line["key"])
    expected = stopped_by_hyperband(lines, "loss", 4, 2, [2, 4, 8])
    rows = table(tmp_path / "kept" / "trials.csv")
    assert [row["state"] == "pruned" for row in rows] == [band > 0 for band in expected]
    assert [len(line["ending"]["steps"]) for line in lines] == [band or 8 for band in expected]
    assert 5 < sum(map(bool, expected)) < 30


@pytest.mark.slow
def test_a_wandb_script_runs_unchanged_and_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("wandb", "0.31")  # which writes a run's file while it runs
    file = written(
        tmp_path, WITH_WANDB, metric=VAL, parameters=NET, run_cap=6, mpitune={"seed": 3},
        early_terminate={"type": "hyperband", "min_iter": 3, "eta": 2},
        command=["${env}", "${interpreter}", "${program}", "--wait", "${args}"],
    )  # fmt: skip
    ran(file, "--workers", 2, "--window", 2, **FAST)
    rows = table(tmp_path / "results" / "sweep" / "trials.csv")
    for row in rows:
        lr = float(row["param_lr"])
        steps = [abs(lr - 0.1) * 2 + 1 / (epoch + 1) for epoch in range(12)]
        assert any(math.isclose(float(row["value_val.loss"]), steps[last]) for last in (2, 5, 11))
        assert row["state"] == ("complete" if math.isclose(float(row["value_val.loss"]), steps[11]) else "pruned")
    assert any(row["state"] == "pruned" and float(row["param_lr"]) > 0.5 for row in rows)
    folder = tmp_path / "results" / "sweep" / "trials" / "t000000"
    (run,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert "-t000000-" in run.name


ANYWHERE = """
import os, subprocess, sys, wandb
how = os.environ.get("HOW") or sys.argv[1].removeprefix("--how=")
if how == "child" and "HOW" not in os.environ:
    os.environ["HOW"] = how
    sys.exit(subprocess.run([sys.executable, "../train.py"], cwd="elsewhere").returncode)
out, models = os.environ["OUTSIDE"], os.path.abspath("models")
place = {"plain": None, "outside": out, "silent": out, "moved": "."}.get(how, "logs/of it")
if how == "silent":
    os.environ["WANDB_SILENT"] = "true"
if how == "moved":
    os.chdir(out)
quiet = wandb.Settings(quiet=True) if how in ("quiet", "child") else None
for part in (1, 2) if how == "twice" else (2,):
    run = wandb.init(project="toy", dir=place, settings=quiet)
    wandb.log({"loss": len(how) * part})
    open(f"{models}/{run.name}.pt", "w").write(how)
    assert (run.sweep_id, run.id[:15], run.path) == (run.name[:8], run.name[:15], f"{run.project}/{run.id}")
    assert [type(value) for value in (run.entity, run.group, run.job_type, run.project)] == [str] * 4
    run.finish()
"""


@pytest.mark.slow
def test_a_run_is_found_wherever_it_is_and_has_a_name(tmp_path: Path) -> None:
    pytest.importorskip("wandb", "0.31")
    hows = ["plain", "folder", "quiet", "outside", "silent", "moved", "twice", "child"]
    file = written(tmp_path / "w", ANYWHERE, method="grid", parameters={"how": {"values": hows}}, run_cap=None)
    for name in ("logs/of it", "models", "elsewhere/models"):
        (tmp_path / "w" / name).mkdir(parents=True)
    (tmp_path / "out side").mkdir()
    ran(file, "--workers", 2, OUTSIDE=str(tmp_path / "out side"), **FAST)
    values = {row["param_how"]: float(row["value_loss"]) for row in table(tmp_path / "w/results/sweep/trials.csv")}
    assert values == {how: 2.0 * len(how) for how in hows}
    assert {path.read_text() for path in (tmp_path / "w").glob("**/models/*.pt")} == {*hows}
    (tmp_path / "w/train.py").write_text("")  # the runs of before are still there, and are no others'
    assert "it has logged nothing" in ran(file, "--workers", 2, "--restart", status=2)


@pytest.mark.slow
def test_a_grid_ends_and_a_target_ends_a_sweep(tmp_path: Path) -> None:
    parameters = {"lr": {"values": [0.1, 0.5]}, "units": {"min": 1, "max": 3}}
    file = written(tmp_path, method="grid", parameters=parameters, run_cap=None)
    ran(file, "--workers", 2)
    assert len(table(tmp_path / "results" / "sweep" / "trials.csv")) == 6
    script = "import sys\nprint('{\"loss\": %d}' % len(sys.argv))"  # without a word where all flags are false
    flags, words = {"flag": {"values": [True, False]}}, ["${interpreter}", "${program}", "${args_no_boolean_flags}"]
    file = written(tmp_path, script, method="grid", parameters=flags, command=words, run_cap=None)
    ran(file, "--workers", 1, "--results", "flags")
    assert [row["value_loss"] for row in table(tmp_path / "flags" / "trials.csv")] == ["2.0", "1.0"]
    file = written(tmp_path, metric={"name": "loss", "target": 100}, mpitune={"strategy": "sobol"}, run_cap=200)
    ran(file, "--workers", 1, "--results", "met")
    assert len(table(tmp_path / "met" / "trials.csv")) < 100


@pytest.mark.slow
def test_without_a_metric_runs_are_started_for_what_they_write(tmp_path: Path) -> None:
    script = "import sys\nopen('written', 'a').write(sys.argv[1])\nsys.exit(sys.argv[1] == '--lr=2')"
    parameters = {"lr": {"values": [1, 2, 3]}}
    ran(written(tmp_path, script, method="grid", metric=None, parameters=parameters), "--workers", 1, status=3)
    rows = table(tmp_path / "results" / "sweep" / "trials.csv")
    assert [(row["state"], row["value_exit_status"]) for row in rows] == [
        ("complete", "0.0"),
        ("failed", ""),
        ("complete", "0.0"),
    ]
    assert sorted((tmp_path / "written").read_text().split("--lr=")) == ["", "1", "2", "2", "3"]  # 2 is tried again


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "print('{\"acc\": 1}')": ({}, "it has logged no loss, but acc: name one of these in metric, or log loss (trial 0)"),
    "import wandb\nwandb.init(mode='online')": (
        {}, ": leave mode='online', wandb.sweep and wandb.agent out of what a run calls, or set WANDB_API_KEY (",
    ),
    "print('{\"loss\": \"1\"}')": ({}, "it has logged loss = '1': log a number (trial 0)"),
    "": ({}, "it has logged nothing: log loss by wandb.log, or print it as a line of JSON (trial 0)"),
    PLAIN.replace("--units", "--width"): (
        {}, ": give parameters the names that it reads, or change command in the sweep file (trial 0)",
    ),
    PLAIN: ({"run_cap": None}, "a sweep by random has no end: give --trials 50, or run_cap"),
    "print('{\"loss\": 1}')": ({"mpitune": {"devices": 99}}, "devices=99 for each trial"),
}  # fmt: skip


def test_what_newcomers_do_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # in one folder, as workers of another one have another server
    for number, (script, (changes, said)) in enumerate(WRONG.items()):
        if "wandb" in script and not find_spec("wandb"):
            continue
        file = written(tmp_path, script, **changes)
        workers = "2" if "mpitune" in changes else "1"
        assert main([file.name, "--workers", workers, "--results", str(number)]) == 2
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("python -m mpitune run: ")]
        assert said in line


def test_a_folder_that_cannot_be_written_is_no_fault_of_a_trial(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = Program(Sweep("grid", {}, command=["true"]), {}, "sweep")
    with pytest.raises(FolderFault, match="cannot be read or written"):
        program.write_config(current_trial(), tmp_path / "file/params.yaml")
    with pytest.raises(FolderFault, match="cannot be read or written"):
        _run(["true"], {}, tmp_path / "file" / OUTPUT, None)


def run_file(contents: list[bytes]) -> bytes:
    """Records in LevelDB's log format, after a head of seven bytes."""
    written = b":W&B\xe1\xbe\x00"
    for content in contents:
        first = True
        while first or content:
            left = 32768 - len(written) % 32768
            if left < HEAD.size:
                written += bytes(left)
                continue
            piece, content = content[: left - HEAD.size], content[left - HEAD.size :]
            kind = {(True, False): 1, (True, True): 2, (False, True): 3, (False, False): 4}[first, bool(content)]
            written += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return written


@pytest.mark.parametrize("left", range(8))
def test_a_run_file_is_read_as_it_grows(left: int) -> None:
    """Its blocks have 1 to 6 bytes of padding where a record ends so many bytes before them, 0 or 7 bytes without."""
    sizes = [10, 32768 - 7 - 17 - HEAD.size - left, 40, 100_000, 5]
    contents = [bytes([n]) * size for n, size in enumerate(sizes)]
    whole = run_file(contents)
    assert list(_records(whole)) == contents
    for length in (0, 7, 12, 32767, 32768, 90_000, len(whole) - 1):
        read = list(_records(whole[:length]))
        assert read == contents[: len(read)] and len(read) < len(contents)


DIES = """
import json, os, sys, uuid
from pathlib import Path
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
folder = Path(sys.argv[1])
first = not (folder / "again").exists()
(folder / "again").touch()
events = EventFileWriter(str(folder / uuid.uuid4().hex))
for step in (1, 2):
    value = 1000.0 + step if first else 1 / step
    print(json.dumps({"loss": value, "token": os.environ["TOKEN"]}), flush=True)
    events.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=value)])))
events.close()
if first:
    os._exit(9)
sys.exit("no memory" if float(sys.argv[-1].split("=")[1]) > 0.7 else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("read", ["json", "tensorboard"])
def test_an_attempt_is_known_by_what_it_has_logged_itself(read: str, tmp_path: Path) -> None:
    """The one before died of its own, and left other values. And a variable's value stands nowhere but its name."""
    pytest.importorskip("tensorboard")
    command = ["${interpreter}", "${program}", "${folder}", "--token", "${envvar:TOKEN}", "${args}"]
    lr = {"lr": {"min": 0.1, "max": 1.0}}
    file = written(tmp_path, DIES, parameters=lr, run_cap=4, command=command, mpitune={"read": read})
    ran(file, "--workers", 2, "--track", "tensorboard:board", status=3, TOKEN="s3cr3t-value")
    results = tmp_path / "results" / "sweep"
    rows = table(results / "trials.csv")
    assert [row["value_loss"] for row in rows] == ["0.5" if float(row["param_lr"]) <= 0.7 else "" for row in rows]
    assert "--token '${envvar:TOKEN}'" in next(row["error"] for row in rows if row["error"])
    places = [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cr3t-value" in path.read_bytes()]
    assert {path.name for path in places} == {"output.txt"}  # as it prints it itself


@pytest.mark.parametrize("maximize", [False, True])
def test_a_metric_that_ends_as_nan_is_the_worst_there_is(maximize: bool) -> None:
    metric = MetricValues("loss", maximize, iter([("loss", 0.5, 0), ("loss", math.nan, 1)]))
    assert metric.end == (-math.inf if maximize else math.inf) and metric.steps == {0: 0.5}
