"""How sure the report of an ensemble is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import reported, table
from tests.mnist_nn.small import TINY, computed, of_tiny

pytestmark = of_tiny


def test_the_report_says_how_sure_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = replace(TINY, plot=0)
    reported(experiment, computed(), experiment.data(), tmp_path)
    printed = capsys.readouterr().out
    hardest = table(tmp_path / "hardest.csv")
    sure = [float(row["certainty"]) for row in hardest]
    assert len(hardest) == 40 and sure == sorted(sure)
    with np.load(tmp_path / "predictions.npz") as file:
        answers = file["probabilities"].argmax(axis=2)
    assert all(row["networks"] == " ".join(map(str, answers[:, int(row["test_image"])])) for row in hardest)
    assert "two of its networks differ on " in printed and (tmp_path / "calibration.svg").exists()
