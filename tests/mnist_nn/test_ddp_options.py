"""Options of a data-parallel training: optimizers, schedules, shards, restarts, the log, files of options."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mnist_nn.ddp import main
from mnist_nn.parallel.checkpoint import BEFORE
from mnist_nn.parallel.optimizer import rate_of
from mnist_nn.parallel.settings import Settings, parse_with_config
from mpitune.errors import Exit
from mpitune.settings import Parser, add_settings
from tests.helpers import PATIENCE, ROOT, wait_until
from tests.mnist_nn.trainings import ONE_THREAD, losses, rows, wait_for_an_epoch

DDP = (sys.executable, "-m", "mnist_nn.ddp")
TWO = ("--nproc-per-node", "2")
ADAMW = ("--optimizer", "adamw", "--warmup-steps", "4", "--schedule", "cosine")


@pytest.fixture
def train(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains into a folder of this name: in this process, which has imported PyTorch already."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(folder: str, *options: str, status: int = Exit.DONE) -> None:
        assert main(["--data", str(data), "--results", str(tmp_path / folder), *options]) == status

    return run


@pytest.fixture
def begin(data: Path, tmp_path: Path) -> Any:
    """Begins one in processes of one thread each."""

    def run(folder: str, *options: str, by: tuple[str, ...] = DDP) -> subprocess.Popen[bytes]:
        command = [*by, "--data", str(data), "--results", str(tmp_path / folder), *options]
        around = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, cwd=ROOT, env=around, stdout=subprocess.DEVNULL)

    return run


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Those of the log that have this: "run", "step" or "accuracy"."""
    return [line for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if kind in line]


def loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def require_same_weights(one: Path, other: Path) -> None:
    first, second = loaded(one / "model.pt"), loaded(other / "model.pt")
    assert all(torch.equal(first[name], second[name]) for name in first)


# Rates and updates


def test_the_rate_of_each_step() -> None:
    given: dict[str, Any] = {"lr": 0.8, "warmup_steps": 4}
    cosine, constant = Settings(**given, schedule="cosine"), Settings(**given)
    rates = [rate_of(cosine, step, 12) for step in (0, 1, 2, 3, 4, 8, 12)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.4, 0])
    assert [rate_of(constant, step, 12) for step in (3, 4, 100)] == [0.8] * 3
    line = Settings(**given, schedule="linear", warmup_type="log")
    assert [rate_of(line, step, 12) for step in (3, 4, 8, 12, 13)] == pytest.approx([0.8, 0.8, 0.4, 0.0, 0.0])
    shorter = Settings(**given, schedule="linear", total_steps=8)
    assert [rate_of(shorter, step, 12) for step in (4, 6, 8, 12)] == pytest.approx([0.8, 0.4, 0, 0])
    assert [rate_of(line, step, 12) for step in range(3)] == pytest.approx([0, 0.4, 0.8 * math.log(3) / math.log(4)])


@pytest.mark.slow
def test_reduced_precision_of_another_data_set(data: Path, tmp_path: Path) -> None:
    (tmp_path / "FashionMNIST").symlink_to(data / "MNIST")
    given = ["--data", str(tmp_path), "--dataset", "fashion-mnist", "--train-size", "60", "--epochs", "1", "--no-cuda"]
    for kind in ("", "fp16", "bf16"):
        folder = tmp_path / f"r{kind}"
        amp = ["--amp", kind] if kind else []
        assert main([*given, "--batch-size", "30", "--results", str(folder), *amp]) == Exit.DONE
        assert losses(folder) == pytest.approx(losses(tmp_path / "r"), rel=1e-2)
        assert rows(folder)[0]["amp"] == kind
    state = loaded(tmp_path / "rfp16" / "checkpoint.pt")
    assert state["scaler"]["scale"] == 65536.0 and state["scaler"]["_growth_tracker"] == state["steps"] == 2


# What continues


