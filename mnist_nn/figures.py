"""Figures of certainty: what probability each network of the ensemble gives to each digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnist_nn.bootstrap import error_of_surest, least_sure, majority_vote
from mpitune.experiment import Data
from mpitune.figures.plotting import GREY, INK, ONE, REST, RIGHT, WRONG, boxes, save, styled, subplots
from mpitune.figures.statistics import calibration

MOST_POINTS = 40  # more networks than this are shown by their boxes alone
SHEET_COLUMNS, SHEET_ROWS = 4, 5


class Shown(NamedTuple):
    """An image with what the networks make of it.

    Attributes:
        name: of the file, and title: of the figure, without the ensemble's answer.
        image: (height, width), bright on dark.
        probabilities: (n_networks, n_classes).
        label: the true class; None where there is none or it is not known.
    """

    name: str
    title: str
    image: np.ndarray
    probabilities: np.ndarray
    label: int | None = None

    @property
    def answer(self) -> int:
        """The class of the highest mean probability."""
        return int(self.probabilities.mean(axis=0).argmax())

    @property
    def certainty(self) -> float:
        """The mean probability of the answer."""
        return float(self.probabilities.mean(axis=0).max())

    @property
    def votes(self) -> str:
        """Votes for the majority's class, which can differ from the answer."""
        voted = int(majority_vote(self.probabilities[:, None])[0])
        n, count = len(self.probabilities), int((self.probabilities.argmax(axis=1) == voted).sum())
        return f"{count} of {n} networks vote {voted}" if n > 1 else f"the only network votes {voted}"

    @property
    def colour(self) -> str:
        """Colour of the answer: green when it is right, red when it is wrong, blue when that is not known."""
        return ONE if self.label is None else RIGHT if self.label == self.answer else WRONG


def draw_ensemble(folder: Path, probabilities: np.ndarray, *, extra: np.ndarray, data: Data, n: int, noun: str) -> None:
    """calibration; figures/: unsure-01-test-..., least sure first, least-sure (one sheet), no-digit.

    probabilities: float32 (n_networks, n_test, n_classes), of which n images are drawn at most. extra: (n_networks,
    n_classes) of the image that is no digit. noun: what a class is, such as "digit".
    """
    save(calibration_of(probabilities.mean(axis=0), data["test_labels"]), folder, "calibration")
    unsure = unsure_of(probabilities, data, n)
    other = Shown("no-digit", f"an image that is no {noun}", data["extra_images"][0], extra)
    for image in (*unsure, other):
        save(box_plot(image, noun), folder / "figures", image.name)
    if len(unsure) > 1:
        save(draw_sheet(unsure), folder / "figures", "least-sure")


def unsure_of(probabilities: np.ndarray, data: Data, n: int) -> list[Shown]:
    """The test images that the ensemble is least sure of, at most n; see `draw_ensemble`."""
    shown = []
    for rank, test in enumerate(least_sure(probabilities, n).tolist(), start=1):
        label = int(data["test_labels"][test])
        name = f"unsure-{rank:0{max(2, len(str(n)))}}-test-{test}"
        title = f"test image {test}: a {label}"
        shown.append(Shown(name, title, data["test_images"][test], probabilities[:, test], label))
    return shown


@styled()
def box_plot(shown: Shown, noun: str) -> Any:
    """Certainty of the networks per class, with the image at the top left; the true class is green."""
    figure, (left, axes) = subplots(1, 2, size=(7.2, 3.6), width_ratios=(1, 3.4))
    draw_boxes(axes, shown, points=len(shown.probabilities) <= MOST_POINTS)
    axes.set_xlabel(noun)
    axes.set_ylabel("certainty of a network")
    axes.set_title(shown.title)
    axes.set_title(f"ensemble: {shown.answer}, {100 * shown.certainty:.0f} % sure", loc="right", color=shown.colour)
    draw_image(left, shown.image)
    left.set_anchor("N")
    left.set_xlabel(shown.votes, color=INK, fontsize=8.5)
    return figure


