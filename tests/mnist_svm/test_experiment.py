"""The grid search of the support vector machine, driven by hand and from its command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.images import standardised
from mnist_svm.dataset import check_classes
from mnist_svm.experiment import SvmGrid
from mnist_svm.solvers import fit_cuml, fit_sklearn
from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext, per_trial
from mpitune.options import RunOptions
from mpitune.studies import run_study
from mpitune.trial import Evaluation, NoRoom, Outcome, Trial
from tests.helpers import evaluate, journal_lines, reported, table, table_without_run

SMALL = SvmGrid(3, dataset="digits", train_size=200, test_size=100)
DIGITS = ("--dataset", "digits", "--gpu", "none")


def study(experiment: SvmGrid, function: Callable[[Trial], Evaluation]) -> list[Outcome]:
    """Every trial takes two seconds."""
    outcomes = evaluate(experiment, objective=per_trial(function))
    return [Outcome(trial, replace(result, seconds=2.0)) for trial, result in outcomes]


def bowl(trial: Trial) -> Evaluation:
    """Errors whose least mean lies at C = 10^1.5, gamma = 10^-4."""
    if trial.key == "refit":
        return Evaluation("refit", {"test_error": 0.25, "n_support": 7}, {"predictions": np.zeros(100, np.uint8)})
    distance = abs(np.log10(trial.params["C"]) - 1.5) + abs(np.log10(trial.params["gamma"]) + 4)
    error = 0.1 + distance / 20 + (trial.segment.fold or 0) / 100
    return Evaluation(trial.key, {"error": error, "n_support": 9})


def failed(trial: Trial) -> Evaluation:
    return Evaluation(trial.key, error="Traceback (most recent call last):\n  ...\nMemoryError: no room\n")


# The search


def test_the_grid_is_the_published_one() -> None:
    grid = SvmGrid(24)
    assert (grid.penalties[0], grid.penalties[-1], len(grid.penalties)) == (1e-3, 1e6, 24)
    assert (grid.gammas[0], grid.gammas[-1], len(grid.gammas)) == (1e-6, 1e-2, 24)
    np.testing.assert_allclose(np.diff(np.log10(grid.penalties)), 9 / 23)
    assert (SvmGrid(1).penalties.tolist(), SvmGrid(1).gammas.tolist()) == ([1e-3], [1e-6])


def test_a_batch_is_every_penalty_of_one_gamma_in_all_folds_and_can_be_divided_by_fold() -> None:
    (search,) = SMALL.searches()
    batches = next(search)
    assert len(batches) == 3
    for batch in batches:
        assert len({trial.params["gamma"] for trial in batch}) == 1 and len(batch) == 5 * 3
        parts = SMALL.split_batch(batch)
        assert tuple(trial for part in parts for trial in part) == batch and len(parts) == 5
        for part in parts:
            assert len({trial.segment.fold for trial in part}) == 1
            assert [trial.params["C"] for trial in part] == SMALL.penalties.tolist()
    trials = [trial for batch in batches for trial in batch]
    assert len({trial.key for trial in trials}) == len(trials) == SMALL.n_trials() - 1
    assert trials[-1].key == "g02/c02/f4"
    assert json.loads(json.dumps(trials[-1].params)) == trials[-1].params


def test_points_short_of_tolerance_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def short(trial: Trial) -> Evaluation:
        result = bowl(trial)
        return replace(result, values={**result.values, "converged": float(trial.key != "g00/c02/f3")})

    reported(SMALL, study(SMALL, short), {}, tmp_path)
    assert "fits short of tolerance:  1 of 45" in capsys.readouterr().out
    said = {(row["gamma"], row["C"]): row["unconverged_folds"] for row in table(tmp_path / "results.csv")}
    assert said.pop(("1e-06", "1000000.0")) == "1" and set(said.values()) == {"0"}


# The objective


@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
def test_errors_are_those_of_scikit_learns_grid_search(multiclass: str) -> None:
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import SVC

    experiment = SvmGrid(
        3, dataset="digits", train_size=203, test_size=90, folds=2, multiclass=multiclass, solver="sklearn"
    )
    data = experiment.data()
    objective = experiment.objective(WorkerContext("cpu", data))
    (search,) = experiment.searches()
    results = [result for batch in next(search) for result in objective(batch)]
    refit_trial = next(iter(search.send(results)))[0]
    (refit,) = objective((refit_trial,))
    with pytest.raises(StopIteration) as end:
        search.send([refit])
    errors = end.value.value

    images = (data["train_images"].reshape(203, 64) - 8.0) / 4.62
    machine: Any = SVC() if multiclass == "ovo" else OneVsRestClassifier(SVC())
    prefix = "" if multiclass == "ovo" else "estimator__"
    points = {f"{prefix}C": experiment.penalties, f"{prefix}gamma": experiment.gammas}
    peer = GridSearchCV(machine, points, cv=KFold(2)).fit(images, data["train_labels"])
    expected = [peer.cv_results_[f"split{fold}_test_score"].reshape(3, 3).T for fold in range(2)]
    np.testing.assert_allclose(errors, 1 - np.array(expected), atol=1e-12)

    test_images = (data["test_images"].reshape(90, 64) - 8.0) / 4.62
    np.testing.assert_array_equal(refit.arrays["predictions"], peer.predict(test_images))
    assert refit.value("test_error") == np.mean(refit.arrays["predictions"] != data["test_labels"])
    assert 0 < refit.value("n_support") <= 203
    if multiclass == "ovo":
        assert refit.value("n_support") == peer.best_estimator_.n_support_.sum()


@pytest.mark.parametrize("solver", ["shared", "sklearn"])
@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
def test_part_of_a_batch_gives_the_same_results(solver: str, multiclass: str) -> None:
    experiment = replace(SMALL, solver=solver, multiclass=multiclass)
    objective = experiment.objective(WorkerContext("cpu", experiment.data()))
    (search,) = experiment.searches()
    batch = next(search)[1]
    whole = {result.key: result.values for result in objective(batch)}
    assert list(whole) == [trial.key for trial in batch]
    assert [result.key for result in objective(batch[::-1])] == [trial.key for trial in batch[::-1]]
    for part in experiment.split_batch(batch):
        assert {result.key: result.values for result in objective(part)} == {t.key: whole[t.key] for t in part}
    # After a crash the rest of a batch: other C to start from, so the same within the solver's tolerance.
    for result in objective(batch[4:]):
        assert result.values["error"] == pytest.approx(whole[result.key]["error"], abs=1 / 40)


def test_cuml_without_a_gpu_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match=r"cuml needs a GPU.*--solver shared"):
        SvmGrid(3, solver="cuml").check("cpu", "")


def test_the_memory_plan_is_the_grids_whatever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a resume the first batch may be a single point; the plan has room for the largest one all the same."""
    from mnist_svm import solvers

    planned = []

    def keep(samples: Any, multiclass: str, n_points: int, *others: Any) -> Any:
        planned.append(n_points)
        return kept(samples, multiclass, n_points, *others)

    kept = solvers.keep
    monkeypatch.setattr(solvers, "keep", keep)
    experiment = replace(SMALL, solver="shared")
    (search,) = experiment.searches()
    batch = next(search)[0]
    for first in (batch, batch[-1:]):
        list(experiment.objective(WorkerContext("cpu", experiment.data()))(first))
    assert planned == [15, 15]