def test_a_checkpoint_within_an_epoch_is_continued_there(train: Any, tmp_path: Path) -> None:
    """A checkpoint of step 4, of 3 steps an epoch."""
    given = ("--train-size", "90", "--batch-size", "30", "--save-model", "--log-interval", "2")
    train("a", *given, "--epochs", "2")
    train("a", *given, "--epochs", "3", "--resume")
    train("b", *given, "--epochs", "3", "--checkpoint-steps", "4")
    steps = [(line["epoch"], line["step"]) for line in lines(tmp_path / "b", "step")]
    assert steps == [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    require_same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_a_training_that_torchrun_starts_again_is_the_uninterrupted_one_to_the_bit(
    train: Any, begin: Any, tmp_path: Path
) -> None:
    """Two processes with shards of the optimizer's state, three steps an epoch, a checkpoint after each: as plain ddp.

    It does not go on with what another training has left there, which the user did not ask to resume.
    """
    train("b", "--batch-size", "50", "--epochs", "1", "--seed", "7")
    options, before = (*ADAMW, "--batch-size", "50", "--epochs", "12", "--save-model"), tmp_path / "b" / BEFORE
    torchrun = (sys.executable, "-m", "torch.distributed.run", *TWO, "--max-restarts", "1", *DDP[1:])
    job = begin("b", *options, "--strategy", "zero1", "--checkpoint-steps", "1", by=torchrun)
    assert wait_until(before.exists) and loaded(before)["settings"]["seed"] == 7
    wait_for_an_epoch(tmp_path / "b", job)
    os.kill(int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[1]), signal.SIGKILL)
    for each in (job, begin("a", *options, *TWO)):
        assert each.wait(PATIENCE) == 0
    assert len(lines(tmp_path / "b", "run")) == 2
    require_same_weights(tmp_path / "a", tmp_path / "b")
    epochs = [lines(tmp_path / name, "accuracy") for name in "ab"]
    assert [line["epoch"] for line in epochs[1]] == list(range(1, 13)), "each epoch once"
    for here, there in zip(*epochs, strict=True):
        assert here["train_loss"] == pytest.approx(there["train_loss"]) and here["test_loss"] == there["test_loss"]


# What is told, and where it is asked from

RATES = {"warmup_min_lr": 0, "warmup_max_lr": 0.002, "warmup_num_steps": 4, "total_num_steps": 12}
DEEPSPEED = {
    "train_batch_size": 50, "train_micro_batch_size_per_gpu": 50, "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.5, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": RATES},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}, "fp16": {"enabled": False, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"}, "gradient_clipping": 0.0, "wall_clock_breakdown": False, "steps_per_print": 2,
}  # fmt: skip
IN_OPTIONS = (
    "--batch-size 50 --total-batch-size 50 --optimizer adamw --lr 0.002 --betas 0.8 0.95 --eps 1e-7 --weight-decay 0.1 "
    "--warmup-steps 4 --warmup-type log --schedule linear --total-steps 12 --strategy zero1 --log-interval 2 "
    "--print-steps"
)
OURS = {"epochs": 5, "batch_size": 128, "train-size": 200, "statistics": True, "resume": False, "lr": 1e-3, "amp": None}


