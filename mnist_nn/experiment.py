"""The search of every bootstrap sample: its settings, its batches, and its report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.data import N_CLASSES
from common.images import ImageSettings
from mnist_nn.images import no_digit
from mnist_nn.keys import WEIGHT, refit_key, sample_of
from mnist_nn.shapes import memory_bytes, weights_of
from mnist_nn.summary import network_row, print_ensemble, print_networks
from mnist_nn.tuning import HYPERPARAMETERS, Ranges, drawn
from mpitune.devices import probe
from mpitune.errors import UsageError
from mpitune.experiment import Data, Objective, WorkerContext
from mpitune.figures.panels import Section
from mpitune.figures.winner import least
from mpitune.port import Reporting, Scheduling
from mpitune.settings import setting
from mpitune.storage.files import written_whole
from mpitune.storage.history import History
from mpitune.storage.table import write_table, write_trials
from mpitune.trial import Outcome, Rounds, Segment, Trial


@dataclass(frozen=True)
class Bagging(ImageSettings):
    """Choose and train an ensemble of small convolutional networks, one for each bootstrap sample.

    For each sample a random search draws parameters, scores them by cross-validation, and trains a
    network with the best ones on the whole sample.
    """

    n_bootstrap: int = setting(
        help="bootstrap samples, and so networks of the ensemble", low=1, high=100_000, selects=True
    )
    n_tuning: int = setting(help="parameter sets tried for each bootstrap sample", low=1, high=100_000, selects=True)
    max_conv_layer: int = setting(
        Ranges().n_conv_layer[1], "most channels of the convolution", low=1, high=100_000,
        selects=True, flag="--max-channels/--max-conv-layer", advanced=True,
    )  # fmt: skip
    max_hidden_layer: int = setting(
        Ranges().n_hidden_layer[1], "most units of the hidden layer", low=1, high=1_000_000, selects=True, advanced=True
    )
    max_kernel_size: int = setting(
        Ranges().kernel_size[1], "largest side of the kernel, in pixels; at most that of an image", low=2, selects=True,
        advanced=True,
    )  # fmt: skip
    epochs: int = setting(20, "most epochs of a training", low=1)
    batch_size: int = setting(10, "images per step of the training", low=1, advanced=True)
    tolerance: float = setting(
        0.8, "training ends after an epoch whose loss is above this times the one before", low=0, high=1e6,
        advanced=True,
    )  # fmt: skip
    plot: int = setting(
        20, "draw the N test images that the ensemble is least sure of", low=0, changes_results=False, metavar="N"
    )
    save_models: bool = setting(
        False, "keep every network of the ensemble as models/bootstrap-00.pt, ...", changes_results=False,
        advanced=True,
    )  # fmt: skip

    def check(self, device: str, visible: str) -> Callable[[], None] | None:
        """Raises UsageError where PyTorch is missing; later if it cannot use the GPU."""
        probe.require("torch")
        if device == "cpu":
            return None
        ask = probe.why_unusable("torch", visible)

        def wait() -> None:
            if why := ask():
                raise UsageError(f"{why}, or give --gpu none")

        return wait

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of the data set's images, in pixels."""
        return (8, 8) if self.dataset == "digits" else (28, 28)

    @property
    def noun(self) -> str:
        """What a class of the data set is called."""
        return "class" if self.dataset == "fashion-mnist" else "digit"

    def data(self) -> dict[str, np.ndarray]:
        """The arrays of `common.data.load`, and `extra_images` uint8 (1, height, width): one that is no digit."""
        arrays = super().data()
        return {**arrays, "extra_images": no_digit(arrays["train_images"].shape[1:], self.max_pixel)[None]}

    def searches(self) -> Iterable[Rounds]:
        return (self._search(sample) for sample in range(self.n_bootstrap))

    def _search(self, sample: int) -> Rounds:
        """Every fold of every parameter set; then the refit of the best one, if one has a loss. Returns the losses."""
        sets = [self._draw(sample, tuning) for tuning in range(self.n_tuning)]
        results = yield [
            (Trial(f"b{sample}/t{tuning}/f{fold}", params, Segment(fold=fold)),)
            for tuning, params in enumerate(sets)
            for fold in range(self.folds)
        ]
        losses = np.array([result.value("loss") for result in results]).reshape(self.n_tuning, self.folds)
        chosen = least(losses)
        if chosen is not None:
            yield [(Trial(self._refit_key(sample), sets[chosen]),)]
        return losses

    def _refit_key(self, sample: int) -> str:
        return refit_key(sample, self.save_models)

    def _draw(self, sample: int, tuning: int) -> dict[str, float | int | str]:
        """The parameters of a set, for any fold."""
        largest_kernel = min(self.max_kernel_size, *self.image_shape)
        ranges = Ranges((1, self.max_conv_layer), (2, largest_kernel), (1, self.max_hidden_layer))
        params = drawn(ranges, self.seed, f"b{sample}/t{tuning}")
        return {"bootstrap": sample, "tuning": tuning, **params}

    def objective(self, worker: WorkerContext) -> Objective:
        from mnist_nn.objective import BaggingObjective

        return BaggingObjective(self, worker)

    def scheduling(self) -> Scheduling:
        return Scheduling(n_trials=self.n_trials(), cost=self.cost, preload=("mnist_nn.objective",))

    def cost(self, trial: Trial) -> float:
        """Weights moved in an epoch: of the network, times the share of the images that it learns from."""
        share = (self.folds - 1) / self.folds if trial.segment.fold is not None else 1.0
        return weights_of(trial.params, self.image_shape, N_CLASSES) * share

    def memory_bytes(self, trial: Trial) -> int:
        """See `mnist_nn.shapes.memory_bytes`."""
        return memory_bytes(trial.params, self.image_shape, N_CLASSES, batch_size=self.batch_size)

    def n_trials(self) -> int:
        return self.n_bootstrap * (self.n_tuning * self.folds + 1)

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[np.ndarray], data: Data, folder: Path) -> None:
        """Print the errors of the networks and of the ensemble; write tables, predictions, models and figures.

        results.csv: a row per bootstrap sample, NaN for what it does not have; `seconds` is the sum of its
            trials', `place` that of the refit.
        predictions.npz: `probabilities` float32 (n_bootstrap, n_test, n_classes), NaN where there is no network;
            `labels` uint8 (n_test,); `extra_probabilities` float32 (n_bootstrap, 1, n_classes), of the
            image that is no digit.
        """
        results = {outcome.trial.key: outcome.result for outcome in outcomes}
        seconds: dict[int, float] = defaultdict(float)
        for trial, result in outcomes:
            seconds[sample_of(trial)] += result.seconds
        rows = []
        for sample, losses in enumerate(conclusions):
            chosen = least(losses)
            params = {} if chosen is None else self._draw(sample, chosen)
            refit = results.get(self._refit_key(sample))
            rows.append(network_row(sample, losses, params=params, refit=refit, seconds=seconds[sample]))
        write_table(folder / "results.csv", rows)
        write_trials(folder / "trials.csv", outcomes)
        labels = data["test_labels"]
        probabilities = np.full((self.n_bootstrap, len(labels), N_CLASSES), np.nan, np.float32)
        extra = np.full((self.n_bootstrap, 1, N_CLASSES), np.nan, np.float32)
        there = [row["bootstrap"] for row in rows if not row["error"]]
        for bootstrap in there:
            arrays = results[self._refit_key(bootstrap)].arrays
            probabilities[bootstrap], extra[bootstrap] = arrays["probabilities"], arrays["extra_probabilities"]
            if self.save_models:
                from mnist_nn.network import save_model

                params = {name: rows[bootstrap][name] for name in HYPERPARAMETERS}
                weights = {name.removeprefix(WEIGHT): arrays[name] for name in arrays if name.startswith(WEIGHT)}
                width = max(2, len(str(self.n_bootstrap - 1)))
                path = folder / "models" / f"bootstrap-{bootstrap:0{width}}.pt"
                save_model(path, params, (*self.image_shape, self.max_pixel), weights)
        with written_whole(folder / "predictions.npz") as file:
            np.savez(file, probabilities=probabilities, labels=labels, extra_probabilities=extra)
        print_networks(rows)
        if there:
            from mnist_nn.figures import draw_ensemble

            answers = probabilities[there]
            print_ensemble(answers, labels)
            draw_ensemble(folder, answers, extra=extra[there, 0], data=data, n=self.plot, noun=self.noun)

    def reporting(self) -> Reporting:
        tables = ("results.csv", "trials.csv", "predictions.npz")
        return Reporting(
            "minimize loss", ("bootstrap", "tuning"), self.report_sections,
            files=(*tables, "models", "figures"),
        )  # fmt: skip

    def report_sections(self, history: History, data: Data | None) -> Sequence[Section]:
        from mnist_nn.sections import sections_of

        return sections_of(history, data, n_shown=self.plot, noun=self.noun)
