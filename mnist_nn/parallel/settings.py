"""The command line of a data-parallel training. Imports no torch, as `--help` must not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError
from common.images import DatasetSettings
from common.settings import setting

PROG = "python -m mnist_nn.ddp"
BACKENDS, STRATEGIES = ("gloo", "nccl", "mpi"), ("ddp", "fsdp")
LEARNING_RATE, MOMENTUM = 0.01, 0.5


@dataclass(frozen=True, kw_only=True)
class Settings(DatasetSettings):
    """Train one network on many devices at once: data parallel."""

    batch_size: int = setting(64, "images per step and process", low=1)
    test_batch_size: int = setting(1000, "images evaluated at a time by each process", low=1)
    epochs: int = setting(10, "passes over the training images", low=1, changes_results=False)
    lr: float | None = setting(None, f"learning rate (default {LEARNING_RATE}, or that of the search)", low=0)
    momentum: float | None = setting(None, f"momentum (default {MOMENTUM}, or that of the search)", low=0, high=1)
    scale_lr: bool = setting(False, "multiply the learning rate by the number of processes")
    seed: int = setting(1, "seed of the initial weights and of the order of the images", low=0)
    network: str | None = setting(
        None, "kubeflow: two convolutions; search: the best network of --from, the default with it",
        choices=("kubeflow", "search"),
    )  # fmt: skip
    source: Path | None = setting(
        None, "results of an mnist_nn search", flag="--from", metavar="RESULTS", changes_results=False
    )
    strategy: str = setting("ddp", "ddp: each process has all weights; fsdp: each has a shard", choices=STRATEGIES)
    amp: str | None = setting(None, "compute in bf16, keep the weights in float32", choices=("bf16",))
    compile: bool = setting(False, "compile the network first", changes_results=False)
    no_cuda: bool = setting(False, "use the CPU", changes_results=False)
    backend: str | None = setting(
        None, "library that exchanges data: gloo, nccl, mpi (default nccl on GPUs, else gloo)", choices=BACKENDS,
        changes_results=False,
    )  # fmt: skip
    nproc_per_node: int | None = setting(
        None, "processes on each node, where the launcher starts one (default one per GPU)", low=1, high=1024,
        changes_results=False, metavar="N",
    )  # fmt: skip
    allow_mixed_versions: bool = setting(
        False, "run although hosts have different versions of this package or of libraries", changes_results=False
    )
    log_interval: int = setting(10, "steps between two losses in the log", low=1, changes_results=False)
    log_path: Path | None = setting(
        None, "JSON lines (default log.jsonl in the results)", changes_results=False, metavar="FILE"
    )
    save_model: bool = setting(False, "keep the trained network as model.pt in the results", changes_results=False)
    resume: bool = setting(False, "continue after the last finished epoch in the results", changes_results=False)
    results: Path = setting(
        Path("results/mnist_nn_ddp"), "folder for checkpoint, log, table and figure", changes_results=False
    )

    def __post_init__(self) -> None:
        if self.network == "search" and self.source is None:
            raise UsageError("--network search needs --from RESULTS, the results folder of an mnist_nn search")
        if self.network == "kubeflow" and self.source is not None:
            raise UsageError("--network kubeflow and --from RESULTS name two networks: give one of them")

    @property
    def max_pixel(self) -> int:
        """The value of a fully inked pixel of the data set."""
        return 16 if self.dataset == "digits" else 255
