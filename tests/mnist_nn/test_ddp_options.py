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

import numpy as np
import pytest
import torch

from mnist_nn.ddp import main
from mnist_nn.parallel.optimizer import Rule
from mnist_nn.parallel.settings import Settings, parse_with_config
from mpitune.errors import Exit
from mpitune.settings import Parser, add_settings
from tests.helpers import PATIENCE, ROOT, family, wait_for_the_end_of, wait_until
from tests.mnist_nn.trainings import ONE_THREAD, losses, pods, rows, wait_for_an_epoch

DDP = ("-m", "mnist_nn.ddp")
TWO = ("--nproc-per-node", "2")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")


@pytest.fixture
def train(program: Any, data: Path, tmp_path: Path) -> Any:
    """Trains into a folder of this name, in processes of one thread each."""

    def run(folder: str, *options: Any, **more: Any) -> Any:
        command = (*DDP, "--data", data, "--results", tmp_path / folder, *options)
        return program(*command, env=ONE_THREAD, **more)

    return run


@pytest.fixture
def train_here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same in this process, which has imported PyTorch already: with these options it needs no other one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(folder: str, *options: str, status: int = Exit.DONE) -> None:
        assert main(["--data", str(data), "--results", str(tmp_path / folder), *options]) == status

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)
    return found


# Rates and updates


def test_the_rate_of_each_step() -> None:
    rule = Rule("sgd", 0.8, warmup_steps=4, schedule="cosine")
    assert [rule.rate(step, 12) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [rule.rate(step, 12) for step in (4, 8, 12)] == pytest.approx([0.8, 0.4, 0.0])
    assert [rule._replace(schedule="constant").rate(step, 12) for step in (3, 4, 100)] == [0.8] * 3
    line = rule._replace(schedule="linear")
    assert [line.rate(step, 12) for step in (3, 4, 8, 12, 13)] == pytest.approx([0.8, 0.8, 0.4, 0.0, 0.0])
    assert [line._replace(total_steps=8).rate(step, 12) for step in (4, 6, 8, 12)] == pytest.approx([0.8, 0.4, 0, 0])
    rates = [line._replace(warmup_type="log").rate(step, 12) for step in range(4)]
    assert rates == pytest.approx([0, 0.4, 0.8 * math.log(3) / math.log(4), 0.8])


@pytest.mark.slow
@pytest.mark.numerical
def test_two_processes_take_the_steps_of_one(train: Any, train_here: Any, tmp_path: Path) -> None:
    """DistributedDataParallel against one process without it; statistics are of the same gradients."""
    options = ("--optimizer", "adamw", "--warmup-steps", "4", "--schedule", "cosine")
    asked = ("--epochs", "2", *options, "--statistics", "--log-interval", "2")
    train_here("one", *asked, "--batch-size", "100")
    train("two", *asked, "--batch-size", "50", *TWO)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    steps = [[line for line in of if "step" in line] for of in (one, two)]
    assert len(steps[0]) == len(steps[1]) == 4
    for first, second in zip(*steps, strict=True):
        assert first["learning_rate"] == second["learning_rate"] > 0
        assert second["gradients"] == pytest.approx(first["gradients"], rel=2e-2)
        norms = dict(first["gradients"])
        total = norms.pop("all")
        assert len(norms) == 8 and total == pytest.approx(math.sqrt(sum(norm**2 for norm in norms.values())))
        assert set(first["activations"]) == {"conv1", "conv2", "hidden", "output"}
        assert 0.1 < first["activations"]["hidden"]["zeros"] < 0.9 and first["activations"]["hidden"]["std"] > 0
    assert one[0]["run"]["parameters"] == 431_080


@pytest.mark.slow
def test_reduced_precision_with_a_scaled_loss(train_here: Any, tmp_path: Path) -> None:
    given = ("--train-size", "60", "--epochs", "1", "--batch-size", "30")
    train_here("half", *given, "--amp", "fp16")
    train_here("full", *given)
    assert losses(tmp_path / "half") == pytest.approx(losses(tmp_path / "full"), rel=1e-2)
    state = checkpoint(tmp_path / "half")
    assert state["scaler"]["scale"] == 65536.0 and state["scaler"]["_growth_tracker"] == state["steps"] == 2
    assert rows(tmp_path / "half")[0]["amp"] == "fp16"


# What continues


@pytest.mark.slow
def test_a_training_killed_within_an_epoch_is_the_uninterrupted_one_to_the_bit(
    train: Any, train_here: Any, data: Path, tmp_path: Path, capsys: Any
) -> None:
    """Two processes with shards of the optimizer's state, three steps of 100 images an epoch, a checkpoint each step.

    So the checkpoint that the kill leaves is, most times, of the middle of an epoch; and it ends as plain ddp does.
    """
    schedule = ["--optimizer", "adamw", "--warmup-steps", "9", "--schedule", "cosine", "--batch-size", "50"]
    shards, options = ["--strategy", "zero1"], [*schedule, "--epochs", "12", "--save-model", *TWO]
    options += ["--checkpoint-steps", "1"]
    command = [sys.executable, *DDP, "--data", str(data), "--results", str(tmp_path / "b"), *options, *shards]
    killed = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ONE_THREAD}, stdout=subprocess.DEVNULL)
    wait_for_an_epoch(tmp_path / "b", killed)
    killed_at, members = 0, family(killed.pid)
    while killed_at < 4 or not killed_at % 3:
        killed_at = checkpoint(tmp_path / "b")["steps"]
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    wait_for_the_end_of(members)  # those that it started write until they hear of it
    train_here("b", *schedule, *shards, "--epochs", "30", "--resume", status=Exit.USAGE)
    assert "has epochs = 12, this command 30" in capsys.readouterr().err
    train("b", *options, *shards, "--resume")
    train("a", *options)
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], two[name]) for name in one)
    rates = [{(x["epoch"], x["step"]): x["learning_rate"] for x in lines(tmp_path / n) if "step" in x} for n in "ab"]
    assert rates[0].items() <= rates[1].items()
    epochs = [[line for line in lines(tmp_path / name) if "accuracy" in line] for name in "ab"]
    assert [line["epoch"] for line in epochs[1]] == list(range(1, 13)), "each epoch once"
    for here, there in zip(*epochs, strict=True):
        assert here["train_loss"] == pytest.approx(there["train_loss"]) and here["test_loss"] == there["test_loss"]


