"""Hyperparameter search on all devices of a laptop or a cluster: the names that users import.

    from common import Choice, Float, Int, search

    def objective(trial):
        return {"loss": (trial.params["lr"] - 0.01) ** 2 + abs(trial.params["units"] - 64)}

    space = {"lr": Float(1e-5, 1e-1, log=True), "units": Int(8, 512, log=True), "act": Choice("relu", "gelu")}
    study = search(objective, space, strategy="sobol", n_trials=50, minimize="loss")    # python, mpirun or srun
    print(study.best.params, study.best.values)

`common.optimize` has objectives that are commands, generators or classes, `ask` and `tell`, and the study that a
search returns. `common.strategies` has the strategies. `common.sklearn` has scikit-learn's searches.

An `Experiment` is a study with settings of its own. `run_study` runs it on all devices, `run` makes it a program with a
command line, and `evaluate` runs it in this process, for a debugger. `common.trial` and `common.experiment` have the
types that its methods take and return, `common.errors` and `common.studies` the exceptions.

Importing this is quick: a name is loaded when it is first used. No name loads MPI, a GPU library or scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.cli import run
    from common.engine.options import RunOptions
    from common.experiment import Experiment, one_round, per_trial
    from common.export.trials import load
    from common.optimize.search import search
    from common.settings import setting
    from common.spaces import Choice, Float, Int, Ordinal, Space, When
    from common.studies import evaluate, run_study
    from common.trial import Trial

__all__ = [
    "Choice",
    "Experiment",
    "Float",
    "Int",
    "Ordinal",
    "RunOptions",
    "Space",
    "Trial",
    "When",
    "evaluate",
    "load",
    "one_round",
    "per_trial",
    "run",
    "run_study",
    "search",
    "setting",
]

_HOME = {
    "common.cli": ("run",),
    "common.engine.options": ("RunOptions",),
    "common.experiment": ("Experiment", "one_round", "per_trial"),
    "common.export.trials": ("load",),
    "common.optimize.search": ("search",),
    "common.settings": ("setting",),
    "common.spaces": ("Choice", "Float", "Int", "Ordinal", "Space", "When"),
    "common.studies": ("evaluate", "run_study"),
    "common.trial": ("Trial",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            import_module("common.scripts").say_errors_in_one_line()
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
