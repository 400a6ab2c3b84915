"""The command line of a data-parallel training, and its options from a file. Imports no torch, as `--help` must not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data import DatasetSettings
from mpitune.errors import UsageError
from mpitune.settings import Parser, setting

PROG = "python -m mnist_nn.ddp"
BACKENDS, STRATEGIES = ("gloo", "nccl"), ("ddp", "fsdp")
OPTIMIZERS, SCHEDULES = ("sgd", "adamw"), ("constant", "cosine")
LEARNING_RATE, MOMENTUM = 0.01, 0.5
ADAMW_LEARNING_RATE, ADAMW_WEIGHT_DECAY = 0.001, 0.01


@dataclass(frozen=True, kw_only=True)
class Settings(DatasetSettings):
    """Train one network on many devices at once: data parallel."""

    batch_size: int = setting(64, "images per step and process", low=1)
    test_batch_size: int = setting(1000, "images evaluated at a time by each process", low=1, advanced=True)
    epochs: int = setting(10, "passes over the training images", low=1, changes_results=False)
    train_size: int | None = setting(None, "learn from the first N training images (default all)", low=1, metavar="N")
    optimizer: str = setting("sgd", "sgd with momentum, or adamw", choices=OPTIMIZERS)
    lr: float | None = setting(
        None, f"learning rate (default {LEARNING_RATE}, or that of the search; of adamw {ADAMW_LEARNING_RATE})", low=0
    )
    momentum: float | None = setting(
        None, f"of sgd (default {MOMENTUM}, or that of the search)", low=0, high=1, advanced=True
    )
    weight_decay: float | None = setting(
        None,
        f"pulls weights towards zero (default 0; of adamw {ADAMW_WEIGHT_DECAY})",
        low=0,
        metavar="W",
        advanced=True,
    )
    warmup_steps: int = setting(
        0, "steps in which the learning rate grows linearly from 0", low=0, metavar="N", advanced=True
    )
    schedule: str = setting(
        "constant", "the learning rate after the warm-up: constant, or cosine (down to 0 in the last epoch)",
        choices=SCHEDULES, advanced=True,
    )  # fmt: skip
    scale_lr: bool = setting(False, "multiply the learning rate by the number of processes", advanced=True)
    seed: int = setting(1, "seed of the initial weights and of the order of the images", low=0)
    network: str | None = setting(
        None, "kubeflow: two convolutions; search: the best network of --from, the default with it",
        choices=("kubeflow", "search"),
    )  # fmt: skip
    source: Path | None = setting(
        None, "results of an mnist_nn search", flag="--from", metavar="RESULTS", changes_results=False
    )
    strategy: str = setting("ddp", "ddp: each process has all weights; fsdp: each has a shard", choices=STRATEGIES)
    amp: str | None = setting(
        None,
        "compute in bf16, or in fp16 with a scaled loss; the weights stay float32",
        choices=("bf16", "fp16"),
        advanced=True,
    )
    compile: bool = setting(False, "compile the network first", changes_results=False, advanced=True)
    no_cuda: bool = setting(False, "use the CPU", changes_results=False)
    backend: str | None = setting(
        None, "library that exchanges data: gloo or nccl (default nccl on GPUs, else gloo)", choices=BACKENDS,
        changes_results=False, advanced=True,
    )  # fmt: skip
    nproc_per_node: int | None = setting(
        None, "processes on each node, where the launcher starts one (default one per GPU)", low=1, high=1024,
        changes_results=False, metavar="N", advanced=True,
    )  # fmt: skip
    allow_mixed_versions: bool = setting(
        False,
        "run although hosts have different versions of this package or of libraries",
        changes_results=False,
        advanced=True,
    )
    log_interval: int = setting(10, "steps between two losses in the log", low=1, changes_results=False, advanced=True)
    log_path: Path | None = setting(
        None, "JSON lines (default log.jsonl in the results)", changes_results=False, metavar="FILE", advanced=True
    )
    statistics: bool = setting(
        False,
        "with each loss log the norms of the gradients and how large activations are",
        changes_results=False,
        advanced=True,
    )
    tensorboard: bool = setting(
        False, "write the log for TensorBoard too, into the results", changes_results=False, advanced=True
    )
    save_model: bool = setting(
        False, "keep the trained network as model.pt in the results, for mnist_nn.predict", changes_results=False
    )
    resume: bool = setting(False, "continue after the last finished epoch in the results", changes_results=False)
    results: Path = setting(
        Path("results/mnist_nn_ddp"), "folder for checkpoint, log, table and figure", changes_results=False
    )

    config: Path | None = setting(
        None, 'options as a JSON object, {"batch-size": 128}; those given here win', changes_results=False,
        metavar="FILE", advanced=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.optimizer == "adamw" and self.momentum is not None:
            raise UsageError(f"--momentum {self.momentum} is for --optimizer sgd: leave it out")
        if self.network == "search" and self.source is None:
            raise UsageError("--network search needs --from RESULTS, the results folder of an mnist_nn search")
        if self.network == "kubeflow" and self.source is not None:
            raise UsageError("--network kubeflow and --from RESULTS name two networks: give one of them")


class ConfigUnreadable(UsageError):
    """There is no such file on this host. Others may have it."""


def parse_with_config(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What `parser`, which has an option --config, makes of the arguments and of the file that it names.

    The file is a JSON object of options by name, such as {"batch-size": 128, "resume": true}. An option on the command
    line wins. A value of null or false counts as not given.

    Raises:
        UsageError: the parser would not take it; the file is named.
    """
    given = parser.parse_args(arguments)
    if given.config is None:
        return given
    path: Path = given.config
    names = {name: action for action in parser._actions for name in action.option_strings}
    words: list[str] = []
    for name, value in _object(path).items():
        option = "--" + name.replace("_", "-")
        if option not in names or option in ("--config", "--help", "--help-all"):
            raise UsageError(f"--config {path}: there is no option {name} (see {parser.prog} --help)")
        words += _words(path, option, value, switch=names[option].nargs == 0)
    try:
        from_file = parser.parse_args(words)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from error
    for action in parser._actions:
        if action.dest in getattr(from_file, "given", ()) and action.dest not in getattr(given, "given", ()):
            setattr(given, action.dest, getattr(from_file, action.dest))
    return given


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigUnreadable(f"--config {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"--config {path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UsageError(f'--config {path} is not a JSON object: give one such as {{"batch-size": 128}}')
    return content


def _words(path: Path, option: str, value: Any, switch: bool) -> list[str]:
    """An entry as a command line would say it."""
    if value is None or value is False:
        return []
    if switch != (value is True) or isinstance(value, list | dict):
        fit = "true or false" if switch else "a number or a name"
        raise UsageError(f"--config {path}: {option[2:]} is {json.dumps(value)}: give {fit}")
    return [option] if switch else [f"{option}={value}"]