def test_a_checkpoint_within_an_epoch_is_continued_there(train_here: Any, tmp_path: Path) -> None:
    """A checkpoint of step 4, of 3 steps an epoch."""
    given = ("--batch-size", "100", "--save-model", "--log-interval", "2")
    train_here("a", *given, "--epochs", "2")
    train_here("a", *given, "--epochs", "3", "--resume")
    train_here("b", *given, "--epochs", "3", "--checkpoint-steps", "4")
    steps = [(line["epoch"], line["step"]) for line in lines(tmp_path / "b") if "step" in line]
    assert steps == [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], two[name]) for name in one)


def checkpoint(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return content


@pytest.mark.slow
def test_a_restart_by_torchrun_goes_on_after_the_last_epoch(data: Path, tmp_path: Path) -> None:
    """Not with what another training has left there, which the user did not ask to resume."""
    arguments = ["--data", str(data), "--results", str(tmp_path), "--batch-size", "50"]
    assert main([*arguments, "--epochs", "1", "--seed", "7"]) == Exit.DONE
    environ = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    run = [*TORCHRUN, *DDP, *arguments, "--epochs", "40"]
    job = subprocess.Popen(run, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    before = tmp_path / "checkpoint-before.pt"
    assert wait_until(before.exists)
    assert torch.load(before, weights_only=True)["settings"]["seed"] == 7
    wait_for_an_epoch(tmp_path, job)
    children = [int(word) for word in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    os.kill(children[1], signal.SIGKILL)
    _, said = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, said
    log = lines(tmp_path)
    runs = [n for n, line in enumerate(log) if "run" in line]
    assert len(runs) == 2
    epochs = [line["epoch"] for line in log if "accuracy" in line]
    assert epochs == list(range(1, 41)), "each epoch once"
    assert any("accuracy" in line for line in log[: runs[1]])


# What is told, and where it is asked from


def test_a_file_of_options_and_the_command_line_wins(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "options.json"
    options = {
        "data": str(data), "results": str(tmp_path / "r"), "epochs": 5, "batch_size": 128, "train-size": 200,
        "scale-lr": True, "resume": False, "lr": 1e-3, "amp": None,
    }  # fmt: skip
    config.write_text(json.dumps(options))
    assert main(["--config", str(config), "--epochs", "1"]) == Exit.DONE
    (row,) = rows(tmp_path / "r")
    assert (row["epochs"], row["batch"], row["lr"], row["amp"]) == ("1", "128", "0.001", "")
    (run, *_) = lines(tmp_path / "r")
    assert run["run"]["train_size"] == 200 and run["run"]["scale_lr"] is True


DEEPSPEED = {
    "train_batch_size": 50,
    "train_micro_batch_size_per_gpu": 50,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.5, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.002, "warmup_num_steps": 4, "total_num_steps": 12},
    },
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8},
    "fp16": {"enabled": False, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "gradient_clipping": 0.0,
    "wall_clock_breakdown": False,
}


def test_a_configuration_of_deepspeed_is_read_as_it_is(train_here: Any, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({**DEEPSPEED, "statistics": True}))
    train_here("theirs", "--config", str(config), "--epochs", "2")
    done = capsys.readouterr()
    not_needed = "not needed here: wall_clock_breakdown, zero_optimization.reduce_bucket_size\n"
    assert done.err == f"python -m mnist_nn.ddp: --config {config}: {not_needed}"
    printed = [line for line in done.out.splitlines() if line.startswith(f"{socket.gethostname()}: epoch ")]
    assert len(printed) == 6 and all("  learning rate " in line and " images/s  conv1 0.." in line for line in printed)
    options = (
        "--batch-size 50 --optimizer adamw --lr 0.002 --betas 0.8 0.95 --eps 1e-7 --weight-decay 0.1 --log-interval 2 "
        "--warmup-steps 4 --warmup-type log --schedule linear --total-steps 12"
    )
    train_here("ours", *options.split(), "--epochs", "2")
    theirs, ours = ([line for line in lines(tmp_path / name) if "step" in line] for name in ("theirs", "ours"))
    assert [line["loss"] for line in theirs] == [line["loss"] for line in ours]
    rates = [0.002 * rate for rate in (0.5, 1, 7 / 8, 5 / 8, 3 / 8, 1 / 8)]
    assert [line["learning_rate"] for line in theirs] == pytest.approx(rates)
    least, largest = (float(part) for part in printed[-1].split("  output ")[1].split(".."))
    assert least == pytest.approx(theirs[-1]["activations"]["output"]["min"], rel=1e-2)
    assert largest == pytest.approx(theirs[-1]["activations"]["output"]["max"], rel=1e-2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3: only 0 or 1 can be done here"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer.device"),
        ({"optimizer": {"type": "Lamb"}}, 'optimizer.type is "Lamb": only "adamw" or "adam" or "sgd" can be done here'),
        ({"optimizer": {"type": ["Adam"]}}, 'optimizer.type is ["Adam"]: only'),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "--betas 0.9: give two numbers below 1"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "scheduler.params.warmup_max_lr is missing: give it"),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.1}}},
            "scheduler.params.total_num_steps is missing: give it",
        ),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16 and fp16 are enabled: enable one of them"),
        (
            {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
            "optimizer.params.adam_w_mode is false: only true can be done here",
        ),
        ({"gradient_clipping": 1.0}, "gradient_clipping is 1.0: only 0 can be done here"),
        ({"train_batch_size": 64}, "train_batch_size is of all processes: give train_micro_batch_size_per_gpu, too"),
        ({"fp16": {"enabled": True, "hysteresis": 4}}, "fp16.hysteresis is 4: only 2 can be done here"),
        ({"zero_optimization": {"cpu_offload": True}}, "zero_optimization.cpu_offload has no counterpart here"),
        ({"prescale_gradients": True}, "there is no option prescale_gradients"),
        ({"activation_checkpointing": {"profile": True}}, "activation_checkpointing.profile has no counterpart here"),
        (None, "cannot be read (No such file or directory)"),
        ("[1]", "is not a JSON object"),
        ("{", "is not JSON (Expecting"),
        ('{"batch-siz": 3}', "there is no option batch-siz"),
        ('{"help": true}', "there is no option help"),
        ('{"batch-size": "many"}', "'many' is not a whole number"),
        ('{"batch-size": 0}', "0 is too small"),
        ('{"batch-size": [3]}', "batch-size is [3]: give a number or a name"),
        ('{"resume": "yes"}', 'resume is "yes": give true or false'),
        ('{"backend": "mpi"}', "--backend mpi: PyTorch's packages are built without it"),
        ('{"epochs": true}', "epochs is true: give a number or a name"),
        ('{"optimizer": "adamw", "momentum": 0.5}', "--momentum 0.5 is for --optimizer sgd"),
    ],
)
def test_a_file_of_options_that_cannot_work_ends_in_one_line(
    tmp_path: Path, capsys: Any, content: Any, says: str
) -> None:
    """First what DeepSpeed does and this program does not, which is refused by name."""
    config = tmp_path / "options.json"
    if content is not None:
        config.write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["--config", str(config), "--results", str(tmp_path / "r")]) == Exit.USAGE
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "r").exists()