def test_what_a_worker_has_no_memory_for_is_left_open() -> None:
    experiment = replace(SMALL, solver="shared", memory=0.1)
    (search,) = experiment.searches()
    batch = next(search)[0]
    answers = list(experiment.objective(WorkerContext("cpu", experiment.data()))(batch))
    assert [answer.key for answer in answers] == [trial.key for trial in batch]
    assert all(isinstance(answer, NoRoom) and "0.10 GB are allowed" in answer.reason for answer in answers)


@pytest.mark.gpu
@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
def test_cuml_agrees_with_scikit_learn(multiclass: str) -> None:
    pytest.importorskip("cuml")
    data = SvmGrid(1, dataset="digits").data()
    images, test_images = (standardised(data[f"{part}_images"], 16) for part in ("train", "test"))
    for penalty, gamma in ((0.1, 1e-2), (10.0, 1e-3), (1e4, 1e-4)):
        ours, peer = (
            fit(images, data["train_labels"], test_images, penalty=penalty, gamma=gamma, multiclass=multiclass)
            for fit in (fit_cuml, fit_sklearn)
        )
        assert np.mean(ours.predictions != peer.predictions) <= 0.01
        assert ours.n_support == pytest.approx(peer.n_support, rel=0.02)


# A class that a fold does not have


def test_a_class_missing_from_a_folds_training_part_is_named() -> None:
    labels = np.array([0, 1, 0, 1, 7, 7, 0, 1])
    with pytest.raises(ValueError, match=r"fold 1 holds .* class 7"):
        check_classes(labels, 2)
    check_classes(labels, 8)
    with pytest.raises(ValueError, match="all of class 4"):
        check_classes(np.array([4, 4, 4]), 2)


def test_too_few_images_are_refused_before_any_worker_starts() -> None:
    with pytest.raises(UsageError, match=r"fold 0 .* class 0.*--train-size"):
        SvmGrid(2, dataset="digits", train_size=10).data()


# The report


