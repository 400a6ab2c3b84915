"""The objective of a worker: one fold of a parameter set, or the refit on a whole bootstrap sample."""

from __future__ import annotations

import math
import resource
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from common.data import N_CLASSES
from mnist_nn import training
from mnist_nn.bootstrap import bootstrap_sample
from mnist_nn.keys import LOSSES, WEIGHT, sample_of, stream_of
from mnist_nn.net import Images
from mnist_nn.steps.graphed import Prepared
from mnist_nn.steps.manual import warm_up
from mpitune.devices.choose import free_memory
from mpitune.experiment import WorkerContext
from mpitune.trial import Batch, Evaluation, NoRoom, Trial, seed_of

if TYPE_CHECKING:
    from mnist_nn.experiment import Bagging


class BaggingObjective:
    """Evaluates the trials of a batch: a network is trained from the seed of the trial's key and evaluated.

    With parameter `fold`, values `loss` (mean cross-entropy per validation image, inf when training
    diverged), `epochs` and `train_loss` (of the last epoch).
    Without, values `train_error`, `test_error` (fractions; of a network that diverged, inf) and `epochs`, arrays
    `probabilities` float32 (n_test, n_classes), `extra_probabilities` float32 (1, n_classes), and `losses` float64
    (epochs,), see `Trained`; and the weights when they are to be saved. A network that diverged has no arrays.
    A network that is too large for the worker's memory is not trained: the answer is `NoRoom`, with the numbers.

    The data is put on the device once, and the bootstrap sample last used is kept there, and on a GPU the training step
    last used. A result does not depend on
    that, or on the other trials of a batch.
    """

    def __init__(self, options: Bagging, worker: WorkerContext) -> None:
        self.options, self._report_step = options, worker.report_step
        self.device = torch.device(worker.device)
        there = {name: on_device(array, self.device) for name, array in worker.data.items()}
        self.labels = {name: tensor for name, tensor in there.items() if tensor.ndim == 1}
        self.images = {
            name: Images(tensor, float(options.max_pixel)) for name, tensor in there.items() if tensor.ndim == 3
        }
        if self.device.type == "cpu":
            worker.report_step(0, unit="compiling")
            warm_up(self.images["train_images"].shape, N_CLASSES, options.batch_size)
        self._sample = lru_cache(maxsize=1)(self._gathered)
        self._prepared = Prepared()
        self._memory, self._n_workers = _memory_of(self.device, worker), worker.n_workers

    def __call__(self, batch: Batch) -> Iterator[Evaluation | NoRoom]:
        for trial in batch:
            needed = self.options.memory_bytes(trial)
            answer = self._evaluated(trial) if needed <= self._memory else self._refused(trial, needed)
            if self.device.type == "cuda":
                self._prepared.make_room(self.device)
            yield answer

    def _evaluated(self, trial: Trial) -> Evaluation:
        images, labels, folds = self._sample(sample_of(trial))
        if trial.segment.fold is None:
            return self._refit(trial, images, labels)
        held_out = folds[trial.segment.fold]
        others = torch.cat([labels[: held_out.start], labels[held_out.stop :]])
        trained, loss = self._train(trial, images.without(held_out), others), math.inf
        if not trained.diverged:
            loss = training.cross_entropy(trained.weights, images[held_out], labels[held_out])
        return Evaluation(trial.key, {"loss": loss, "epochs": float(trained.epochs), "train_loss": trained.losses[-1]})

    def _refit(self, trial: Trial, images: Images, labels: torch.Tensor) -> Evaluation:
        trained = self._train(trial, images, labels)
        sets = {"train": (images, labels), "test": (self.images["test_images"], self.labels["test_labels"])}
        values = {f"{name}_error": math.inf for name in sets} | {"epochs": float(trained.epochs)}
        if trained.diverged:
            return Evaluation(trial.key, values)
        answers = {name: training.probabilities(trained.weights, each) for name, (each, _) in sets.items()}
        extra = training.probabilities(trained.weights, self.images["extra_images"])
        if not all(bool(each.isfinite().all()) for each in (*answers.values(), extra)):
            return Evaluation(trial.key, values)
        values.update({f"{name}_error": _error(answers[name], truth) for name, (_, truth) in sets.items()})
        arrays = {"probabilities": answers["test"].cpu().numpy(), "extra_probabilities": extra.cpu().numpy()}
        arrays[LOSSES] = np.array(trained.losses)
        if self.options.save_models:
            arrays.update({WEIGHT + name: weight.cpu().numpy() for name, weight in trained.weights.items()})
        return Evaluation(trial.key, values, arrays)

    def _refused(self, trial: Trial, needed: int) -> NoRoom:
        has, fit = self._memory, self._memory * self._n_workers // needed if self.device.type == "cpu" else 0
        anew = "to end on this machine, begin anew with a smaller --max-channels or --max-hidden-layer"
        fix = f"give --workers {fit}" if fit else f"{anew}, in another --results folder"
        sizes = f"its network takes {needed / 1e9:.3g} GB and this worker has {has / 1e9:.3g} GB"
        return NoRoom(trial.key, f"{sizes}: {fix}")

    def _train(self, trial: Trial, images: Images, labels: torch.Tensor) -> training.Trained:
        options = self.options
        return training.train(
            trial.params,
            images,
            labels,
            n_classes=N_CLASSES,
            seed=seed_of(options.seed, stream_of(trial)),
            device=self.device,
            epochs=options.epochs,
            batch_size=options.batch_size,
            tolerance=options.tolerance,
            prepared=self._prepared,
            on_progress=lambda done: self._report_step(done, options.epochs, "epoch"),
        )

    def _gathered(self, sample: int) -> tuple[Images, torch.Tensor, list[slice]]:
        """Images, labels and folds of a bootstrap sample, on the device."""
        labels = self.labels["train_labels"]
        drawn, folds = bootstrap_sample(len(labels), self.options.folds, seed_of(self.options.seed, f"b{sample}"))
        indices = torch.from_numpy(drawn).to(self.device)
        return self.images["train_images"][indices], labels[indices], folds


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array of the data set there. Images stay uint8; labels, the arrays of one axis, become int64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The node's copy is read-only, and nothing here writes to it.
        tensor = torch.from_numpy(array)
    return tensor.to(device, torch.int64 if array.ndim == 1 else torch.uint8)


def _memory_of(device: torch.device, worker: WorkerContext) -> int:
    """Bytes that a training may take: all of a GPU, or an equal part of what is free for each CPU worker of a node."""
    if device.type != "cpu":
        return torch.cuda.mem_get_info(device)[1]
    if not worker.memory:
        return free_memory() // worker.n_workers
    return max(0, worker.memory - (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))


def _error(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of images whose most probable class is not their label."""
    return float((probabilities.argmax(dim=1) != labels).double().mean())
