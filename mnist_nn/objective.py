"""What a worker does with a trial: one fold of a parameter set, or the refit on a whole bootstrap sample."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from common.data import N_CLASSES
from common.devices import free_memory, workers_here
from common.experiment import Data
from common.trial import Result, Trial, seed_of
from mnist_nn import training
from mnist_nn.bootstrap import bootstrap_sample
from mnist_nn.keys import EPOCH_LIMIT, stream_of

if TYPE_CHECKING:
    from mnist_nn.experiment import Bagging

WEIGHT = "weight:"  # begins the name of an array that is a weight of the network


class BaggingObjective:
    """Evaluates one trial: a network is trained from the seed of the trial's key and evaluated.

    With parameter `fold`, values `loss` (mean cross-entropy per validation image, inf when training
    diverged), `epochs` and `train_loss` (of the last epoch).
    Without, values `train_error`, `test_error` (fractions; of a network that diverged, inf) and `epochs`, arrays
    `probabilities` float32 (n_test, n_classes) and `extra_probabilities` float32 (n_extra, n_classes),
    and the weights when they are to be saved. A network that diverged has no arrays.
    A network that this worker has no memory for is not begun: its result is an error with the numbers.

    The data is put on the device once, and the bootstrap sample last used is kept there. Neither
    that nor the other trials of a batch have an influence on a result.
    """

    def __init__(self, settings: Bagging, device: str, data: Data) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.data = {name: self._on_device(array) for name, array in data.items()}
        self._sample = lru_cache(maxsize=1)(self._gathered)
        self._share = free_memory() // workers_here()  # of the node's memory, before any network takes some

    def __call__(self, trial: Trial) -> Result:
        needed, free = self._needed_bytes(trial), self._free_bytes()
        if needed > free:
            return Result(
                trial.key,
                error=f"its network takes {needed / 1e9:.3g} GB and this worker has {free / 1e9:.3g} GB: use a device "
                "with more memory, fewer workers, or a smaller --max-conv-layer or --max-hidden-layer",
            )
        images, labels, folds = self._sample(int(trial.params["bootstrap"]))
        if "fold" not in trial.params:
            return self._refit(trial, images, labels)
        held_out = folds[int(trial.params["fold"])]
        trained = self._train(trial, _without(images, held_out), _without(labels, held_out))
        loss = math.inf
        if not trained.diverged:
            loss = training.cross_entropy(trained.weights, images[held_out], labels[held_out], white=self._white)
        return Result(trial.key, {"loss": loss, "epochs": float(trained.epochs), "train_loss": trained.losses[-1]})

    def _refit(self, trial: Trial, images: torch.Tensor, labels: torch.Tensor) -> Result:
        trained = self._train(trial, images, labels)
        test, extra, train = (
            self._probabilities(trained, each) for each in (self.data["test_images"], self.data["extra_images"], images)
        )
        values = {"train_error": math.inf, "test_error": math.inf, "epochs": float(trained.epochs)}
        if trained.diverged or not all(bool(each.isfinite().all()) for each in (test, extra, train)):
            return Result(trial.key, values)
        values["train_error"], values["test_error"] = _error(train, labels), _error(test, self.data["test_labels"])
        arrays = {"probabilities": test.cpu().numpy(), "extra_probabilities": extra.cpu().numpy()}
        if self.settings.save_models:
            arrays.update({WEIGHT + name: weight.cpu().numpy() for name, weight in trained.weights.items()})
        return Result(trial.key, values, arrays)

    def _needed_bytes(self, trial: Trial) -> int:
        return training.memory_bytes(
            trial.params,
            self.data["train_images"].shape[1:],
            N_CLASSES,
            device=self.device,
            batch_size=self.settings.batch_size,
            step=self.settings.step,
        )

    def _free_bytes(self) -> int:
        """Of the device: its share of the node's memory, or what CUDA has left and PyTorch holds in reserve."""
        if self.device.type == "cpu":
            return self._share
        reserved = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + reserved

    @property
    def _white(self) -> float:
        return float(self.settings.max_pixel)

    def _train(self, trial: Trial, images: torch.Tensor, labels: torch.Tensor) -> training.Trained:
        return training.train(
            trial.params,
            images,
            labels,
            n_classes=N_CLASSES,
            seed=seed_of(self.settings.seed, stream_of(trial)),
            device=self.device,
            epochs=int(trial.params.get(EPOCH_LIMIT, self.settings.epochs)),
            batch_size=self.settings.batch_size,
            tolerance=self.settings.tolerance,
            step=self.settings.step,
            white=self._white,
        )

    def _probabilities(self, trained: training.Trained, images: torch.Tensor) -> torch.Tensor:
        return training.probabilities(trained.weights, images, white=self._white)

    def _gathered(self, bootstrap: int) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
        """Images, labels and folds of a bootstrap sample, on the device."""
        labels = self.data["train_labels"]
        sample = bootstrap_sample(len(labels), self.settings.folds, seed_of(self.settings.seed, f"b{bootstrap}"))
        indices = torch.from_numpy(sample.indices).to(self.device)
        return self.data["train_images"][indices], labels[indices], sample.folds

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        """Images stay uint8; labels, the arrays of one axis, become int64."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The node's copy is read-only, and nothing here writes to it.
            tensor = torch.from_numpy(array)
        return tensor.to(self.device, torch.int64 if array.ndim == 1 else torch.uint8)


def _without(tensor: torch.Tensor, part: slice) -> torch.Tensor:
    return torch.cat([tensor[: part.start], tensor[part.stop :]])


def _error(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of images whose most probable class is not their label."""
    return float((probabilities.argmax(dim=1) != labels).double().mean())
