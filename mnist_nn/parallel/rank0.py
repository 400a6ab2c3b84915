"""Rank 0's work beside training: it reads the data and the checkpoint, and writes all results."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.data import N_CLASSES, load
from mnist_nn.parallel import checkpoint
from mnist_nn.parallel.checkpoint import Checkpoint
from mnist_nn.parallel.log import TABLE, Epoch, Log, append_row, draw, summary
from mnist_nn.parallel.optimizer import Rule
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.settings import (
    ADAMW_LEARNING_RATE,
    ADAMW_WEIGHT_DECAY,
    BETAS,
    EPS,
    LEARNING_RATE,
    MOMENTUM,
    Settings,
)
from mnist_nn.predict import ONE_MODEL, save_model
from mnist_nn.shapes import weights_of
from mnist_nn.tuning import HYPERPARAMETERS
from mpitune.errors import StorageError, UsageError
from mpitune.settings import result_settings
from mpitune.storage.provenance import versions
from mpitune.storage.table import read_table

Parameters = dict[str, float | int | str]
KUBEFLOW: Parameters = {"network": "kubeflow"}


class Job(NamedTuple):
    """The job that rank 0 sends to all processes.

    Attributes:
        shapes: of the uint8 arrays that follow.
        checkpoint: to continue from; None for a training from the start.
    """

    settings: Settings
    params: Parameters
    rule: Rule
    shapes: dict[str, tuple[int, ...]]
    checkpoint: Checkpoint | None


class Inputs(NamedTuple):
    """Data and checkpoint that rank 0 has read; `fixed` are the settings that a continuation must share."""

    arrays: dict[str, np.ndarray]
    fixed: dict[str, Any]
    n_weights: int
    job: Job


def read_inputs(settings: Settings, n_processes: int) -> Inputs:
    """Read the data, the network's parameters and the checkpoint. Raises UsageError for the user's errors."""
    arrays = load(settings.dataset, settings.data_folder, settings.train_size)
    params = best_of(settings.source) if settings.source else KUBEFLOW
    _, height, width = arrays["train_images"].shape
    try:
        n_weights = weights_of(params, (height, width), N_CLASSES)
    except ValueError as error:
        raise UsageError(f"--dataset {settings.dataset} does not fit the network: {error}") from error
    total = settings.batch_size * n_processes
    if settings.total_batch_size not in (None, total):
        raise UsageError(
            f"--total-batch-size {settings.total_batch_size} is not --batch-size {settings.batch_size} times "
            f"{n_processes} processes, which is {total}: give sizes that fit; gradients are not accumulated"
        )
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise UsageError("--tensorboard needs the package tensorboard: pip install tensorboard")
    rule = _rule(settings, params)
    fixed = {
        **result_settings(settings), "lr": rule.learning_rate, "momentum": rule.momentum,
        "weight_decay": rule.weight_decay, "params": params,
    }  # fmt: skip
    if settings.schedule != "constant":
        n_steps = settings.total_steps
        if n_steps is None:
            fixed["epochs"] = settings.epochs  # the rates of all steps depend on it
            n_steps = settings.epochs * math.ceil(len(arrays["train_labels"]) / settings.images_per_step(n_processes))
        if settings.warmup_steps >= n_steps:
            raise UsageError(
                f"--warmup-steps {settings.warmup_steps} takes all {n_steps} steps, "
                f"so none is left for --schedule {settings.schedule}: give fewer"
            )
    known = checkpoint.read(settings.results, fixed) if settings.resume else None
    shapes = {name: array.shape for name, array in arrays.items()}
    if settings.scale_lr:
        rule = rule._replace(learning_rate=rule.learning_rate * n_processes)
    return Inputs(arrays, fixed, n_weights, Job(settings, params, rule, shapes, known))


def best_of(folder: Path) -> Parameters:
    """The parameters of the network of a search's ensemble that has the least cross-validation loss. Raises UsageError.

    They are those of its results.csv, which is there once the search has ended.
    """
    try:
        with open(folder / "results.csv", newline="", encoding="utf-8") as file:
            rows = [row for row in read_table(file) if math.isfinite(float(row["cv_loss"]))]
        best = min(rows, key=lambda row: float(row["cv_loss"]))
        sizes = {name: int(best[name]) for name in HYPERPARAMETERS[:3]}
        return {"network": "search", **sizes, **{name: float(best[name]) for name in HYPERPARAMETERS[3:]}}
    except (OSError, LookupError, TypeError, ValueError, csv.Error) as error:
        raise UsageError(f"{folder} holds no network of an ended search of mnist_nn (results.csv)") from error


def _rule(settings: Settings, params: Parameters) -> Rule:
    """The update of the weights in one process: what was given, else what the search found for sgd, else defaults."""
    adamw = settings.optimizer == "adamw"
    rate = ADAMW_LEARNING_RATE if adamw else float(params.get("learning_rate", LEARNING_RATE))
    momentum = 0.0 if adamw else float(params.get("momentum", MOMENTUM))
    decay = ADAMW_WEIGHT_DECAY if adamw else 0.0
    return Rule(
        name=settings.optimizer,
        learning_rate=rate if settings.lr is None else settings.lr,
        momentum=momentum if settings.momentum is None else settings.momentum,
        weight_decay=decay if settings.weight_decay is None else settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        schedule=settings.schedule,
        betas=(settings.betas[0], settings.betas[1]) if settings.betas else BETAS,
        eps=EPS if settings.eps is None else settings.eps,
        warmup_type=settings.warmup_type or "linear",
        total_steps=settings.total_steps,
    )


class Recorder:
    """Writes log, table, figure, checkpoints and model. Its constructor raises UsageError where it cannot.

    Its methods return such an error instead, since the other processes must hear of it.
    """

    def __init__(self, settings: Settings, rank_info: RankInfo, *, device: str, backend: str, inputs: Inputs) -> None:
        self.settings, self.rank_info, self.device, self.backend = settings, rank_info, device, backend
        self.inputs, self.job = inputs, inputs.job
        board = settings.results / "tensorboard" if settings.tensorboard else None
        known = self.job.checkpoint
        self._n_known = len(known.epochs) if known else 0
        self._images_known = known.begun.images if known else 0
        self.startup_seconds = self.rendezvous_seconds = 0.0
        self.log = Log(
            settings.log_path or settings.results / "log.jsonl", resume=known is not None, board=board,
            done=known.steps if known else 0,
        )  # fmt: skip
        print(f"network {self.job.params['network']}: {inputs.n_weights:,} parameters", flush=True)
        try:
            settings.results.mkdir(parents=True, exist_ok=True)
            if not settings.resume:
                checkpoint.set_aside(settings.results)
        except OSError as error:
            raise StorageError(
                f"{settings.results} cannot be written ({error.strerror}): give another --results"
            ) from error
        layout = {"nodes": rank_info.nodes, "processes": rank_info.size, "device": device, "backend": backend}
        self.log.write(run={**inputs.fixed, **layout, "parameters": inputs.n_weights}, versions=versions())

    def keep(self, state: Checkpoint) -> UsageError | None:
        """Keep the state; after an epoch say what it came to."""
        if not state.begun.images:
            self.log.epoch(state.epochs[-1])
        try:
            checkpoint.write(self.settings.results, self.inputs.fixed, state)
        except UsageError as error:
            return error
        return None

    def finish(self, state: Checkpoint) -> UsageError | None:
        """The summary, the table's row where an epoch was trained, the figure, and the model where it is wanted."""
        epochs = state.epochs
        folder, row = self.settings.results, self._row(epochs)
        try:
            if len(epochs) > self._n_known:
                append_row(folder / TABLE, row)
            self.log.write(end=row)
            draw(folder, epochs)
            if self.settings.save_model:
                height, width = self.inputs.arrays["train_images"].shape[1:]
                named = {name: weight.cpu().numpy() for name, weight in state.weights.items()}
                save_model(folder / ONE_MODEL, self.job.params, (height, width, self.settings.max_pixel), named)
        except OSError as error:
            return StorageError(f"{folder} cannot be written ({error.strerror}): fix that, then --resume")
        print(summary(row), flush=True)
        return None

    def _row(self, epochs: Sequence[Epoch]) -> dict[str, Any]:
        """Seconds and speed are of this run, accuracy and loss of the whole training."""
        last, n_images, here = epochs[-1], len(self.inputs.arrays["train_labels"]), epochs[self._n_known :]
        images = [n_images - self._images_known, *[n_images] * (len(here) - 1)][: len(here)]
        training_seconds = sum(n / epoch.images_per_second for n, epoch in zip(images, here, strict=True))
        return {
            "nodes": self.rank_info.nodes,
            "devices": self.rank_info.size,
            "device": self.device,
            "batch": self.settings.batch_size,
            "epochs": len(epochs),
            "seconds": f"{sum(epoch.seconds for epoch in here):.6g}",
            "accuracy": f"{last.accuracy:.6g}",
            "loss": f"{last.test_loss:.6g}",
            "images_per_second": f"{sum(images) / training_seconds if here else 0:.6g}",
            "network": self.job.params["network"],
            "dataset": self.settings.dataset,
            "backend": self.backend,
            "strategy": self.settings.strategy,
            "lr": f"{self.job.rule.learning_rate:.6g}",
            "amp": self.settings.amp or "",
            "train_size": n_images,
            "optimizer": self.settings.optimizer,
            "samples": self.settings.samples or "divided",
            "trained_epochs": f"{sum(images) / n_images:.6g}",
            "startup_seconds": f"{self.startup_seconds:.6g}",
            "rendezvous_seconds": f"{self.rendezvous_seconds:.6g}",
        }
