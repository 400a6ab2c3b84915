"""Which network is trained: the best of a search, or that of the Kubeflow example."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from common.images import outer_of
from mnist_nn.tuning import HYPERPARAMETERS, best_set
from mpitune.errors import UsageError
from mpitune.storage.history import History, read_journal

Parameters = dict[str, float | int | str]

KUBEFLOW: Parameters = {"network": "kubeflow"}


def best_of(folder: Path) -> Parameters:
    """The parameters with the lowest mean validation loss among all bootstrap samples of a search.

    Only sets whose folds are all known take part, so a search that still runs can be asked too.

    Raises:
        UsageError: the folder holds no search of mnist_nn, or one without such a set.
    """
    history = read_journal(folder)
    if history is None:
        raise UsageError(f"{folder} holds no search: give the results folder of mnist_nn")
    settings = history.header["settings"]
    if settings["experiment"] != "mnist_nn":
        raise UsageError(f"{folder} holds a study of {settings['experiment']}: give the results folder of mnist_nn")
    try:
        sets = _sets(history, int(settings["folds"]))
        best = best_set(np.array([losses for _, losses in sets])) if sets else None
        if best is None:
            raise UsageError(f"{folder} holds no parameter set with a finite loss on every fold: continue the search")
        params = sets[best][0]
        return {"network": "search", **{name: params[name] for name in HYPERPARAMETERS}}
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder} holds no search of mnist_nn as this version writes it ({error!r})") from error


def _sets(history: History, folds: int) -> list[tuple[Parameters, list[float]]]:
    """Each parameter set whose folds are all known, in the order of its sample and number, with their losses."""
    losses: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    params: dict[tuple[int, int], Parameters] = {}
    for key, trial in history.trials.items():
        if "fold" in trial.params and outer_of(trial) is None:
            number = int(trial.params["bootstrap"]), int(trial.params["tuning"])
            losses[number][int(trial.params["fold"])] = history.results[key].value("loss")
            params[number] = dict(trial.params)
    whole = sorted(number for number, known in losses.items() if len(known) == folds)
    return [(params[number], [losses[number][fold] for fold in range(folds)]) for number in whole]
