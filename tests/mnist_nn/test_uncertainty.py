"""Out-of-bag errors and the choice of a simpler network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mnist_nn.bootstrap import bootstrap_sample, out_of_bag
from mpitune.experiment import per_trial
from mpitune.trial import Evaluation, Trial, seed_of
from tests.helpers import evaluate, reported, table
from tests.mnist_nn.small import TINY, computed, of_tiny

pytestmark = of_tiny


def test_the_report_says_how_sure_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, results = replace(TINY, plot=0), {trial.key: result for trial, result in computed()}
    data = experiment.data()
    reported(experiment, computed(), data, tmp_path)
    printed = capsys.readouterr().out
    labels = data["train_labels"]

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

    experiment = replace(TINY, plot=0, n_tuning=6)
    for rule, names in (("best", "refit"), ("1se", "refit-1se"), ("simplest", "refit-simplest")):
        outcomes = evaluate(replace(experiment, select=rule), objective=per_trial(invented))
        refits = {trial.key: trial for trial, _ in outcomes if "fold" not in trial.params}
        assert list(refits) == [f"b0/{names}", f"b1/{names}"]
        for refit in refits.values():
            own = [trial for trial, _ in outcomes if trial.params["bootstrap"] == refit.params["bootstrap"]]
            weights = {int(trial.params["tuning"]): experiment.n_weights(trial.params) for trial in own}
            lightest = min((n, tuning) for tuning, n in weights.items() if tuning != 0)[1]
            assert refit.params["tuning"] == (lightest if rule == "1se" else 3)
