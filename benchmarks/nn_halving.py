"""What `--halving` saves and what it costs: the same searches with and without it.

    python -m benchmarks.nn_halving --data DIR [--etas 2 3 4] [--results FILE]

Without halving every parameter set of every bootstrap sample is cross-validated to its own end. With it the same
trainings are asked for, rung by rung; a training that is continued begins again, and every epoch of it is counted.
As the first epochs of a training are the same in both searches to the last bit, so are the losses of the sets
that come to the last rung. Regret is how much higher the cross-validation loss of the chosen set is than that of
the best one, both trained to their end. Work is epochs times weights, as large networks take longer.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import circumstances, publish, table
from mnist_nn import training
from mnist_nn.experiment import Bagging
from mpitune import evaluate
from mpitune.experiment import Objective, WorkerContext
from mpitune.trial import Outcome


def run(experiment: Bagging, objective: Objective, known: list[Outcome]) -> list[Outcome]:
    """The outcomes of a search; a fold that is known already is not trained again, since it would be the same."""
    return evaluate(experiment, objective=objective, known=[one for one in known if "fold" in one.trial.params])


def work(experiment: Bagging, outcomes: list[Outcome]) -> tuple[float, float]:
    """Epochs of the cross-validation, and epochs times weights."""
    epochs = [(result.value("epochs"), experiment.n_weights(t.params)) for t, result in outcomes if "fold" in t.params]
    return sum(n for n, _ in epochs), sum(n * weights for n, weights in epochs)


def chosen(outcomes: list[Outcome]) -> dict[int, Outcome]:
    """The refit of each bootstrap sample."""
    return {
        int(outcome.trial.params["bootstrap"]): outcome for outcome in outcomes if "fold" not in outcome.trial.params
    }


def cv_loss(outcomes: list[Outcome], bootstrap: int, tuning: int) -> float:
    key = f"b{bootstrap}/t{tuning}/f"
    return float(np.mean([result.value("loss") for trial, result in outcomes if trial.key.startswith(key)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of MNIST")
    parser.add_argument("--bootstraps", type=int, default=6, metavar="N")
    parser.add_argument("--tuning", type=int, default=18, metavar="N", help="parameter sets per bootstrap sample")
    parser.add_argument("--folds", type=int, default=3, metavar="N")
    parser.add_argument("--images", type=int, default=1000, metavar="N")
    parser.add_argument("--channels", type=int, default=16, metavar="N", help="most channels")
    parser.add_argument("--units", type=int, default=128, metavar="N", help="most hidden units")
    parser.add_argument("--etas", type=int, nargs="+", default=[2, 3, 4], metavar="ETA")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training.prepare(torch.device("cpu"))
    full = Bagging(
        options.bootstraps,
        options.tuning,
        data_folder=options.data,
        train_size=options.images,
        folds=options.folds,
        max_conv_layer=options.channels,
        max_hidden_layer=options.units,
    )
    objective = full.objective(WorkerContext("cpu", full.data()))
    reference = run(full, objective, [])
    best = chosen(reference)
    epochs, moved = work(full, reference)
    errors = np.mean([outcome.result.value("test_error") for outcome in best.values()])
    rows = [
        {
            "halving": "off",
            "epochs": f"{epochs:.0f}",
            "saved, epochs": "1.00",
            "saved, work": "1.00",
            "same set chosen": f"{len(best)} of {len(best)}",
            "regret of CV loss, mean": "0.0%",
            "largest": "0.0%",
            "test error, mean": f"{errors:.2%}",
        }
    ]
    for eta in options.etas:
        halved = replace(full, halving=eta)
        outcomes = run(halved, objective, reference)
        found = chosen(outcomes)
        regrets, same = [], 0
        for bootstrap, outcome in best.items():
            tunings = [int(one.trial.params["tuning"]) for one in (found[bootstrap], outcome)]
            losses = [cv_loss(reference, bootstrap, tuning) for tuning in tunings]
            same += tunings[0] == tunings[1]
            regrets.append(losses[0] / losses[1] - 1)
        halved_epochs, halved_moved = work(halved, outcomes)
        errors = np.mean([outcome.result.value("test_error") for outcome in found.values()])
        rows.append(
            {
                "halving": str(eta),
                "epochs": f"{halved_epochs:.0f}",
                "saved, epochs": f"{epochs / halved_epochs:.2f}",
                "saved, work": f"{moved / halved_moved:.2f}",
                "same set chosen": f"{same} of {len(best)}",
                "regret of CV loss, mean": f"{np.mean(regrets):.1%}",
                "largest": f"{max(regrets):.1%}",
                "test error, mean": f"{errors:.2%}",
            }
        )
    facts = dict(
        bootstraps=options.bootstraps,
        sets=options.tuning,
        folds=options.folds,
        images=options.images,
        channels=f"1..{options.channels}",
        units=f"1..{options.units}",
        epochs=f"at most {full.epochs}",
    )
    publish(circumstances("torch", "numba", **facts) + "\n\n" + table(rows), options.results)


if __name__ == "__main__":
    main()
