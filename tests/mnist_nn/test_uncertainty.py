"""Nested cross-validation, out-of-bag errors and the choice of a simpler network."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from common.images import outer_split
from mnist_nn.bootstrap import bootstrap_sample, out_of_bag
from mpitune.experiment import WorkerContext, per_trial
from mpitune.trial import Evaluation, Outcome, Trial, seed_of
from tests.helpers import evaluate, reported, table
from tests.mnist_nn.small import TINY, computed, of_tiny

pytestmark = of_tiny
NESTED = replace(TINY, plot=0, outer_folds=2)


@cache
def whole_search() -> list[Outcome]:
    return evaluate(NESTED)


def test_a_nested_search_never_sees_its_outer_fold() -> None:
    """Other images there change the answers to them, and nothing else."""
    data = NESTED.data()
    changed = {**data, "train_images": data["train_images"].copy()}
    changed["train_images"][outer_split(150, (1, 2))[1]] = 0
    of_search = [outcome for outcome in whole_search() if outcome.trial.key.startswith("o1of2/b0/")]
    assert len(of_search) == 2 * 3 + 1 and len(whole_search()) == NESTED.n_trials() == 3 * 2 * 7
    objective = NESTED.objective(WorkerContext("cpu", changed))
    for trial, known in of_search:
        (again,) = objective((trial,))
        same = {name: value for name, value in known.values.items() if name != "outer_error"}
        assert same.items() <= again.values.items(), trial.key
        for name, answers in known.arrays.items():
            assert name == "outer_probabilities" and not np.array_equal(answers, again.arrays[name])


def test_the_plain_search_is_the_same_with_and_without_outer_folds() -> None:
    of_all = {trial.key: result.values for trial, result in whole_search()}
    assert computed() and all(of_all[trial.key] == result.values for trial, result in computed())


def test_the_report_says_how_sure_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, results = NESTED.data(), {trial.key: result for trial, result in whole_search()}
    reported(NESTED, whole_search(), data, tmp_path)
    printed = capsys.readouterr().out
    labels = data["train_labels"]

    nested = table(tmp_path / "nested.csv")
    for number, row in enumerate(nested):
        truth = labels[outer_split(150, (number, 2))[1]]
        answers = [results[f"o{number}of2/b{b}/refit"].arrays["outer_probabilities"] for b in range(2)]
        assert float(row["error"]) == np.mean(np.mean(answers, axis=0).argmax(axis=1) != truth)
    error = np.mean([float(row["error"]) for row in nested])
    assert f"nested cross-validation: {error:.2%} (95 % interval " in printed

    total = np.zeros((150, 10))
    for b, row in enumerate(table(tmp_path / "results.csv")):
        refit = results[f"b{b}/refit"]
        outside = out_of_bag(bootstrap_sample(150, 3, seed_of(0, f"b{b}")))
        answered = refit.arrays["oob_probabilities"]
        assert float(row["oob_error"]) == np.mean(answered.argmax(axis=1) != labels[outside])
        total[outside] += answered
    judged = total.any(axis=1)
    together = np.mean(total.argmax(axis=1)[judged] != labels[judged])
    assert 0 < judged.sum() < 150 and f"out-of-bag error: {together:.2%} (95 % interval" in printed

    hardest = table(tmp_path / "hardest.csv")
    sure = [float(row["certainty"]) for row in hardest]
    assert len(hardest) == 40 and sure == sorted(sure)
    with np.load(tmp_path / "predictions.npz") as file:
        answers = file["probabilities"].argmax(axis=2)
    assert all(row["networks"] == " ".join(map(str, answers[:, int(row["test_image"])])) for row in hardest)
    assert "McNemar's test: p = " in printed and (tmp_path / "calibration.svg").exists()


def test_a_simpler_network_is_chosen_among_those_that_are_as_good() -> None:
    """Set 3 is best; set 0 is far worse; the others lie within a standard error of the best."""

    def invented(trial: Trial) -> Evaluation:
        if "fold" not in trial.params:
            return Evaluation(trial.key, {})
        tuning, fold = int(trial.params["tuning"]), int(trial.params["fold"])
        loss = 1.0 + 0.2 * fold + (0.0 if tuning == 3 else 5.0 if tuning == 0 else 0.01)
        return Evaluation(trial.key, {"loss": loss, "epochs": 3.0})

    experiment = replace(NESTED, n_tuning=6, outer_folds=None)
    for rule, names in (("best", "refit"), ("1se", "refit-1se"), ("simplest", "refit-simplest")):
        outcomes = evaluate(replace(experiment, select=rule), objective=per_trial(invented))
        refits = {trial.key: trial for trial, _ in outcomes if "fold" not in trial.params}
        assert list(refits) == [f"b0/{names}", f"b1/{names}"]
        for refit in refits.values():
            own = [trial for trial, _ in outcomes if trial.params["bootstrap"] == refit.params["bootstrap"]]
            weights = {int(trial.params["tuning"]): experiment.n_weights(trial.params) for trial in own}
            lightest = min((n, tuning) for tuning, n in weights.items() if tuning != 0)[1]
            assert refit.params["tuning"] == (lightest if rule == "1se" else 3)
