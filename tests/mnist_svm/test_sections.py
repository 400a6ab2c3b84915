"""What report.html shows of a grid search, of a whole one and of one that has just begun."""

from functools import cache

import numpy as np

from mnist_svm.experiment import SvmGrid
from mpitune.figures.panels import HeatMap, Note, Table
from mpitune.trial import Outcome
from tests.helpers import evaluate, history_of

STUDY = SvmGrid(3, dataset="digits", train_size=120, test_size=50, folds=3)


@cache
def computed() -> list[Outcome]:
    return evaluate(STUDY)


def test_the_grid_the_test_error_and_what_is_confused() -> None:
    data = STUDY.data()
    grid, images = STUDY.report_sections(history_of(computed()), data)
    (heat_map,) = grid.panels
    assert isinstance(heat_map, HeatMap) and heat_map.folds.shape == (3, 3, 3) and np.isfinite(heat_map.folds).all()
    means = heat_map.folds.mean(axis=0)
    assert heat_map.best is not None and means[heat_map.best] == means.min()
    assert heat_map.seconds.min() > 0
    refit = next(result for trial, result in computed() if trial.segment.fold is None)
    assert {fact.name: fact.value for fact in grid.facts}["test error"] == f"{refit.values['test_error']:.2%}"
    (confusion,) = images.panels
    assert isinstance(confusion, Table)
    n_wrong = sum(cell for row in confusion.rows for cell in row[1:] if cell != "")
    assert (
        n_wrong == np.sum(refit.arrays["predictions"] != data["test_labels"]) == round(50 * refit.values["test_error"])
    )
    (_, without) = STUDY.report_sections(history_of(computed()), None)
    assert isinstance(without.panels[0], Note) and "--data DIR" in without.panels[0].text


def test_of_a_study_that_has_just_begun_the_rest_of_the_grid_is_empty() -> None:
    folds = [outcome for outcome in computed() if outcome.trial.segment.fold is not None]
    for known, n_missing in ((folds[:5], 22), ([], 27)):
        (section,) = STUDY.report_sections(history_of(known), STUDY.data())
        heat_map, note = section.panels
        assert isinstance(heat_map, HeatMap) and int(np.isnan(heat_map.folds).sum()) == n_missing
        assert isinstance(note, Note) and note.text.startswith(f"{n_missing} of 27 fits")
        assert not any(fact.name == "test error" for fact in section.facts)
