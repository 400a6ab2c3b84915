"""The command line of a data-parallel training, and its options from a file. Imports no torch, as `--help` must not."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data import DatasetSettings
from mnist_nn.parallel import deepspeed
from mnist_nn.shapes import Params
from mpitune.errors import UsageError
from mpitune.ranks.launch import Launch, launched
from mpitune.settings import Parser, setting

PROG = "python -m mnist_nn.ddp"
BACKENDS, STRATEGIES = ("gloo", "nccl"), ("ddp", "zero1")
OPTIMIZERS, SCHEDULES, WARMUPS = ("sgd", "adamw"), ("constant", "linear", "cosine"), ("linear", "log")
LEARNING_RATE, MOMENTUM = 0.01, 0.5
ADAMW_LEARNING_RATE, ADAMW_WEIGHT_DECAY, BETAS, EPS = 0.001, 0.01, (0.9, 0.999), 1e-8


@dataclass(frozen=True, kw_only=True)
class Settings(DatasetSettings):
    """Train one network on many devices at once, data parallel. On several machines: see docs/training.md."""

    batch_size: int = setting(64, "images per step and process", low=1)
    epochs: int = setting(10, "passes over the training images", low=1, changes_results=False)
    samples: str | None = setting(
        None, "all: each process takes all images (default: they are divided)", choices=("all",), advanced=True,
    )  # fmt: skip
    train_size: int | None = setting(None, "learn from the first N training images (default all)", low=1, metavar="N")
    optimizer: str = setting("sgd", "sgd with momentum, or adamw", choices=OPTIMIZERS)
    lr: float | None = setting(
        None, f"learning rate (default {LEARNING_RATE}, or that of the search; of adamw {ADAMW_LEARNING_RATE})", low=0
    )
    momentum: float | None = setting(
        None, f"of sgd (default {MOMENTUM}, or that of the search)", low=0, high=1, advanced=True
    )
    weight_decay: float | None = setting(
        None, f"pulls weights towards zero (default 0; of adamw {ADAMW_WEIGHT_DECAY})", low=0, metavar="W",
        advanced=True,
    )  # fmt: skip
    betas: tuple[float, ...] | None = setting(
        None, "of adamw: how slowly the two means of the gradients change (default {} {})".format(*BETAS), low=0,
        metavar="B", advanced=True,
    )  # fmt: skip
    eps: float | None = setting(None, f"of adamw, added to its divisor (default {EPS})", low=0, advanced=True)
    warmup_steps: int = setting(0, "steps in which the learning rate grows from 0", low=0, metavar="N", advanced=True)
    warmup_type: str | None = setting(
        None, "how it grows: linear (the default), or log (with the logarithm of the step)", choices=WARMUPS,
        advanced=True,
    )  # fmt: skip
    schedule: str = setting(
        "constant", "the learning rate after the warm-up: constant, or down to 0 along a line or a cosine",
        choices=SCHEDULES, advanced=True,
    )  # fmt: skip
    total_steps: int | None = setting(
        None, "the learning rate of --schedule is 0 after N steps (default: at the end of the last epoch)", low=1,
        metavar="N", advanced=True,
    )  # fmt: skip
    total_batch_size: int | None = setting(
        None, "refuse to train unless --batch-size times the number of processes is N", low=1, changes_results=False,
        metavar="N", advanced=True,
    )  # fmt: skip
    seed: int = setting(1, "seed of the initial weights and of the order of the images", low=0)
    network: str | None = setting(
        None, "kubeflow: two convolutions; search: the best network of --from, the default with it",
        choices=("kubeflow", "search"),
    )  # fmt: skip
    source: Path | None = setting(
        None, "results of an mnist_nn search", flag="--from", metavar="RESULTS", changes_results=False
    )
    strategy: str = setting(
        "ddp", "ddp: each process has the whole state of the optimizer; zero1: a shard of it", choices=STRATEGIES
    )
    amp: str | None = setting(
        None, "compute in bf16, or in fp16 with a scaled loss; the weights stay float32", choices=("bf16", "fp16"),
        advanced=True,
    )  # fmt: skip
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
        False, "run although hosts have different versions of this package or of libraries", changes_results=False,
        advanced=True,
    )  # fmt: skip
    log_interval: int = setting(10, "steps between two losses in the log", low=1, changes_results=False, advanced=True)
    print_steps: bool = setting(
        False, "print each logged loss, of every host; with --statistics how large activations are",
        changes_results=False, advanced=True,
    )  # fmt: skip
    checkpoint_steps: int | None = setting(
        None, "write a checkpoint every N steps, too (default: after each epoch)", low=1, changes_results=False,
        metavar="N", advanced=True,
    )  # fmt: skip
    statistics: bool = setting(
        False, "with each loss log the norms of the gradients and how large activations are", changes_results=False,
        advanced=True,
    )  # fmt: skip
    tensorboard: bool = setting(
        False, "write the log for TensorBoard too, into the results", changes_results=False, advanced=True
    )
    save_model: bool = setting(False, "keep the weights as model.pt in the results, for PyTorch", changes_results=False)
    resume: bool = setting(False, "continue from the checkpoint in the results", changes_results=False)
    results: Path = setting(Path("results/mnist_nn_ddp"), "folder for checkpoint, log and table", changes_results=False)

    config: Path | None = setting(
        None, 'options as a JSON object, {"batch-size": 128}, or DeepSpeed\'s; those given here win',
        changes_results=False, metavar="FILE", advanced=True,
    )  # fmt: skip

    def images_per_step(self, n_processes: int) -> int:
        """Images of the training set that one step takes: with samples "all" every process takes the same ones."""
        return self.batch_size * (1 if self.samples == "all" else n_processes)

    def complete(self, params: Params) -> Settings:
        """With numbers where none was given: what the search found for sgd, else the usual ones."""
        usual: dict[str, Any] = {
            "lr": params.get("learning_rate", LEARNING_RATE), "momentum": params.get("momentum", MOMENTUM),
            "weight_decay": 0.0,
        }  # fmt: skip
        if self.optimizer == "adamw":
            usual = {"lr": ADAMW_LEARNING_RATE, "weight_decay": ADAMW_WEIGHT_DECAY, "betas": BETAS, "eps": EPS}
        return dataclasses.replace(self, **{name: each for name, each in usual.items() if getattr(self, name) is None})

    def __post_init__(self) -> None:
        if self.optimizer == "adamw" and self.momentum is not None:
            raise UsageError(f"--momentum {self.momentum} is for --optimizer sgd: leave it out")
        if self.betas and not (len(self.betas) == 2 and max(self.betas) < 1):
            raise UsageError(f"--betas {' '.join(map(str, self.betas))}: give two numbers below 1")
        if self.optimizer == "sgd" and (self.betas or self.eps is not None):
            raise UsageError(f"--{'betas' if self.betas else 'eps'} is for --optimizer adamw: give that, too")
        if self.schedule == "constant" and self.total_steps is not None:
            raise UsageError(f"--total-steps {self.total_steps} is for --schedule linear or cosine: give one, too")
        if self.network == "search" and self.source is None:
            raise UsageError("--network search needs --from RESULTS, the results folder of an mnist_nn search")
        if self.network == "kubeflow" and self.source is not None:
            raise UsageError("--network kubeflow and --from RESULTS name two networks: give one of them")


class ConfigUnreadable(UsageError):
    """There is no such file on this host. Others may have it."""


def launch_info(environ: Mapping[str, str] = os.environ) -> Launch:
    """The launcher of this process, by the variables of torchrun and PyTorchJob, then by those of MPI and Slurm."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if rank.isdigit() and size.isdigit() and int(rank) < int(size):
        return Launch("torch", int(size), int(rank))
    return launched(environ)