@styled()
def draw_sheet(shown: Sequence[Shown], title: str = "The ensemble is least sure of these test images") -> Any:
    """The first 20 images, at least one, with small box plots, on one sheet."""
    shown = shown[: SHEET_ROWS * SHEET_COLUMNS]
    columns = min(SHEET_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = subplots(
        rows, 2 * columns, size=(3.3 * columns, 1.5 * rows + 0.5), squeeze=False, width_ratios=(1, 1.9) * columns
    )
    for axes in grid.flat[2 * len(shown) :]:
        axes.set_visible(False)
    for asked, image, certainties in zip(shown, grid.flat[::2], grid.flat[1::2], strict=False):
        draw_image(image, asked.image)
        image.set_anchor("N")
        draw_boxes(certainties, asked, points=False)
        certainties.tick_params(labelsize=7.5, length=2)
        said = f"ensemble {asked.answer} ({100 * asked.certainty:.0f} %)"
        said = f"true {asked.label}, {said}" if asked.label is not None else f"{asked.title}: {said}"
        certainties.set_title(said, fontsize=9, pad=4, color=asked.colour)
    if title:
        figure.suptitle(title, fontsize=10.5, x=0.005, ha="left")
    return figure


def draw_boxes(axes: Any, shown: Shown, points: bool) -> None:
    """A box per class over the networks, see `boxes`."""
    n_classes = shown.probabilities.shape[1]
    colours = [
        RIGHT if digit == shown.label else shown.colour if digit == shown.answer else REST for digit in range(n_classes)
    ]
    boxes(axes, range(n_classes), shown.probabilities.T, width=0.62, colours=colours, points=points)
    axes.set_xlim(-0.6, n_classes - 0.4)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xticks(range(n_classes))
    axes.set_yticks((0, 0.5, 1), ("0 %", "50 %", "100 %"))
    axes.grid(False, axis="x")
    for digit, tick in enumerate(axes.get_xticklabels()):
        if digit == shown.label:
            tick.set(color=RIGHT, fontweight="bold")


def draw_image(axes: Any, image: np.ndarray) -> None:
    """Dark on bright, as on paper."""
    axes.imshow(image, cmap="gray_r", interpolation="nearest")
    axes.set_xticks(())
    axes.set_yticks(())
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.6)


@styled()
def learning(train_loss: Sequence[float], test_loss: Sequence[float], accuracy: Sequence[float]) -> Any:
    """Losses, and the error on the test images, after each epoch from the first on."""
    epochs = range(1, len(accuracy) + 1)
    figure, (left, right) = subplots(1, 2, size=(8.4, 3.6))
    left.plot(epochs, train_loss, color=GREY, marker="o", label="training")
    left.plot(epochs, test_loss, color=ONE, marker="o", label="test")
    left.set(title="mean cross-entropy per image", ylim=(0, 1.05 * max(*train_loss, *test_loss)))
    left.legend()
    errors = [100 * (1 - share) for share in accuracy]
    right.plot(epochs, errors, color=ONE, marker="o")
    right.set(title="test error", ylabel="%", ylim=(0, 1.05 * max(errors) or 1))
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


@styled()
def calibration_of(probabilities: np.ndarray, labels: np.ndarray) -> Any:
    """How often an ensemble (n_images, n_classes) is as right as it is sure; the error on the surest images."""
    quality, errors = calibration(probabilities, labels), error_of_surest(probabilities, labels)
    figure, (left, right) = subplots(1, 2, size=(8.4, 3.8))
    there = quality.counts > 0
    left.plot((0, 1), (0, 1), color=GREY, linewidth=0.8)
    sizes = 12 + 90 * quality.counts[there] / quality.counts.max()
    left.plot(quality.confidence[there], quality.accuracy[there], color=ONE, linewidth=1)
    left.scatter(quality.confidence[there], quality.accuracy[there], s=sizes, color=ONE, zorder=3, clip_on=False)
    left.set(xlabel="mean certainty of the ensemble", ylabel="share that is right", xlim=(0, 1.04), ylim=(0, 1.04))
    left.set_title(f"calibration error {100 * quality.expected_error:.2f} %")
    kept = 100 * np.arange(1, len(labels) + 1) / len(labels)
    right.plot(100 - kept, 100 * errors, color=ONE)
    right.set(xlabel="least sure images left to a person, %", ylabel="error on the others, %", xlim=(0, 100))
    first = min(19, len(errors) - 1)  # the error on fewer images jumps, and would set the scale
    right.set_ylim(0, 105 * max(errors[first:].max(), 1e-3))
    right.set_title(f"error of all {100 * errors[-1]:.2f} %")
    return figure