SWITCHED_OFF = {
    "prescale_gradients": False, "vocabulary_size": None, "communication_data_type": "none",
    "gradient_predivide_factor": 1.0, "gradient_allreduce_op": "mean", "data_types": {"grad_accum_dtype": "fp32"},
    "optimizer": {"params": {"adam_w_mode": True, "torch_adam": True, "amsgrad": False, "max_grad_norm": 0.0}},
    "scheduler": {"params": {"last_batch_iteration": -1, "warmup_min_lr": 0}},
    "zero_optimization": {
        "cpu_offload": False, "elastic_checkpoint": False, "zero_quantized_weights": False, "offload_param": None,
        "offload_optimizer": {"device": "none", "pin_memory": True}, "stage": 0, "stage3_max_live_parameters": 1e9,
        "sub_group_size": 1e9,
    },
    "fp16": {
        "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
        "min_loss_scale": 1, "auto_cast": False,
    },
    "comms_logger": {"verbose": True, "prof_ops": ["all_reduce"]}, "wandb": {"enabled": False, "team": "us"},
    "data_efficiency": {"seed": 1234, "data_sampling": {"num_epochs": 3}},
    "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None},
    "tensor_parallel": {"autotp_size": 0, "preset_model": "llama"}, "aio": {"queue_depth": 8},
    "checkpoint": {"tag_validation": "Warn", "load_universal": False}, "compile": {"deepcompile": False, "passes": []},
}  # fmt: skip