@pytest.mark.parametrize(
    ("content", "options", "not_needed"),
    [
        (DEEPSPEED, IN_OPTIONS, "wall_clock_breakdown, zero_optimization.reduce_bucket_size"),
        ({"bf16": {"enabled": True}, "epochs": 3}, "--amp bf16 --epochs 3", ""),
        (OURS, "--epochs 5 --batch-size 128 --train-size 200 --statistics --lr 0.001", ""),
    ],
    ids=["DeepSpeed", "of both", "ours"],
)
def test_a_file_says_what_options_say(
    tmp_path: Path, capsys: Any, content: dict[str, Any], options: str, not_needed: str
) -> None:
    (config := tmp_path / "options.json").write_text(json.dumps(content))
    parser = Parser(prog="ddp")
    add_settings(parser, Settings)
    for more in ([], ["--seed", "9"]):
        by_file = parse_with_config(parser, ["--config", str(config), *more])
        said = capsys.readouterr().err
        by_options = parse_with_config(parser, [*options.split(), *more])
        assert {**vars(by_file), "config": None, "given": 0} == {**vars(by_options), "given": 0}
        assert not not_needed or said == f"ddp: --config {config}: not needed here: {not_needed}\n"
    if content is OURS:
        assert parse_with_config(parser, ["--config", str(config), "--epochs", "1"]).epochs == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # Of DeepSpeed what this program does not, by name.
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3: only 0 or 1 can be done here"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer.device"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "scheduler.params.warmup_max_lr is missing: give it"),
        # A file of options.
        (None, "cannot be read (No such file or directory)"),
        ({"batch-size": "many"}, "'many' is not a whole number"),
        ({"resume": "yes"}, "--resume: ignored explicit argument 'yes'"),
        ({"optimizer": "adamw", "momentum": 0.5}, "--momentum 0.5 is for --optimizer sgd"),
        # The command line.
        ("--total-batch-size 64 --batch-size 8 --no-cuda", "--total-batch-size 64 is not --batch-size 8 times 1 proc"),
        ("--warmup-steps 5 --schedule cosine --batch-size 100 --epochs 1", "--warmup-steps 5 takes all 3 steps"),
        ("--optimizer adamw --betas 0.9 1", "--betas 0.9 1.0: give two numbers below 1"),
        ("--tensorboard", "--tensorboard needs the package tensorboard: pip install tensorboard"),
        ("--dataset digits", "--dataset digits does not fit the network: images of 8 x 8 pixels are too small"),
        ("--from no-such", "no-such holds no network of an ended"),
    ],
)
def test_what_cannot_work_ends_in_one_line(
    train: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, given: Any, says: str
) -> None:
    monkeypatch.setattr("mnist_nn.parallel.rank0.find_spec", lambda name: None)
    if given is not None and not isinstance(given, str):
        (tmp_path / "options.json").write_text(json.dumps(given))
    words = given.split() if isinstance(given, str) else ["--config", str(tmp_path / "options.json")]
    train("r", *words, status=Exit.USAGE)
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "r").exists()


def test_a_loss_that_is_not_finite_ends_the_training(train: Any, capsys: Any) -> None:
    train("r", "--lr", "1e30", "--epochs", "1", status=Exit.ERROR)
    said = capsys.readouterr().err
    assert "the loss is not finite in step" in said and said.count("\n") == 1


def test_what_a_training_tells_of_its_steps(train: Any, tmp_path: Path, capsys: Any) -> None:
    """On standard output, in the log and to TensorBoard: losses, rates, activations."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    (config := tmp_path / "ds_config.json").write_text(json.dumps({**DEEPSPEED, "statistics": True}))
    train("r", "--config", str(config), "--epochs", "2", "--tensorboard")
    out = capsys.readouterr().out
    printed = [line for line in out.splitlines() if line.startswith(f"{socket.gethostname()}: epoch ")]
    steps = lines(tmp_path / "r", "step")
    assert len(printed) == 6 and all(" images/s  conv1 0.." in line for line in printed)
    for step, line in zip(steps, printed, strict=True):
        assert f"  loss {step['loss']:.4f}  learning rate {step['learning_rate']:.4g}  " in line
    rates = [0.002 * rate for rate in (0.5, 1, 7 / 8, 5 / 8, 3 / 8, 1 / 8)]
    assert [line["learning_rate"] for line in steps] == pytest.approx(rates)
    least = float(printed[-1].split("  output ")[1].split("..")[0])
    assert least == pytest.approx(steps[-1]["activations"]["output"]["min"], rel=1e-2)
    board = events.EventAccumulator(str(tmp_path / "r" / "tensorboard")).Reload()
    assert [event.value for event in board.Scalars("loss")] == pytest.approx([line["loss"] for line in steps])
    assert [event.step for event in board.Scalars("epoch/accuracy")] == [1, 2]
    assert {"learning_rate", "gradients/all", "activations/hidden/zeros"} <= set(board.Tags()["scalars"])
