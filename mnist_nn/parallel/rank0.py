"""What rank 0 does beside training: it reads the data and the checkpoint, and writes all there is to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from common.errors import StorageError, UsageError
from common.images import load
from common.settings import result_settings
from common.storage.provenance import versions
from mnist_nn.images import Frame
from mnist_nn.parallel import checkpoint
from mnist_nn.parallel.architecture import KUBEFLOW, Parameters, best_of
from mnist_nn.parallel.checkpoint import Checkpoint
from mnist_nn.parallel.log import TABLE, Epoch, Log, append_row, draw, summary
from mnist_nn.parallel.networks import build
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.settings import LEARNING_RATE, MOMENTUM, Settings
from mnist_nn.parallel.train import DistributedOptions
from mnist_nn.predict import SavedNetwork, save_model


class Job(NamedTuple):
    """What all processes are told. shapes: of the uint8 arrays they are about to get. epochs: already done."""

    params: Parameters
    options: DistributedOptions
    shapes: dict[str, tuple[int, ...]]
    epochs: list[Epoch]


class Recorder:
    """Reads all that the training needs. Raises UsageError for what the user can mend.

    Its methods return such an error instead, for it must be told to the other processes.
    """

    def __init__(self, settings: Settings, rank_info: RankInfo, device: str, backend: str) -> None:
        self.settings, self.rank_info, self.device, self.backend = settings, rank_info, device, backend
        self.arrays: dict[str, np.ndarray] = load(settings.dataset, settings.data_folder)
        params = best_of(settings.source) if settings.source else KUBEFLOW
        images = self.arrays["train_images"]
        try:
            build(params, (images.shape[1], images.shape[2]), n_classes=10, device="meta")
        except ValueError as error:
            raise UsageError(f"--dataset {settings.dataset} does not fit the network: {error}") from error
        rate = params.get("learning_rate", LEARNING_RATE) if settings.lr is None else settings.lr
        momentum = params.get("momentum", MOMENTUM) if settings.momentum is None else settings.momentum
        options = DistributedOptions(
            settings.batch_size, settings.test_batch_size, float(rate) * (rank_info.size if settings.scale_lr else 1),
            float(momentum), settings.seed, settings.strategy, settings.amp is not None, settings.compile,
            settings.log_interval, float(settings.max_pixel),
        )  # fmt: skip
        self._kept = {**result_settings(settings), "lr": float(rate), "momentum": float(momentum), "params": params}
        self.checkpoint = checkpoint.read(settings.results, self._kept) if settings.resume else None
        epochs = self.checkpoint.epochs if self.checkpoint else []
        self.job = Job(params, options, {name: array.shape for name, array in self.arrays.items()}, epochs)
        self.log = Log(settings.log_path or settings.results / "log.jsonl", resume=bool(epochs))
        try:
            settings.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{settings.results} cannot be written ({error.strerror}): give another --results"
            ) from error
        self.log.write(
            run={
                **self._kept,
                "nodes": rank_info.nodes,
                "processes": rank_info.size,
                "device": device,
                "backend": backend,
            },
            versions=versions(),
        )

    def epoch_done(self, state: Checkpoint) -> UsageError | None:
        """Say what the epoch came to, and keep the state."""
        self.log.epoch(state.epochs[-1])
        try:
            checkpoint.write(self.settings.results, self._kept, state)
        except UsageError as error:
            return error
        return None

    def finish(self, epochs: Sequence[Epoch], weights: Mapping[str, Tensor]) -> UsageError | None:
        """The summary, the table's row where an epoch was trained, the figure, and the model where it is wanted."""
        folder, row = self.settings.results, self._row(epochs)
        try:
            if len(epochs) > len(self.job.epochs):
                append_row(folder / TABLE, row)
            self.log.write(end=row)
            draw(folder, epochs)
            if self.settings.save_model:
                frame = Frame.of(self.arrays["train_images"], self.settings.max_pixel)
                named = {name: weight.numpy() for name, weight in weights.items()}
                save_model(folder / "model.pt", SavedNetwork(self.job.params, frame, named))
        except OSError as error:
            return StorageError(f"{folder} cannot be written ({error.strerror}): free it, then --resume")
        print(summary(row), flush=True)
        return None

    def _row(self, epochs: Sequence[Epoch]) -> dict[str, Any]:
        last, n_images = epochs[-1], len(self.arrays["train_labels"])
        training_seconds = sum(n_images / epoch.images_per_second for epoch in epochs)
        return {
            "nodes": self.rank_info.nodes,
            "devices": self.rank_info.size,
            "device": self.device,
            "batch": self.settings.batch_size,
            "epochs": len(epochs),
            "seconds": f"{sum(epoch.seconds for epoch in epochs):.6g}",
            "accuracy": f"{last.accuracy:.6g}",
            "loss": f"{last.test_loss:.6g}",
            "images_per_second": f"{n_images * len(epochs) / training_seconds:.6g}",
            "network": self.job.params["network"],
            "dataset": self.settings.dataset,
            "backend": self.backend,
            "strategy": self.settings.strategy,
            "lr": f"{self.job.options.learning_rate:.6g}",
            "amp": self.settings.amp or "",
        }
