"""What fits are expected to take: plans say it, and the coordinator keeps slots busy by it, and fits shared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.sharing_played import ROWS, batches_of, costs_of, study_of
from benchmarks.svm_division import play
from mpitune.engine.queue import Costs
from mpitune.sklearn.costs import expected, expected_alone, shape_of
from mpitune.sklearn.formulas import after
from mpitune.sklearn.groups import graph_of


@pytest.mark.parametrize("n_slots", [2, 3])
@pytest.mark.parametrize("name", ROWS)
def test_slots_are_busy_and_fits_are_shared(name: str, n_slots: int) -> None:
    """The coordinator plays with slots that take as long as expected."""
    study, batches, seconds = batches_of(name)
    whole = sum(seconds(batch, 0.0) for batch in batches)
    costs = costs_of(study, n_slots)
    assert play(1, batches, costs, seconds) == pytest.approx((whole, whole))  # one slot divides nothing
    end, work = play(n_slots, batches, costs, seconds)
    assert work / (n_slots * end) > 0.82, (end, work, whole)
    assert work < 1.3 * whole, "recomputed in vain"
    assert end < 1.31 * whole / n_slots
    if name in ("kernel ridge", "three steps"):
        assert work / (n_slots * end) > 0.9
    if name in ("boosting", "histograms"):  # ten fits of one length each, of which no part would be shorter
        assert work == pytest.approx(whole)


def test_more_slots_end_sooner() -> None:
    """Pieces cost what they compute again, too: two of them in a row would take longer than a whole batch."""
    for name, n_slots, faster in (("three steps", 4, 3.6), ("pipeline", 8, 3.4), ("pipeline", 16, 3.6)):
        study, batches, seconds = batches_of(name)
        end, _ = play(n_slots, batches, costs_of(study, n_slots), seconds)
        assert sum(seconds(batch, 0.0) for batch in batches) > faster * end, name


@pytest.mark.parametrize(("name", "n_slots"), [("kernel ridge", 3), ("kernel ridge", 2), ("pipeline", 6), ("ridge", 2)])
def test_a_division_ends_sooner_although_it_computes_more(name: str, n_slots: int) -> None:
    study, batches, seconds = batches_of(name)
    end, work = play(n_slots, batches, costs_of(study, n_slots), seconds)
    undivided, least = play(n_slots, batches, Costs(study.cost), seconds)
    assert end < 0.95 * undivided and work > least


def test_costs_of_candidates_add_up_to_the_plan() -> None:
    """A batch costs the same as its graph; its parts cost the same too, with the work that they repeat."""
    for row in ROWS.values():
        study = study_of(*row)
        if not study.sharing.share:
            continue
        (search,) = study.searches()
        batch = next(search)[0]
        tasks = {task.key: task for task in study.tasks}
        members = {tasks[trial.key].candidate: tasks[trial.key] for trial in batch}
        found = expected(graph_of(members, study.sharing), shape_of(study.tasks[0]))
        once = sum(found.once.values()) if len(found.once) == 1 else 0.0
        assert found.above + once + sum(found.of.values()) == pytest.approx(found.shared)
        assert study.shared_cost(batch, 2) == pytest.approx(found.above + once)
        assert found.shared < found.alone
        assert sum(map(study.cost, batch)) == pytest.approx(sum(found.of.values()))
        parts = study.split_batch(batch)
        assert len(parts) > 1 and sorted(t.key for part in parts for t in part) == sorted(t.key for t in batch)


def test_candidates_that_have_only_transformers_in_common_are_divided_too() -> None:
    """Each may go alone; what is computed again is the transformers."""
    study, batches, seconds = batches_of("dear step")
    first = study.tasks[0]
    steps = expected_alone(first.estimator, first.parameters, shape_of(first))
    assert len(batches) == 5 and steps[0] > steps[1]
    for batch in batches:
        assert study.split_batch(batch) == [(trial,) for trial in batch]
        assert study.shared_cost(batch, 2) == steps[0]
        assert sum(map(study.cost, batch)) == pytest.approx(len(batch) * steps[1], rel=0.01)
    whole = sum(seconds(batch, 0.0) for batch in batches)
    end, work = play(16, batches, costs_of(study, 16), seconds)
    undivided, least = play(16, batches, Costs(study.cost), seconds)
    assert least == pytest.approx(whole) and end < 0.6 * undivided and work < 1.7 * whole


def test_samples_of_few_values_take_less() -> None:
    """Fewer bins and fewer values to sort; until a step makes other numbers of them."""
    many = study_of(GradientBoostingClassifier(), {"max_depth": [2]}, 600, 20).tasks[0]
    few = replace(many, args=(np.rint(4 * many.args[0]), many.args[1]))
    assert (shape_of(many).values, shape_of(many).whole) == (256, False)
    assert (shape_of(few).values, shape_of(few).whole) == (5, True)
    for model in (GradientBoostingClassifier(), HistGradientBoostingClassifier()):
        (less,), (more,) = (expected_alone(model, {}, shape_of(task)) for task in (few, many))
        assert less < 0.7 * more
    assert after(SelectKBest(k=3), {}, shape_of(few)) == replace(shape_of(few), p=3)
    assert not after(StandardScaler(), {}, shape_of(few)).whole


class _Own(ClassifierMixin, BaseEstimator):
    def __init__(self, a: int = 1):
        self.a = a

    def fit(self, X: Any, y: Any) -> Any:
        return self


def test_whatever_is_searched_has_a_cost() -> None:
    """Values that are none, steps that do nothing, classes that nobody knows, grids of SVC."""
    pipe = Pipeline([("scale", StandardScaler()), ("model", SVC())])
    for model, grid in (
        (_Own(), {"a": [1, "x", None]}),
        (KNeighborsClassifier(), {"n_neighbors": [0, None, "x", 3.5, np.nan]}),
        (pipe, {"scale": ["passthrough", StandardScaler()], "model": [SVC(C=2), RidgeClassifier(), "passthrough"]}),
        (SVC(), {"C": [1, 2], "gamma": [0.1, "scale"]}),
        (RandomForestClassifier(random_state=0), {"max_depth": [None, -1, 3], "n_estimators": [1, -5]}),
    ):
        study = study_of(model, grid, 60, 4)
        (search,) = study.searches()
        for batch in next(search):
            assert all(0 <= study.cost(trial) < 1 for trial in batch)
            assert study.shared_cost(batch, 2) >= 0 and study.split_batch(batch)
