"""What report.html shows of an ensemble: its errors, and what it is least sure of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mnist_nn.keys import LOSSES
from mpitune.experiment import Data
from mpitune.figures import statistics
from mpitune.figures.panels import Bars, Drawing, Fact, Lines, Note, Panel, Section
from mpitune.storage.history import History

MOST_IMAGES = 6  # that the page shows of those which the ensemble is least sure of


def sections_of(history: History, data: Data | None, *, n_shown: int, noun: str) -> list[Section]:
    """The sections of a report; networks may be missing, and without data what needs labels is left out."""
    refits: dict[int, Mapping[str, np.ndarray]] = {}
    errors: dict[int, float] = {}
    for key, trial in history.trials.items():
        result = history.results[key]
        if trial.segment.fold is None and not result.failed:
            number = int(trial.params["bootstrap"])
            errors[number] = result.value("test_error")
            if "probabilities" in result.arrays:
                refits[number] = result.arrays
    if not refits:
        return [Section("Ensemble", [Note("No network of the ensemble is trained so far.")])]
    probabilities = np.stack([refits[number]["probabilities"] for number in sorted(refits)])
    labels = None if data is None else data["test_labels"]
    if labels is not None and len(labels) != probabilities.shape[1]:
        labels = None
    panels = [_errors(errors, probabilities, labels), _learning(refits)]
    section = Section("Ensemble", panels, _facts(errors, probabilities, labels))
    if labels is None or data is None:
        why = "Which images are least sure needs images and labels, which "
        return [section, Section("Test images", [Note(why + "are not in the journal: give --data DIR.")])]
    extra = np.stack([refits[number]["extra_probabilities"] for number in sorted(refits)])
    return [section, Section("Test images", _images(probabilities, extra, data, n_shown, noun))]


def _facts(errors: Mapping[int, float], probabilities: np.ndarray, labels: np.ndarray | None) -> list[Fact]:
    finite = [error for error in errors.values() if np.isfinite(error)]
    networks = f"{len(errors)} networks alone: {min(finite):.2%} to {max(finite):.2%}" if finite else ""
    if labels is None:
        return [Fact("test error of a network", f"{np.mean(finite):.2%}" if finite else "none", networks)]
    n_wrong = int(np.sum(probabilities.mean(axis=0).argmax(axis=1) != labels))
    low, high = statistics.proportion(n_wrong, len(labels))
    note = f"95 % interval {low:.2%} to {high:.2%} ({len(labels):,} images, Wilson); {networks}"
    return [Fact("test error of the ensemble", f"{n_wrong / len(labels):.2%}", note)]


def _errors(errors: Mapping[int, float], probabilities: np.ndarray, labels: np.ndarray | None) -> Panel:
    n = probabilities.shape[1]
    bars: dict[str, tuple[float, float | None, float | None]] = {}
    if labels is not None:
        error = float(np.mean(probabilities.mean(axis=0).argmax(axis=1) != labels))
        bars["ensemble"] = (error, *statistics.proportion(round(error * n), n))
    for number, error in sorted(errors.items())[:60]:
        interval = statistics.proportion(round(error * n), n) if np.isfinite(error) else (None, None)
        bars[f"network {number}"] = (error, *interval)
    more = f" The first 60 of {len(errors)} networks." if len(errors) > 60 else ""
    return Bars(
        "Test errors",
        f"of the ensemble's mean probability and of each network, with 95 % intervals.{more}",
        bars,
        percent=True,
    )


def _learning(refits: Mapping[int, Mapping[str, np.ndarray]]) -> Panel:
    losses = {number: arrays[LOSSES] for number, arrays in sorted(refits.items())}
    return Lines(
        "Learning curves",
        "of each network: the mean cross-entropy of its training images, measured while it learns from them. A "
        "training ends when an epoch gains little over the one before.",
        "epoch",
        "training loss",
        {f"network {number}": (range(1, len(of) + 1), of.tolist()) for number, of in losses.items()},
    )


def _images(probabilities: np.ndarray, extra: np.ndarray, data: Data, n: int, noun: str) -> list[Panel]:
    """The test images that the ensemble is least sure of, and the one that belongs to no class."""
    from mnist_nn.figures import box_plot, shown_of
    from mpitune.figures.plotting import svg_of

    about = Note(
        "Each column shows how sure the networks are that the image is this class: green the right one, red a wrong "
        "answer. A tall one means that the networks disagree. The last image belongs to no class: a network that is "
        "sure of its answer there is too sure."
    )
    shown = shown_of(probabilities, extra[:, 0], data, min(n, MOST_IMAGES), noun)
    return [about, *(Drawing(image.title, "", svg_of(box_plot(image, noun))) for image in shown)]