def test_the_report_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported(SMALL, study(SMALL, bowl), {}, tmp_path)
    out = capsys.readouterr().out
    for line in ("best penalty C:           31.6228", "best kernel parameter:    0.0001"):
        assert line in out
    assert "cross-validation error:   12.0000%" in out
    assert {path.name for path in tmp_path.iterdir()} <= set(SMALL.reporting().files or ())
    assert "test error:               25.0000%" in out

    errors = np.load(tmp_path / "validation_error.npy")
    assert (errors.shape, errors.dtype) == ((5, 3, 3), np.float64)
    rows = table(tmp_path / "results.csv")
    assert [(float(row["gamma"]), float(row["C"])) for row in rows] == [
        (gamma, c) for gamma in SMALL.gammas for c in SMALL.penalties
    ]
    for row, fold_errors in zip(rows, errors.reshape(5, 9).T, strict=True):
        assert [float(row[f"error_{fold}"]) for fold in range(5)] == fold_errors.tolist()
        assert float(row["mean"]) == fold_errors.mean()
        assert float(row["standard_deviation"]) == fold_errors.std()
        assert float(row["seconds"]) == 10
        assert row["error"] == ""
    best = json.loads((tmp_path / "best.json").read_text())
    assert (best["C"], best["gamma"]) == (SMALL.penalties[1], SMALL.gammas[1])
    assert (best["test_error"], best["n_support"], best["failed_fits"]) == (0.25, 7, 0)
    figures = {"heat_map", "figures/gamma_00", "figures/gamma_01", "figures/gamma_02"}
    assert all((tmp_path / f"{figure}.{kind}").stat().st_size for figure in figures for kind in ("svg", "png"))


def test_a_study_in_which_all_failed_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = study(SMALL, failed)
    assert len(outcomes) == SMALL.n_trials() - 1, "nothing is refitted"
    reported(SMALL, outcomes, {}, tmp_path)
    assert "no best point" in capsys.readouterr().out
    assert json.loads((tmp_path / "best.json").read_text())["C"] is None


def test_failures_are_in_the_table_and_never_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"g01/c01/f2", "refit"}
    reported(SMALL, study(SMALL, lambda trial: failed(trial) if trial.key in lost else bowl(trial)), {}, tmp_path)
    out = capsys.readouterr().out
    assert "test error:               not known: the refit failed" in out
    assert "failed fits:              1 of 45" in out
    row = table(tmp_path / "results.csv")[4]
    assert (row["error_1"], row["error_2"], row["mean"]) == ("0.11", "nan", "nan")
    assert row["error"] == "MemoryError: no room"
    best = json.loads((tmp_path / "best.json").read_text())
    assert (best["C"], best["gamma"]) == (SMALL.penalties[1], SMALL.gammas[0])
    assert (best["test_error"], best["failed_fits"]) == (None, 1)


# The program


@pytest.mark.slow
def test_the_program_gives_the_same_table_on_one_process_and_on_two_ranks(
    program: Callable[..., Any], tmp_path: Path
) -> None:
    """The one process is this one, which has scikit-learn and the compiled solver already."""
    experiment = SvmGrid(2, dataset="digits", train_size=200)
    run_study(experiment, RunOptions(workers=0, results=tmp_path / "one", quiet=True))
    command = ("-m", "mnist_svm", 2, *DIGITS, "--train-size", 200, "--workers", 1, "--results", tmp_path / "two")
    assert "best penalty C:" in program(*command, ranks=2).stdout
    for name in ("validation_error.npy", "best.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tables = [table_without_run(tmp_path / folder / "results.csv") for folder in ("one", "two")]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_worker_is_replaced_after_so_many_tuning_parameters(program: Any, tmp_path: Path) -> None:
    """Batches are of three parameter sets, all folds together; a batch is not divided."""
    command = ("-m", "mnist_svm", 3, *DIGITS, "--train-size", 200, "--workers", 1, "--solver", "sklearn", "-v")
    said = program(*command, "--batch", 6, "--results", tmp_path / "r").stderr
    assert said.count("replaced after 2 batches") == said.count("replaced after") == 1, said


@pytest.mark.slow
def test_a_finer_grid_uses_the_points_that_both_have(tmp_path: Path) -> None:
    options = RunOptions(workers=0, results=tmp_path / "r", quiet=True)
    coarse, fine = replace(SMALL, n_tuning=2, solver="sklearn"), replace(SMALL, n_tuning=3, solver="sklearn")
    run_study(coarse, options)
    known = {line["ended"] for line in journal_lines(tmp_path / "r")}
    with pytest.raises(UsageError, match=r"n_tuning = 2, not 3: .*adapt=True to use its results in this one"):
        run_study(fine, options)
    run_study(fine, replace(options, adapt=True))
    ends = [line["ended"] for line in journal_lines(tmp_path / "r")]
    assert len(ends) == 9 * 5 + 1 and sum(end in known for end in ends) >= 4 * 5
    run_study(fine, replace(options, results=tmp_path / "fresh"))
    tables = (table_without_run(tmp_path / name / "results.csv") for name in ("r", "fresh"))
    assert len(set(tables)) == 1
