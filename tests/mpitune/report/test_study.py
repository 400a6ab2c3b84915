"""What a report reads out of a journal: candidates, the best one, importance."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from mpitune.figures.panels import Lines
from mpitune.report.candidates import Goal, ReportedStudy, read_candidates
from mpitune.report.importance import importance_of
from mpitune.report.page import page, report_of
from mpitune.report.parts import front_table, learning_of, notes_of
from mpitune.storage.history import History, read_study
from mpitune.trial import Ending, Segment
from tests.mpitune.report.journals import header, many, trial_line, write

LOSS = Goal("loss", maximize=False)


def read(history: History, goal: Goal | None = LOSS, besides: tuple[str, ...] = ()) -> ReportedStudy:
    candidates = read_candidates(history, goal, besides)
    return ReportedStudy(Path("r"), history, goal, candidates)


def test_folds_are_one_candidate_and_its_value_is_their_mean(tmp_path: Path) -> None:
    """None if one failed; infinity never wins, nor does what lacks a fold, and a refit is no candidate."""
    losses = {1: (0.5, 0.7), 2: (0.2, 0.4), 3: (0.1,), 4: (0.1,), 5: (float("inf"), 0.1)}
    lines = [
        trial_line(f"x{x}/f{fold}", {"x": x}, {"loss": loss}, begin=x, end=x + 1, segment=Segment(fold=fold))
        for x, folds in losses.items() for fold, loss in enumerate(folds)
    ]  # fmt: skip
    lines.append(trial_line("x4/f1", {"x": 4}, {}, begin=8, end=9, segment=Segment(fold=1), error="E\nValueError: no"))
    lines.append(trial_line("refit", {"x": 2}, {"test_error": 0.3}, begin=9, end=10))
    study = read(write(tmp_path, lines))
    assert [one.value for one in study.candidates] == [pytest.approx(0.6), pytest.approx(0.3), 0.1, None, float("inf")]
    assert study.best is not None and study.best.params == {"x": 2}
    assert [trial.key for trial, _ in study.failures] == ["x4/f1"]
    assert "for the 1 that the race left" in str(study.winner), "x = 3 lacks a fold, x = 4 has failed"


def test_stages_of_a_search_are_one_candidate_with_the_value_of_the_last(tmp_path: Path) -> None:
    heading = header(objectives=["maximize accuracy"])
    lines = [
        trial_line("t000000/0", {"x": 1}, {"accuracy": 0.9}, begin=0, end=1, segment=Segment(0, None, 0, False, 0, 1)),
        trial_line("t000000/1", {"x": 1}, {"accuracy": 0.5}, begin=1, end=2, segment=Segment(0, None, 1, True, 1, 2)),
        trial_line("t000001/0", {"x": 2}, {"accuracy": 0.7}, begin=2, end=3, segment=Segment(1, None, 0, False, 0, 1)),
    ]
    study = read(write(tmp_path, lines, heading=heading), Goal("accuracy", True))
    assert [(one.params, one.value) for one in study.candidates] == [({"x": 1}, 0.5), ({"x": 2}, None)]
    assert study.best is study.candidates[0] and study.candidates[1].state == "pruned"


def test_of_equal_trials_of_a_search_the_first_is_the_best_whichever_ended_first(tmp_path: Path) -> None:
    lines = [trial_line(f"t{n:06}", {"x": n}, {"a": 0.5, "b": n}, begin=0, end=1, segment=Segment(n)) for n in (1, 0)]
    study = read(write(tmp_path / "one", lines, heading=header(objectives=["maximize a"])), Goal("a", True))
    assert study.best is not None and study.best.params == {"x": 0}
    folder = tmp_path / "two"
    write(folder, lines, heading=header(objectives=["maximize a", "minimize b"]))
    both = report_of(folder, read_study(folder), None, None)
    assert both.best is None and "best for a and b together" in notes_of(both)[0]


def test_a_curve_for_each_trial_that_says_steps_and_the_pruned_are_faint(tmp_path: Path) -> None:
    lines = [
        trial_line(
            f"t{number:06}/{stage}", {"x": number}, {"loss": losses[max(losses)]}, begin=n, end=n + 1,
            segment=Segment(number, stage=stage, last=stage == 1),
            ending=Ending(steps={step: {"loss": loss} for step, loss in losses.items()}),
        )
        for n, (number, stage, losses) in enumerate([(0, 0, {1: 0.5}), (0, 1, {2: 0.3, 3: 0.2}), (1, 0, {1: 0.9})])
    ]  # fmt: skip
    heading = header(objectives=["minimize loss"])
    (curves,) = learning_of(read(write(tmp_path, lines, heading=heading)))
    assert isinstance(curves, Lines) and curves.faint == ["trial 1 (pruned)"]
    assert curves.curves == {"trial 0": ([1, 2, 3], [0.5, 0.3, 0.2]), "trial 1 (pruned)": ([1], [0.9])}


def test_what_matters_is_found_to_matter(tmp_path: Path) -> None:
    """The loss of `many` depends on the rate most, then on the width, on nothing else."""
    study = read(many(300, tmp_path))
    found = importance_of(study.valued, study.parameters)
    assert list(found)[:2] == ["rate", "width"]
    assert found["rate"] > 10 * found["drop"] and found["rate"] > 10 * found["act"]


def test_importance_is_what_a_regression_on_the_groups_explains(tmp_path: Path) -> None:
    """By its adjusted R², of texts and numbers."""
    table = np.random.default_rng(0).permutation(56).reshape(8, 7) // 2 + 3 * np.arange(8)[:, None]
    lines = [
        trial_line(key := f"{a}/{b}", {"a": a, "b": f"b{b}", "same": 1, "own": key}, {"loss": x}, begin=0, end=1)
        for (a, b), x in np.ndenumerate(table.astype(float))
    ]
    study = read(write(tmp_path, lines))
    ranks, rows, columns = np.unique(table, return_inverse=True)[1].ravel(), *np.indices(table.shape).reshape(2, -1)
    shares = {}
    for name, groups in {"a": rows, "b": columns}.items():
        dummies = np.eye(groups.max() + 1)[groups]
        r2 = LinearRegression().fit(dummies, ranks).score(dummies, ranks)
        shares[name] = max(0.0, 1 - (1 - r2) * 55 / (56 - dummies.shape[1]))
    found = importance_of(study.valued, study.parameters)
    assert found == pytest.approx(shares) and list(found) == ["a", "b"] and found["a"] > 0.1
    assert importance_of(study.valued[:19], study.parameters) == {}


def test_a_parameter_under_a_condition_is_judged_where_it_is(tmp_path: Path) -> None:
    """C and junk do nothing, though their branch has other losses; depth decides all of its own; too few have rare."""
    losses = np.random.default_rng(0).random((60, 3))
    lines = []
    for n, (loss, first, second) in enumerate(losses.tolist()):
        own = {"kind": "tree", "depth": first} if n % 2 else {"kind": "svm", "C": first, "junk": second}
        params = {**own, **({"rare": n} if n < 19 else {}), "mixed": first if first < 0.5 else "none"}
        lines.append(trial_line(f"t{n}", params, {"loss": 0.5 + first / 1e6 if n % 2 else loss}, begin=0, end=1))
    study = read(write(tmp_path, lines))
    found = importance_of(study.valued, study.parameters)
    assert found["depth"] > 0.9 and max(found["C"], found["junk"], found["kind"], found["mixed"]) < 0.1, found
    assert "rare" not in found


def test_of_a_long_front_the_ends_and_some_between_are_shown(tmp_path: Path) -> None:
    values = [{"a": n, "b": n if n < 15 else 0} for n in (7, *range(20))]
    lines = [
        trial_line(f"t{n:06}", {"x": n}, both, begin=0, end=1, segment=Segment(n)) for n, both in enumerate(values)
    ]
    write(tmp_path, lines, heading=header(objectives=["minimize a", "maximize b"]))
    study = report_of(tmp_path, read_study(tmp_path), None, None)
    names, rows = front_table(study)
    assert names == ["trial", "a", "b", "x"] and [row[1] for row in rows] == "0 1 3 5 6 7 9 10 12 14".split()
    assert rows[0] == ["t000001", "0", "0", "1"] and "Pareto front of 16: " in notes_of(study)[1]
    assert "<td>14</td><td>15</td>" in page(study)


@pytest.mark.parametrize(("error", "percent"), [(0.5, True), (1.5, False)])
def test_the_best_so_far_only_improves_in_per_cent_where_it_is_a_fraction(
    tmp_path: Path, error: float, percent: bool
) -> None:
    errors = [error, 1.0, 0.7, 0.3, 0.3, 0.2]
    lines = [trial_line(f"t{n}", {"x": n}, {"error": v}, begin=n, end=n + 1) for n, v in enumerate(errors)]
    heading = header(objectives=["minimize error"])
    study = report_of(tmp_path, write(tmp_path, lines, heading=heading), None, None)
    assert study.goal is not None and study.goal.percent is percent
    assert [value for _, value in study.best_so_far()] == ([0.5, 0.3, 0.2] if percent else [1.5, 1.0, 0.7, 0.3, 0.2])


def test_how_busy_the_slots_were_is_said_where_it_is_known(tmp_path: Path) -> None:
    lines = [trial_line(f"t{n}", {"x": n}, {"loss": 1.0}, begin=0, end=50, slot=n) for n in range(3)]
    assert read(write(tmp_path / "a", lines, seconds=100.0)).utilisation == 0.5
    assert read(write(tmp_path / "b", lines, seconds=None)).utilisation is None, "it was killed"
