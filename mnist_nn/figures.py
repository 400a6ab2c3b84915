"""Figures of certainty: what probability each network of the ensemble gives to each digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnist_nn.bootstrap import least_sure, majority_vote
from mpitune.experiment import Data
from mpitune.figures.plotting import GREY, INK, ONE, REST, RIGHT, WRONG, boxes, save, styled, subplots
from mpitune.storage.files import remove_file

MOST_POINTS = 40  # more networks than this are shown by their boxes alone


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
    """figures/: unsure-01-test-..., least sure first, and no-digit; for the arguments see `shown_of`."""
    for old in folder.glob("figures/unsure-*-test-*.[ps][nv]g"):  # of a run with another --plot or other answers
        remove_file(old)
    for image in shown_of(probabilities, extra, data, n, noun):
        save(box_plot(image, noun), folder / "figures", image.name)


def shown_of(probabilities: np.ndarray, extra: np.ndarray, data: Data, n: int, noun: str) -> list[Shown]:
    """The test images that the ensemble is least sure of, at most n, and the one that is no digit.

    probabilities: float32 (n_networks, n_test, n_classes). extra: (n_networks, n_classes) of the image that is no
    digit. noun: what a class is, such as "digit".
    """
    shown = []
    for rank, test in enumerate(least_sure(probabilities, n).tolist(), start=1):
        label = int(data["test_labels"][test])
        name = f"unsure-{rank:0{max(2, len(str(n)))}}-test-{test}"
        title = f"test image {test}: a {label}"
        shown.append(Shown(name, title, data["test_images"][test], probabilities[:, test], label))
    return [*shown, Shown("no-digit", f"an image that is no {noun}", data["extra_images"][0], extra)]


@styled()
def box_plot(shown: Shown, noun: str) -> Any:
    """Certainty of the networks per class, with the image at the top left; the true class is green."""
    figure, (left, axes) = subplots(1, 2, size=(7.2, 3.6), width_ratios=(1, 3.4))
    _draw_boxes(axes, shown)
    axes.set_xlabel(noun)
    axes.set_ylabel("certainty of a network")
    axes.set_title(shown.title)
    axes.set_title(f"ensemble: {shown.answer}, {100 * shown.certainty:.0f} % sure", loc="right", color=shown.colour)
    left.imshow(shown.image, cmap="gray_r", interpolation="nearest")  # dark on bright, as on paper
    left.set_xticks(())
    left.set_yticks(())
    left.grid(False)
    for spine in left.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.6)
    left.set_anchor("N")
    left.set_xlabel(shown.votes, color=INK, fontsize=8.5)
    return figure


def _draw_boxes(axes: Any, shown: Shown) -> None:
    """A box per class over the networks, see `boxes`."""
    n_classes = shown.probabilities.shape[1]
    colours = [
        RIGHT if digit == shown.label else shown.colour if digit == shown.answer else REST for digit in range(n_classes)
    ]
    points = len(shown.probabilities) <= MOST_POINTS
    boxes(axes, range(n_classes), shown.probabilities.T, width=0.62, colours=colours, points=points)
    axes.set_xlim(-0.6, n_classes - 0.4)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xticks(range(n_classes))
    axes.set_yticks((0, 0.5, 1), ("0 %", "50 %", "100 %"))
    axes.grid(False, axis="x")
    for digit, tick in enumerate(axes.get_xticklabels()):
        if digit == shown.label:
            tick.set(color=RIGHT, fontweight="bold")
