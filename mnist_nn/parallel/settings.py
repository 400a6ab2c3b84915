"""The command line of a data-parallel training. Imports no torch, as `--help` must not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.data import DatasetSettings
from mpitune.errors import UsageError
from mpitune.settings import setting

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
