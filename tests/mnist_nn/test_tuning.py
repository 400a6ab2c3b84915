"""What is drawn, at random or by --strategy tpe."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mnist_nn.experiment import Bagging
from mnist_nn.tuning import STRATEGIES, Ranges
from mpitune import evaluate, per_trial
from mpitune.trial import Evaluation, Rounds
from tests.helpers import ROOT, table_without_run
from tests.mnist_nn.small import FULL


def asked(search: Rounds) -> list[dict[str, Any]]:
    """The parameter sets of the first round."""
    firsts = (trial for batch in next(search) for trial in batch if trial.params["fold"] == 0)
    return [{name: value for name, value in trial.params.items() if name != "fold"} for trial in firsts]


def of_rate(experiment: Bagging) -> list[Any]:
    """All trials of a study whose loss is best at a learning rate of 0.001."""

    def invented(trial: Any) -> Evaluation:
        if "fold" not in trial.params:
            return Evaluation(trial.key, {"loss": 0.0})
        off = abs(np.log10(float(trial.params["learning_rate"])) + 3)
        if trial.params["tuning"] == 3:
            return Evaluation(trial.key, error="it was killed")
        return Evaluation(trial.key, {"loss": off + 0.01 * int(trial.params["fold"])})

    return evaluate(experiment, objective=per_trial(invented))


def test_the_draws_stay_the_same_and_are_within_ranges_that_can_be_given() -> None:
    """The page of small runs says what the ranges are."""
    second = asked(next(iter(replace(FULL, max_conv_layer=999, max_hidden_layer=1999).searches())))[1]
    assert second == {
        "bootstrap": 0, "tuning": 1, "n_conv_layer": 27, "kernel_size": 4, "n_hidden_layer": 434,
        "learning_rate": 0.00014822159030369612, "momentum": 0.029122412230617345,
    }  # fmt: skip
    for strategy in STRATEGIES:
        given = replace(
            FULL, n_tuning=40, strategy=strategy, min_learning_rate=0.01, min_momentum=0.5, max_momentum=0.5
        )
        sets = [o.trial.params for o in of_rate(given)]
        rates = [float(each["learning_rate"]) for each in sets]
        assert 0.01 <= min(rates) < 0.02 and 0.05 < max(rates) <= 0.1
        assert [each["momentum"] for each in sets] == pytest.approx([0.5] * len(sets))
    with pytest.raises(ValueError, match=r"--min-momentum 0.9 is above --max-momentum 0.8: give a smaller one"):
        replace(FULL, min_momentum=0.9, max_momentum=0.8)
    page = (ROOT / "docs" / "small-runs.md").read_text()
    for low, high in Ranges():
        assert f"| {low:g} | {high:g}" in page


def test_tpe_proposes_what_is_better() -> None:
    experiment = replace(FULL, n_tuning=32, strategy="tpe")
    outcomes = of_rate(experiment)
    again, other = ([o.trial for o in of_rate(replace(experiment, seed=seed))] for seed in (0, 1))
    assert [o.trial for o in outcomes] == again != other
    for bootstrap in range(2):
        mine = [o for o in outcomes if o.trial.params["bootstrap"] == bootstrap]
        folds = [o for o in mine if "fold" in o.trial.params]
        assert len(folds) == 32 * 2 and len(mine) == len(folds) + 1
        losses = {int(o.trial.params["tuning"]): o.result.value("loss") for o in folds}
        assert np.nanmean([losses[n] for n in range(16, 32)]) < np.nanmean([losses[n] for n in range(8)])
        best = min(losses, key=lambda n: (np.isnan(losses[n]), losses[n]))
        assert mine[-1].trial.params["tuning"] == best and mine[-1].trial.key == f"b{bootstrap}/refit"


@pytest.mark.slow
def test_an_adaptive_study_is_the_same_on_any_layout(program: Any, tmp_path: Any) -> None:
    arguments = [
        "-m", "mnist_nn", "--dataset", "digits", "--train-size", 100, "--test-size", 40, "--folds", 2,
        "--max-channels", 4, "--max-hidden-layer", 16, "--epochs", 3, "--gpu", "none", "--plot", 0, "--strategy", "tpe",
    ]  # fmt: skip
    program(*arguments, "--workers", 1, "--results", tmp_path / "a", 2, 10)
    program(*arguments, "--workers", 1, "--results", tmp_path / "b", 2, 10, ranks=2)
    for name in ("results.csv", "trials.csv"):
        one, many = (table_without_run(tmp_path / layout / name) for layout in "ab")
        assert one == many and len(one.splitlines()) > 2
    again = program(*arguments, "--workers", 1, "--results", tmp_path / "a", 2, 10)
    assert "ensemble of 2" in again.stdout
