"""What report.html shows of an ensemble, of a whole study and of one that has just begun."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from mpitune.figures.panels import Bars, Drawing, Lines, Note, Panel, Section
from tests.helpers import history_of
from tests.mnist_nn.small import TINY, computed, of_tiny

pytestmark = of_tiny
STUDY = replace(TINY, plot=4)
Kind = TypeVar("Kind")


def of_kind(sections: Sequence[Section], kind: type[Kind]) -> list[Kind]:
    return [panel for section in sections for panel in section.panels if isinstance(panel, kind)]


def titled(sections: Sequence[Section], title: str) -> Panel:
    return next(p for s in sections for p in s.panels if not isinstance(p, Note) and p.title == title)


def test_learning_curves_are_the_losses_of_each_networks_epochs() -> None:
    refits = {trial.key: result for trial, result in computed() if trial.segment.fold is None}
    for result in refits.values():
        losses = result.arrays["losses"]
        assert losses.shape == (result.values["epochs"],) and np.isfinite(losses).all() and losses[0] > losses[-1]
    panel = titled(STUDY.report_sections(history_of(computed()), None), "Learning curves")
    assert isinstance(panel, Lines) and list(panel.curves) == ["network 0", "network 1"]
    for (epochs, losses), result in zip(panel.curves.values(), refits.values(), strict=True):
        assert list(epochs) == list(range(1, len(losses) + 1)) and list(losses) == result.arrays["losses"].tolist()


def test_with_the_data_it_shows_images() -> None:
    data = STUDY.data()
    sections = STUDY.report_sections(history_of(computed()), data)
    refits = [result for trial, result in computed() if trial.segment.fold is None]
    answers = np.mean([result.arrays["probabilities"] for result in refits], axis=0).argmax(axis=1)
    n_wrong = int(np.sum(answers != data["test_labels"]))
    assert n_wrong > 0
    facts = {fact.name: fact for section in sections for fact in section.facts}
    assert facts["test error of the ensemble"].value == f"{n_wrong / 40:.2%}"
    assert "Wilson" in facts["test error of the ensemble"].note
    *unsure, other = of_kind(sections, Drawing)
    assert len(unsure) == 4 and all(b"<image" in each.svg and b"test image" in each.svg for each in unsure)
    assert b"an image that is no digit" in other.svg
    (errors,) = of_kind(sections, Bars)
    assert list(errors.bars) == ["ensemble", "network 0", "network 1"]


def test_of_a_study_that_has_just_begun_it_says_that_there_is_no_network() -> None:
    folds = [outcome for outcome in computed() if outcome.trial.segment.fold is not None]
    for known in ([], folds):
        (section,) = STUDY.report_sections(history_of(known), STUDY.data())
        assert [type(panel) for panel in section.panels] == [Note] and "so far" in of_kind([section], Note)[0].text
