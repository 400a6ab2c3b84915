"""The objective of a worker: one fold of a parameter set, or the refit on a whole bootstrap sample."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from common.data import N_CLASSES
from common.images import outer_split
from mnist_nn import training
from mnist_nn.bootstrap import bootstrap_sample, out_of_bag
from mnist_nn.keys import EPOCH_LIMIT, LOSSES, WEIGHT, Sample, stream_of
from mnist_nn.memory.estimate import memory_bytes
from mnist_nn.memory.reservation import reservations
from mnist_nn.net import Images
from mnist_nn.shapes import is_small
from mnist_nn.steps.choose import Rates, rates_for, step_for, warm_up
from mnist_nn.trust import WAY, WAYS, warn_untrusted
from mpitune.devices.selfcheck import gpu_key
from mpitune.experiment import BEGINNINGS, WorkerContext
from mpitune.trial import Batch, Evaluation, NoRoom, Trial, seed_of


@dataclass(frozen=True)
class TrainingPlan:
    """How the network of a trial is trained, decided once.

    Attributes:
        step: name of its training step.
        grouped: whether it is trained together with those of the other folds, which depends on the network alone.
        n_bytes: of the device's memory that this takes.
    """

    step: str
    grouped: bool
    n_bytes: int


@dataclass(frozen=True)
class TrainingOptions:
    """Settings of all trainings of a study; the names are those of `mnist_nn.experiment.Bagging`."""

    seed: int
    folds: int
    epochs: int
    batch_size: int
    tolerance: float
    step: str
    max_pixel: int
    save_models: bool


class BaggingObjective:
    """Evaluates the trials of a batch: a network is trained from the seed of the trial's key and evaluated.

    With parameter `fold`, values `loss` (mean cross-entropy per validation image, inf when training
    diverged), `epochs` and `train_loss` (of the last epoch).
    Without, values `train_error`, `test_error`, `oob_error` (fractions; of a network that diverged, inf) and `epochs`,
    arrays `probabilities` float32 (n_test, n_classes), `extra_probabilities` float32 (n_extra, n_classes),
    `oob_probabilities` float32 (n_oob, n_classes), of the training images out of the bag, ascending, and `losses`
    float64 (epochs,), see `Trained`; and the weights when they are to be saved. A network that diverged has no arrays.
    A refit of a nested search has `outer_error` and `outer_probabilities` float32 (n_outer, n_classes) instead.
    On a GPU also `way`, how its steps were computed: a position in `mnist_nn.trust.WAYS`.
    A network for which there is too little memory is not trained: the answer is `NoRoom`, with the numbers.

    Folds of a small network are trained together if its step is "grouped". Then there is a place for every fold, even
    if it is not asked for.

    The data is put on the device once, and the bootstrap sample last used is kept there. A result does not depend on
    that, or on the other trials of a batch.
    """

    def __init__(self, options: TrainingOptions, worker: WorkerContext) -> None:
        self.options, self._report_step = options, worker.report_step
        self.device, data = torch.device(worker.device), worker.data
        self.rates: Rates | None = None
        if self.device.type == "cuda":  # before this process has a context on it, which a GPU may refuse to two
            warn_untrusted(options.step, options.batch_size)
            self.rates = rates_for(gpu_key().get("gpu", ""), data.get(BEGINNINGS))
        there = {name: on_device(array, self.device) for name, array in data.items() if name != BEGINNINGS}
        self.labels = {name: tensor for name, tensor in there.items() if tensor.ndim == 1}
        self.images = {
            name: Images(tensor, float(options.max_pixel)) for name, tensor in there.items() if tensor.ndim == 3
        }
        if self.device.type == "cpu":
            worker.report_step(0, unit="compiling")
            warm_up(self.images["train_images"].shape, N_CLASSES, options.step, options.batch_size)
        self._sample = lru_cache(maxsize=1)(self._gathered)
        self._memory = reservations(self.device)

    def __call__(self, batch: Batch) -> Iterator[Evaluation | NoRoom]:
        groups: dict[tuple[TrainingPlan, Any], list[Trial]] = {}
        for trial in batch:
            plan = self.plan(trial)
            parameter_set = (Sample.of(trial), trial.params["tuning"], self._epochs(trial))
            groups.setdefault((plan, parameter_set if plan.grouped else trial.key), []).append(trial)
        for (plan, _), group in groups.items():
            with self._memory.reserved(plan.n_bytes) as granted:
                if granted >= plan.n_bytes:
                    yield from self._evaluated(group, plan)
                else:
                    yield from _refused(group, plan.n_bytes, granted)

    def plan(self, trial: Trial) -> TrainingPlan:
        """How the trial's network is trained on this device."""
        network: dict[str, Any] = dict(
            params=trial.params,
            image_shape=self.images["train_images"].shape,
            n_classes=N_CLASSES,
        )
        how: dict[str, Any] = dict(batch_size=self.options.batch_size, device=self.device)
        step = step_for(self.options.step, **network, **how, rates=self.rates)
        grouped = "fold" in trial.params and step == "grouped" and is_small(**network)
        n_networks = self.options.folds if grouped else 1
        return TrainingPlan(step, grouped, memory_bytes(**network, **how, step=step, n_networks=n_networks))

    def _evaluated(self, group: list[Trial], plan: TrainingPlan) -> Iterator[Evaluation]:
        """Trials that are trained together, or a single one."""
        first = group[0]
        images, labels, folds, unseen = self._sample(Sample.of(first))
        if "fold" not in first.params:
            yield self._refit(first, plan, images, labels, unseen)
            return
        if plan.grouped:
            networks = self._train_together(group, images, labels, folds)
        else:
            held_out = folds[int(first.params["fold"])]
            others = torch.cat([labels[: held_out.start], labels[held_out.stop :]])
            networks = [self._train(first, plan, images.without(held_out), others)]
        for trial, trained in zip(group, networks, strict=True):
            held_out, loss = folds[int(trial.params["fold"])], math.inf
            if not trained.diverged:
                loss = training.cross_entropy(trained.weights, images[held_out], labels[held_out])
            values = {"loss": loss, "epochs": float(trained.epochs), "train_loss": trained.losses[-1]}
            yield Evaluation(trial.key, {**values, **self.way_of(trained)})

    def _refit(
        self, trial: Trial, plan: TrainingPlan, images: Images, labels: torch.Tensor, unseen: torch.Tensor
    ) -> Evaluation:
        """unseen: the training images that its error is measured on: out of the bag, or the outer fold."""
        nested = Sample.of(trial).outer is not None
        trained = self._train(trial, plan, images, labels)
        asked = {"train": (images, labels)}
        if len(unseen):
            name = "outer" if nested else "oob"
            asked[name] = self.images["train_images"][unseen], self.labels["train_labels"][unseen]
        if not nested:
            asked["test"] = self.images["test_images"], self.labels["test_labels"]
        values = {f"{name}_error": math.inf for name in asked} | {"epochs": float(trained.epochs)}
        values.update(self.way_of(trained))
        if trained.diverged:
            return Evaluation(trial.key, values)
        answers = {name: training.probabilities(trained.weights, each) for name, (each, _) in asked.items()}
        extra = training.probabilities(trained.weights, self.images["extra_images"])
        if not all(bool(each.isfinite().all()) for each in (*answers.values(), extra)):
            return Evaluation(trial.key, values)
        values.update({f"{name}_error": _error(answers[name], truth) for name, (_, truth) in asked.items()})
        arrays = {f"{name}_probabilities": each.cpu().numpy() for name, each in answers.items() if name != "train"}
        if not nested:
            arrays |= {"probabilities": arrays.pop("test_probabilities"), "extra_probabilities": extra.cpu().numpy()}
            arrays[LOSSES] = np.array(trained.losses)
            if self.options.save_models:
                arrays.update({WEIGHT + name: weight.cpu().numpy() for name, weight in trained.weights.items()})
        return Evaluation(trial.key, values, arrays)

    def way_of(self, trained: training.Trained) -> dict[str, float]:
        """On a GPU, where nodes may trust different ways, the one that was taken."""
        return {WAY: float(WAYS.index(trained.step))} if self.device.type == "cuda" else {}

    def _epochs(self, trial: Trial) -> int:
        return int(trial.params.get(EPOCH_LIMIT, self.options.epochs))

    def _train(self, trial: Trial, plan: TrainingPlan, images: Images, labels: torch.Tensor) -> training.Trained:
        options = dict(self._options([trial]), step=plan.step)
        return training.train(trial.params, images, labels, seed=self._seed(trial), **options)

    def _train_together(
        self, group: list[Trial], images: Images, labels: torch.Tensor, folds: list[slice]
    ) -> list[training.Trained]:
        """A network for each trial of the group, which are folds of one parameter set."""
        members: list[training.Member | None] = [None] * len(folds)
        for trial in group:
            fold = int(trial.params["fold"])
            others = np.delete(np.arange(len(images)), folds[fold])
            members[fold] = training.Member(others, self._seed(trial))
        options = self._options(group)
        networks = training.train_together(group[0].params, images, labels, members, **options)
        found = (networks[int(trial.params["fold"])] for trial in group)
        return [trained for trained in found if trained is not None]

    def _seed(self, trial: Trial) -> np.random.SeedSequence:
        return seed_of(self.options.seed, stream_of(trial))

    def _options(self, group: list[Trial]) -> dict[str, Any]:
        """Of the training of these trials together."""
        epochs = self._epochs(group[0])
        return dict(
            n_classes=N_CLASSES,
            device=self.device,
            epochs=epochs,
            batch_size=self.options.batch_size,
            tolerance=self.options.tolerance,
            told=lambda done: self._report_step(done, epochs, "epoch", trials=len(group)),
        )

    def _gathered(self, sample: Sample) -> tuple[Images, torch.Tensor, list[slice], torch.Tensor]:
        """Images, labels and folds of a bootstrap sample, on the device, and which training images it has not seen."""
        labels = self.labels["train_labels"]
        seen, held_out = outer_split(len(labels), sample.outer)
        drawn = bootstrap_sample(len(seen), self.options.folds, seed_of(self.options.seed, sample.name))
        unseen = out_of_bag(drawn) if sample.outer is None else held_out
        indices, others = (torch.from_numpy(each).to(self.device) for each in (seen[drawn.indices], unseen))
        return self.images["train_images"][indices], labels[indices], drawn.folds, others


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array of the data set there. Images stay uint8; labels, the arrays of one axis, become int64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The node's copy is read-only, and nothing here writes to it.
        tensor = torch.from_numpy(array)
    return tensor.to(device, torch.int64 if array.ndim == 1 else torch.uint8)


def _refused(group: list[Trial], needed: int, available: int) -> Iterator[NoRoom]:
    for trial in group:
        yield NoRoom(
            trial.key,
            f"its network takes {needed / 1e9:.3g} GB and this worker has {available / 1e9:.3g} GB: use a device "
            "with more memory, fewer workers, or a smaller --max-channels or --max-hidden-layer",
        )


def _error(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of images whose most probable class is not their label."""
    return float((probabilities.argmax(dim=1) != labels).double().mean())