def test_what_a_configuration_of_deepspeed_switches_off_is_not_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps(SWITCHED_OFF))
    parser = Parser(prog="ddp")
    add_settings(parser, Settings)
    asked, plain = (parse_with_config(parser, words) for words in (["--config", str(config)], []))
    assert {**vars(asked), "config": None} == {"given": {"config"}, **vars(plain)}


def test_images_of_a_step_that_only_accumulated_gradients_make_are_refused(
    data: Path, tmp_path: Path, capsys: Any
) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}))
    options = ("--config", str(config), "--data", str(data), "--results", str(tmp_path / "r"))
    assert main([*options, "--no-cuda"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "--total-batch-size 64 is not --batch-size 8 times 1 processes, which is 8: give sizes that fit" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--optimizer adam", "'adam' is not one of sgd, adamw"),
        ("--amp fp8", "'fp8' is not one of bf16, fp16"),
        ("--warmup-steps -1", "-1 is too small"),
        ("--warmup-steps 5 --schedule cosine --batch-size 100 --epochs 1", "--warmup-steps 5 takes all 3 steps"),
        ("--total-steps 5", "--total-steps 5 is for --schedule linear or cosine"),
        ("--eps 1e-9", "--eps is for --optimizer adamw"),
        ("--optimizer adamw --betas 0.9 1", "--betas 0.9 1.0: give two numbers below 1"),
        ("--backend mpi", "--backend mpi: PyTorch's packages are built without it: give gloo or nccl"),
        ("--backend=mpi", "--backend mpi: PyTorch's packages are built without it: give gloo or nccl"),
        ("--gpus 2", "--gpus: all GPUs that are visible are used: name them in CUDA_VISIBLE_DEVICES"),
        ("--num-nodes=2", "--num-nodes: the launcher says how many nodes there are: use mpirun, srun, or torchrun"),
        (
            "--nnodes=2",
            "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m mnist_nn",
        ),
        ("--num_processes 4", "--num-processes: python -m mnist_nn.ddp --nproc-per-node 8, on one machine"),
        ("--nproc_per_node=2", "--nproc_per_node: here it is --nproc-per-node"),
        ("--deepspeed --deepspeed_config ds.json", "--deepspeed: python -m mnist_nn.ddp --config FILE.json reads"),
        (
            "--strategy=horovod",
            "--strategy horovod: mpirun -n 16 --hostfile hosts python -m mnist_nn.ddp does the same",
        ),
        ("--train-size 301", "--train-size 301 is too large"),
        ("--tensorboard", "--tensorboard needs the package tensorboard: pip install tensorboard"),
    ],
)
def test_options_that_cannot_work_end_in_one_line(
    data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, options: str, says: str
) -> None:
    monkeypatch.setattr("mnist_nn.parallel.rank0.find_spec", lambda name: None)
    assert main(["--data", str(data), "--results", str(tmp_path / "r"), *options.split()]) == Exit.USAGE
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "r").exists()


