"""--strategy and --racing: even draws, and folds and epochs that are spared."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mnist_nn.experiment import Bagging
from mnist_nn.keys import EPOCH_LIMIT, refit_key
from mnist_nn.tuning import STRATEGIES, Ranges, best_set
from mpitune import per_trial
from mpitune.experiment import WorkerContext
from mpitune.trial import Evaluation, Rounds, Trial
from tests.helpers import ROOT, evaluate, table_without_run
from tests.mnist_nn.small import FULL


def losses_of(experiment: Bagging) -> list[Any]:
    """All trials of a study whose sets differ much, and folds little."""

    def invented(trial: Any) -> Evaluation:
        if "fold" not in trial.params:
            return Evaluation(trial.key, {"loss": 0.0})
        number, fold = int(trial.params["tuning"]), int(trial.params["fold"])
        loss = number + 0.3 * fold + 0.01 * np.random.default_rng([number, fold]).normal()
        return Evaluation(trial.key, {"loss": float(loss), "epochs": float(experiment.epochs)})

    return evaluate(experiment, objective=per_trial(invented))


def asked(search: Rounds) -> list[dict[str, Any]]:
    """The parameter sets of the first round."""
    firsts = (trial for batch in next(search) for trial in batch if trial.params["fold"] == 0)
    return [{name: value for name, value in trial.params.items() if name != "fold"} for trial in firsts]


def test_even_draws_are_within_the_bounds_and_can_go_on() -> None:
    few, many = (replace(FULL, n_tuning=n, strategy="sobol", max_conv_layer=1) for n in (4, 64))
    sets, other = (asked(search) for search in many.searches())
    assert asked(next(iter(few.searches()))) == sets[:4] and other[0] != sets[0]
    assert {s["n_conv_layer"] for s in sets} == {1} and {s["n_hidden_layer"] for s in sets} == set(range(1, 17))
    rates = np.log10([float(s["learning_rate"]) for s in sets])
    assert np.histogram(rates, 4, (-5, -1))[0].min() >= 12
    assert all(2 <= int(s["kernel_size"]) <= 8 and 0.01 <= float(s["momentum"]) <= 1 for s in sets)


def test_the_draws_stay_the_same_and_are_within_ranges_that_can_be_given() -> None:
    """The page of small runs says what the ranges are."""
    second = asked(next(iter(replace(FULL, max_conv_layer=999, max_hidden_layer=1999).searches())))[1]
    assert second == {
        "bootstrap": 0, "tuning": 1, "n_conv_layer": 27, "kernel_size": 4, "n_hidden_layer": 434,
        "learning_rate": 0.00014822159030369612, "momentum": 0.029122412230617345,
    }  # fmt: skip
    for strategy in STRATEGIES[:3]:
        given = replace(
            FULL, n_tuning=40, strategy=strategy, min_learning_rate=0.01, min_momentum=0.5, max_momentum=0.5
        )
        sets = asked(next(iter(given.searches())))
        rates = [float(each["learning_rate"]) for each in sets]
        assert 0.01 <= min(rates) < 0.02 and 0.05 < max(rates) <= 0.1
        assert [each["momentum"] for each in sets] == pytest.approx([0.5] * len(sets))
    with pytest.raises(ValueError, match=r"--min-momentum 0.9 is above --max-momentum 0.8: give a smaller one"):
        replace(FULL, min_momentum=0.9, max_momentum=0.8)
    page = (ROOT / "docs" / "small-runs.md").read_text()
    for low, high in Ranges():
        assert f"| {low:g} | {high:g}" in page


def test_racing_drops_losers_and_keeps_the_winner() -> None:
    whole, raced = replace(FULL, folds=5), replace(FULL, folds=5, racing=True)
    all_trials, fewer = losses_of(whole), losses_of(raced)
    assert len(fewer) < 0.8 * len(all_trials)
    chosen = [o.trial.params for o in fewer if "fold" not in o.trial.params]
    assert chosen == [o.trial.params for o in all_trials if "fold" not in o.trial.params] and len(chosen) == 2
    assert {refit_key(0), refit_key(1)} <= {o.trial.key for o in fewer}
    assert best_set(np.array([[1.0, np.nan], [2.0, 2.0]])) == 1


def of_rate(experiment: Bagging, ends: bool = False) -> list[Any]:
    """All trials of a study whose loss is best at a learning rate of 0.001, and falls with the epochs."""

    def invented(trial: Any) -> Evaluation:
        if "fold" not in trial.params:
            return Evaluation(trial.key, {"loss": 0.0})
        epochs = 1.0 if ends else float(trial.params.get(EPOCH_LIMIT, experiment.epochs))
        off = abs(np.log10(float(trial.params["learning_rate"])) + 3)
        if trial.params["tuning"] == 3:
            return Evaluation(trial.key, error="it was killed")
        return Evaluation(trial.key, {"loss": off + 1 / epochs + 0.01 * int(trial.params["fold"]), "epochs": epochs})

    return evaluate(experiment, objective=per_trial(invented))


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


def test_hyperband_trains_most_sets_for_a_few_epochs(tmp_path: Any) -> None:
    experiment = replace(FULL, n_bootstrap=1, n_tuning=17, epochs=9, strategy="hyperband")
    outcomes = of_rate(experiment)
    lengths = Counter(int(o.trial.params.get(EPOCH_LIMIT, 9)) for o in outcomes if "fold" in o.trial.params)
    assert lengths == {1: 9 * 2, 3: (3 + 5) * 2, 9: (1 + 1 + 3) * 2}
    whole = {o.trial.params["tuning"]: o.result.value("loss") for o in outcomes if o.trial.key.count("/") == 2}
    assert outcomes[-1].trial.params["tuning"] == min(whole, key=lambda n: whole[n])
    ended = of_rate(experiment, ends=True)  # by themselves, after their first epoch
    assert Counter(o.trial.key.split("/")[1] for o in ended if "fold" in o.trial.params).most_common(1)[0][1] <= 2 * 2


def test_the_first_epochs_of_a_training_are_the_same_however_far_it_goes() -> None:
    """And cost their share of it."""
    one, data = replace(FULL, epochs=1), FULL.data()
    trial = next(next(iter(FULL.searches())))[0][0]
    first = Trial(trial.key + "/e1", {**trial.params, EPOCH_LIMIT: 1})
    (short,) = FULL.objective(WorkerContext("cpu", data))((first,))
    (full,) = one.objective(WorkerContext("cpu", data))((trial,))
    assert short.values == full.values and short.key != full.key
    assert FULL.cost(first) == pytest.approx(FULL.cost(trial) / FULL.epochs)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["hyperband", "sobol --racing"])
def test_an_adaptive_study_is_the_same_on_any_layout(program: Any, strategy: str, tmp_path: Any) -> None:
    arguments = [
        "-m", "mnist_nn", "--dataset", "digits", "--train-size", 100, "--test-size", 40, "--folds", 2,
        "--max-channels", 4, "--max-hidden-layer", 16, "--epochs", 3, "--gpu", "none", "--plot", 0, "--strategy",
        *strategy.split(),
    ]  # fmt: skip
    program(*arguments, "--workers", 1, "--results", tmp_path / "a", 2, 10)
    program(*arguments, "--workers", 1, "--results", tmp_path / "b", 2, 10, ranks=2)
    for name in ("results.csv", "trials.csv"):
        one, many = (table_without_run(tmp_path / layout / name) for layout in "ab")
        assert one == many and len(one.splitlines()) > 2
    again = program(*arguments, "--workers", 1, "--results", tmp_path / "a", 2, 10)
    assert "ensemble of 2" in again.stdout
