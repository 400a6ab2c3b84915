"""How sure the report of an ensemble is: out-of-bag errors, the hardest images, a paired test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mnist_nn.bootstrap import bootstrap_sample, out_of_bag
from mnist_nn.keys import refit_key
from mpitune.trial import seed_of
from tests.helpers import reported, table
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
        refit = results[refit_key(b, True)]
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
    assert "images corrected, " in printed and (tmp_path / "calibration.svg").exists()
