"""Data-parallel training: it computes what one process would, continues, and takes the best network of a search."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from common.data import load
from mnist_nn.ddp import main
from mnist_nn.net import Images
from mnist_nn.network import Network
from mnist_nn.parallel.log import Epoch, summary
from mnist_nn.parallel.rank0 import best_of
from mnist_nn.parallel.train import order_of
from mpitune.errors import Exit, UsageError
from mpitune.storage.table import write_table
from tests.helpers import ROOT
from tests.mnist_nn.trainings import losses, rows

pytestmark = pytest.mark.usefixtures("one_thread_everywhere")

# The same steps, whatever the number of processes


@pytest.mark.slow
def test_three_processes_take_the_steps_of_plain_pytorch(program: Any, data: Path, tmp_path: Path) -> None:
    """Global batches of 48 of 146 images: of the last two images one process gets none."""
    options = "--train-size 146 --batch-size 16 --epochs 2 --lr 0.02 --seed 3 --nproc-per-node 3"
    program("-m", "mnist_nn.ddp", "--data", data, "--results", tmp_path, *options.split(), "--save-model")
    arrays = load("mnist", data, 146)
    train, test = (Images(torch.tensor(arrays[f"{part}_images"])).normalised() for part in ("train", "test"))
    labels, truth = (torch.tensor(arrays[f"{part}_labels"]).long() for part in ("train", "test"))
    torch.manual_seed(3)
    network = Network({"network": "kubeflow"}, (28, 28), 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.5)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for found in [line for line in log if "test_loss" in line and "epoch" in line]:
        total = 0.0
        for batch in order_of(146, 3, found["epoch"]).split(48):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(train[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        with torch.no_grad():
            logits = network(test)
        right = float((logits.argmax(1) == truth).double().mean())
        expected = total / 146, float(F.cross_entropy(logits, truth)), right
        assert [found[name] for name in ("train_loss", "test_loss", "accuracy")] == pytest.approx(expected, rel=1e-4)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=2e-5 * float(weight.abs().max()), msg=name)


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with batches of 128."""
    folder = tmp_path_factory.mktemp("alone")
    command = ["--data", str(data), "--results", str(folder), "--epochs", "2", "--batch-size", "128", "--save-model"]
    assert main(command) == Exit.DONE
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("ddp alone")
def test_two_processes_that_take_all_images_repeat_the_steps_of_one(
    program: Any, data: Path, alone: Path, tmp_path: Path
) -> None:
    command = ("-m", "mnist_nn.ddp", "--data", data, "--results", tmp_path, "--epochs", "2", "--batch-size", "128")
    done = program(*command, "--samples", "all", "--nproc-per-node", "2", "--print-steps")
    steps = [
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines() if '"step"' in line]
        for folder in (alone, tmp_path)
    ]
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-4)
    assert steps[1] == pytest.approx(steps[0], rel=1e-4) and f"  loss {steps[1][-1]:.4f}  " in done.stdout
    assert rows(tmp_path)[0]["samples"] == "all"


# What is kept


def test_a_resumed_training_is_the_uninterrupted_one(data: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["--data", str(data), "--train-size", "100", "--batch-size", "20", "--save-model", "--results"]
    assert main([*command, str(tmp_path / "a"), "--epochs", "3"]) == Exit.DONE
    assert main([*command, str(tmp_path / "b"), "--epochs", "1"]) == Exit.DONE
    assert main([*command, str(tmp_path / "b"), "--epochs", "3", "--resume"]) == Exit.DONE
    one, two = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in "ab")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert main([*command, str(tmp_path / "c"), "--epochs", "1", "--seed", "2"]) == Exit.DONE
    assert losses(tmp_path / "c")[0] != losses(tmp_path / "a")[0]
    table = rows(tmp_path / "b")
    assert [(row["epochs"], row["trained_epochs"]) for row in table] == [("1", "1"), ("3", "2")]
    assert "batch 20 each, 3 epochs (2 of them in this run): " in capsys.readouterr().out
    row, last = {**table[1], "nodes": 1, "devices": 1, "epochs": 3, "loss": "1.41875"}, Epoch(3, 1, 1.418751, 1, 1, 1)
    assert summary(row, last).endswith("loss 1.4188"), "it is rounded once"
    log = [json.loads(line) for line in (tmp_path / "b" / "log.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in log if "accuracy" in line and "epoch" in line]
    assert [float(row["seconds"]) for row in table] == pytest.approx([seconds[0], sum(seconds[1:])], rel=1e-4)
    for row in table:
        assert (row["train_size"], row["optimizer"]) == ("100", "sgd")
        assert 0 < float(row["rendezvous_seconds"]) < float(row["startup_seconds"])
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.xdist_group("ddp alone")
def test_a_saved_network_is_a_state_of_a_module_of_ones_own(data: Path, alone: Path) -> None:
    """The module of docs/training.md, which knows nothing of this package."""
    text = (ROOT / "docs" / "training.md").read_text()
    (block,) = re.findall(r"```python\n(.*?model\.pt.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block.replace("results/mnist_nn_ddp", str(alone)), names)
    arrays = load("mnist", data)
    with torch.no_grad():
        logits = names["network"](torch.tensor((arrays["test_images"][:, None] - 127.5) / 73.61).float())
    loss = float(F.cross_entropy(logits, torch.tensor(arrays["test_labels"]).long()))
    assert loss == pytest.approx(float(rows(alone)[0]["loss"]), rel=1e-4)


def test_what_cannot_be_resumed_is_refused(data: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["--data", str(data), "--train-size", "50", "--results", str(tmp_path), "--epochs", "1"]
    assert main(command) == Exit.DONE
    assert main([*command, "--resume", "--batch-size", "32"]) == Exit.USAGE
    assert "has batch-size = 64, this command 32" in capsys.readouterr().err
    scheduled = [*command, "--schedule", "cosine"]  # the rates of all steps depend on how many there are
    assert main(scheduled) == Exit.DONE and main([*scheduled[:-3], "2", *scheduled[-2:], "--resume"]) == Exit.USAGE
    assert "has epochs = 1, this command 2" in capsys.readouterr().err
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert main([*command, "--resume"]) == Exit.USAGE
    assert capsys.readouterr().err.endswith("is not a checkpoint of this program: train again, without --resume\n")


def test_the_best_network_of_a_search_is_trained(tmp_path: Path) -> None:
    """A sample without a network has NaN for its loss."""
    rows_ = [
        {"cv_loss": loss, "n_conv_layer": n, "n_hidden_layer": 8, "kernel_size": 3}
        for n, loss in enumerate((0.9, 0.55, float("nan"), float("inf")), start=3)
    ]
    write_table(tmp_path / "search" / "results.csv", [{**row, "learning_rate": 0.02, "momentum": 0.1} for row in rows_])
    command = ["--from", str(tmp_path / "search"), *"--dataset digits --train-size 500 --batch-size 16".split()]
    assert main([*command, "--epochs", "2", "--save-model", "--results", str(tmp_path / "r")]) == Exit.DONE
    params = json.loads((tmp_path / "r" / "model.json").read_text())["parameters"]
    assert params["n_conv_layer"] == 4 and params["learning_rate"] == 0.02
    (row,) = rows(tmp_path / "r")
    assert row["network"] == "search" and row["lr"] == "0.02" and float(row["accuracy"]) > 0.2
    write_table(tmp_path / "search" / "results.csv", rows_[2:])
    with pytest.raises(UsageError, match="holds no network of an ended search"):
        best_of(tmp_path / "search")
