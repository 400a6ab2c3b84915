"""Tables and printed summary of the ensemble: how good its networks are, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnist_nn.bootstrap import majority_vote
from mnist_nn.shapes import Params
from mnist_nn.tuning import HYPERPARAMETERS
from mpitune.figures import statistics
from mpitune.figures.statistics import interval_text
from mpitune.figures.winner import Winner
from mpitune.storage.table import last_line
from mpitune.trial import Result


def network_row(
    bootstrap: int, losses: np.ndarray, *, params: Params, refit: Result | None, seconds: float
) -> dict[str, Any]:
    """The choice of a bootstrap sample and the results of its network; `error` says why it has none.

    losses: float64 (n_tuning, folds), what its search returned. params: of the chosen set; empty where there is none.
    seconds: of all trials of the sample.
    """
    nan = float("nan")
    row: dict[str, Any] = {"bootstrap": bootstrap}
    row.update({name: params.get(name, nan) for name in ("tuning", *HYPERPARAMETERS)})
    row["cv_loss"] = float(losses[int(params["tuning"])].mean()) if params else nan
    sets = [{"tuning": n} for n in range(len(losses))]
    row["sets_as_good"] = len(Winner(losses, sets, maximize=False).as_good) if params else 0
    for name in ("train_error", "test_error", "epochs"):
        row[name] = refit.values.get(name, nan) if refit else nan
    row["seconds"] = f"{seconds:.6g}"
    row["place"] = str(refit.place) if refit else ""
    if refit is None:
        row["error"] = "no parameter set has a finite loss on every fold"
    elif refit.failed:
        row["error"] = last_line(refit.error) or "its training failed"
    else:
        row["error"] = "" if refit.arrays else "its training diverged"
    return row


def print_networks(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each network, on standard output."""
    print("network  test error  training error  CV loss  channels  kernel  hidden  learning rate  momentum")
    for row in rows:
        if row["error"]:
            print(f"{row['bootstrap']:>7}  no network: {row['error']}")
        else:
            print(
                f"{row['bootstrap']:>7}  {row['test_error']:>10.2%}  {row['train_error']:>14.2%}"
                f"  {row['cv_loss']:>7.4f}  {row['n_conv_layer']:>8}  {row['kernel_size']:>6}"
                f"  {row['n_hidden_layer']:>6}  {row['learning_rate']:>13.3g}  {row['momentum']:>8.3g}"
            )


def print_ensemble(probabilities: np.ndarray, labels: np.ndarray) -> None:
    """What the networks, (n_networks, n_test, n_classes), achieve together, on standard output."""
    mean = probabilities.mean(axis=0)
    vote, wrong = np.mean(majority_vote(probabilities) != labels), mean.argmax(axis=1) != labels
    print(
        f"ensemble of {len(probabilities)}, test error: {vote:.2%} by majority vote, {np.mean(wrong):.2%} "
        f"by mean probability{interval_text(statistics.proportion(int(wrong.sum()), len(labels)))}"
    )