def parse_with_config(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What `parser`, which has an option --config, makes of the arguments and of the file that it names.

    The file is a JSON object of options by name, such as {"batch-size": 128, "resume": true}, or a configuration of
    DeepSpeed. An option on the command line wins. A value of null or false counts as not given.

    Raises:
        UsageError: the parser would not take it; the file is named.
    """
    options_here = parser.parse_args(arguments)
    path: Path | None = options_here.config
    if path is None:
        return options_here
    try:
        options, unused = deepspeed.options_of(_object(path))
        words = []
        for name, value in options.items():
            option = "--" + name.replace("_", "-")
            if value is None or value is False:
                if option not in parser._option_string_actions:  # a switch of DeepSpeed's, it may be
                    unused.append(name)
            elif option in ("--config", "--help", "--help-all"):
                raise UsageError(f"{name} cannot be in a file")
            elif isinstance(value, list):
                words += [option, *map(str, value)]
            else:
                words.append(option if value is True else f"{option}={value}")
        from_file = parser.parse_args(words)
    except OSError as error:
        raise ConfigUnreadable(f"--config {path} cannot be read ({error.strerror})") from error
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from error
    if unused and launch_info().rank == 0:
        print(f"{parser.prog}: --config {path}: not needed here: {', '.join(unused)}", file=sys.stderr)
    from_file.given = set()  # so the command line may give it again
    return parser.parse_args(arguments, from_file)


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"this is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UsageError('this is not a JSON object: give one such as {"batch-size": 128}')
    return content