def test_predict_reads_the_network_and_tensorboard_its_figures(data: Path, tmp_path: Path, capsys: Any) -> None:
    from PIL import Image

    from common.data import load
    from mnist_nn.predict import answers_of
    from mnist_nn.predict import main as predict_main

    arguments = ["--data", str(data), "--results", str(tmp_path), "--epochs", "2", "--batch-size", "50", "--lr", "0.05"]
    assert main([*arguments, "--save-model", "--tensorboard", "--statistics"]) == Exit.DONE
    assert "network kubeflow: 431,080 parameters" in capsys.readouterr().out
    arrays = load("mnist", data)
    answers = answers_of(tmp_path / "model.pt", lambda form: arrays["test_images"].copy()).argmax(1)
    assert (answers == arrays["test_labels"]).mean() == pytest.approx(float(rows(tmp_path)[0]["accuracy"]))
    Image.fromarray(np.asarray(arrays["test_images"][0])).save(tmp_path / "digit.png")
    assert predict_main([str(tmp_path), str(tmp_path / "digit.png")]) == Exit.DONE
    assert "sure" in capsys.readouterr().out
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    board = events.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    logged = [line["loss"] for line in lines(tmp_path) if "step" in line]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx(logged)
    assert [event.step for event in board.Scalars("epoch/accuracy")] == [1, 2]
    assert {"learning_rate", "gradients/all", "activations/hidden/zeros"} <= set(board.Tags()["scalars"])


@pytest.mark.slow
def test_lines_of_several_hosts_say_whose_they_are(data: Path, tmp_path: Path) -> None:
    """The second process is on a host of its own name, which has another folder at the path of the results."""
    if os.geteuid():
        pytest.skip("namespaces of host names and mounts need root")
    results = tmp_path / "r"
    results.mkdir()
    script = 'hostname other; mount -t tmpfs none $0; exec "$@"'
    apart = ["unshare", "--uts", "--mount", "sh", "-c", script, str(results)]
    given = ("--data", data, "--results", results, "--epochs", "1", "--train-size", "100")
    given = (*given, "--print-steps", "--statistics")
    both = pods(given, given, wrappers=((), apart), stdout=subprocess.PIPE)
    out, said = both[0].communicate(timeout=PATIENCE)
    both[1].communicate(timeout=PATIENCE)
    assert both[0].returncode == Exit.DONE, said
    assert out and all(line.startswith(f"[{socket.gethostname()} 0] ") for line in out.splitlines()), out
    for host in (socket.gethostname(), "other"):
        assert f"] {host}: epoch 1  step 1  loss " in out, out
    assert len(rows(results)) == 1
