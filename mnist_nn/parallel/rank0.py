"""Rank 0's work beside training: it reads the data and the checkpoint, and writes all results."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from common.data import N_CLASSES, load
from mnist_nn.network import Network, save_model
from mnist_nn.parallel import checkpoint
from mnist_nn.parallel.checkpoint import Begun, Checkpoint
from mnist_nn.parallel.log import TABLE, Epoch, Log, append_row, summary
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.settings import Settings
from mnist_nn.tuning import HYPERPARAMETERS
from mpitune.errors import StorageError, UsageError
from mpitune.settings import result_settings
from mpitune.storage.provenance import versions
from mpitune.storage.table import read_table

Parameters = dict[str, float | int | str]


class Job(NamedTuple):
    """What rank 0 sends to all processes.

    Attributes:
        settings: with all numbers, see `Settings.complete`.
        params: of the network.
        arrays: uint8, of `common.data.load`.
        checkpoint: to continue from; None for a training from the start.
    """

    settings: Settings
    params: Parameters
    arrays: dict[str, np.ndarray]
    checkpoint: Checkpoint | None


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


def _check_steps(settings: Settings, n_images: int, n_processes: int) -> None:
    """Raise UsageError where this number of processes cannot take the steps that are asked for."""
    total = settings.batch_size * n_processes
    if settings.total_batch_size not in (None, total):
        raise UsageError(
            f"--total-batch-size {settings.total_batch_size} is not --batch-size {settings.batch_size} times "
            f"{n_processes} processes, which is {total}: give sizes that fit; gradients are not accumulated"
        )
    n_steps = settings.total_steps or settings.epochs * math.ceil(n_images / settings.images_per_step(n_processes))
    if settings.schedule != "constant" and settings.warmup_steps >= n_steps:
        raise UsageError(
            f"--warmup-steps {settings.warmup_steps} takes all {n_steps} steps, "
            f"so none is left for --schedule {settings.schedule}: give fewer"
        )


class Recorder:
    """Reads what a training begins with, and writes log, table, checkpoints and model.

    Its methods raise UsageError where that is the user's error, or where a folder cannot be written.
    """

    startup_seconds = rendezvous_seconds = 0.0

    def __init__(self, settings: Settings, rank_info: RankInfo, *, device: str, backend: str) -> None:
        arrays = load(settings.dataset, settings.data_folder, settings.train_size)
        params = best_of(settings.source) if settings.source else Parameters(network="kubeflow")
        self._form = *arrays["train_images"].shape[1:], settings.max_pixel
        try:
            with torch.device("meta"):
                n_weights = sum(weight.numel() for weight in Network(params, self._form[:2], N_CLASSES).parameters())
        except ValueError as error:
            raise UsageError(f"--dataset {settings.dataset} does not fit the network: {error}") from error
        if settings.tensorboard and find_spec("tensorboard") is None:
            raise UsageError("--tensorboard needs the package tensorboard: pip install tensorboard")
        settings = settings.complete(params)
        _check_steps(settings, len(arrays["train_labels"]), rank_info.size)
        self._fixed = {**result_settings(settings), "params": params}  # which a continuation must have, too
        if settings.schedule != "constant" and settings.total_steps is None:
            self._fixed["epochs"] = settings.epochs  # the rates of all steps depend on it
        known = checkpoint.read(settings.results, self._fixed) if settings.resume else None
        self.job, self._rank_info = Job(settings, params, arrays, known), rank_info
        self._layout = {"device": device, "backend": backend}
        self._n_known, begun, done = (len(known.epochs), known.begun, known.steps) if known else (0, Begun(), 0)
        self._images_known = begun.images
        print(f"network {params['network']}: {n_weights:,} parameters", flush=True)
        with self._writing("give another --results"):
            settings.results.mkdir(parents=True, exist_ok=True)
            if not settings.resume:
                with suppress(FileNotFoundError):  # that of an earlier training is kept, and no restart takes it
                    (settings.results / checkpoint.CHECKPOINT).replace(settings.results / checkpoint.BEFORE)
            board = settings.results / "tensorboard" if settings.tensorboard else None
            self.log = Log(settings.results / "log.jsonl", resume=bool(known), board=board, done=done)
        layout = {"nodes": rank_info.nodes, "processes": rank_info.size, **self._layout}
        self.log.write(run={**self._fixed, **layout, "parameters": n_weights}, versions=versions())

    @contextmanager
    def _writing(self, fix: str = "fix that, then --resume") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self.job.settings.results
            raise StorageError(f"{folder} cannot be written ({error.strerror}): {fix}") from error

    def keep(self, state: Checkpoint) -> None:
        """Keep the state; after an epoch say what it came to."""
        if not state.begun.images:
            self.log.epoch(state.epochs[-1])
        with self._writing():
            checkpoint.write(self.job.settings.results, self._fixed, state)

    def finish(self, state: Checkpoint) -> None:
        """The summary, the table's row where an epoch was trained, and the model where it is wanted."""
        epochs, folder = state.epochs, self.job.settings.results
        row = self._row(epochs)
        with self._writing():
            if len(epochs) > self._n_known:
                append_row(folder / TABLE, row)
            self.log.write(end=row)
            if self.job.settings.save_model:
                named = {name: weight.cpu().numpy() for name, weight in state.weights.items()}
                save_model(folder / "model.pt", self.job.params, self._form, named)
        print(summary(row, epochs[-1]), flush=True)

    def _row(self, epochs: Sequence[Epoch]) -> dict[str, Any]:
        """Seconds and speed are of this run, accuracy and loss of the whole training."""
        settings, last, here = self.job.settings, epochs[-1], epochs[self._n_known :]
        n_images = len(self.job.arrays["train_labels"])
        images = [n_images - self._images_known, *[n_images] * (len(here) - 1)][: len(here)]
        training_seconds = sum(n / epoch.images_per_second for n, epoch in zip(images, here, strict=True))
        figures = {
            "seconds": sum(epoch.seconds for epoch in here), "accuracy": last.accuracy, "loss": last.test_loss,
            "images_per_second": sum(images) / training_seconds if here else 0, "lr": settings.lr,
            "trained_epochs": sum(images) / n_images, "startup_seconds": self.startup_seconds,
            "rendezvous_seconds": self.rendezvous_seconds,
        }  # fmt: skip
        return {
            "nodes": self._rank_info.nodes, "devices": self._rank_info.size, **self._layout,
            "batch": settings.batch_size, "epochs": len(epochs), "network": self.job.params["network"],
            "dataset": settings.dataset, "strategy": settings.strategy, "amp": settings.amp or "",
            "train_size": n_images, "optimizer": settings.optimizer, "samples": settings.samples or "divided",
            **{name: f"{figure:.6g}" for name, figure in figures.items()},
        }  # fmt: skip
