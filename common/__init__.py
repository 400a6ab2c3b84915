"""Hyperparameter search on all devices of a laptop or a cluster: the names that users import.

    from common import Choice, Float, Int, search

    def objective(trial):
        return {"loss": (trial.params["lr"] - 0.01) ** 2 + abs(trial.params["units"] - 64)}

    space = {"lr": Float(1e-5, 1e-1, log=True), "units": Int(8, 512, log=True), "act": Choice("relu", "gelu")}
    study = search(objective, space, strategy="sobol", n_trials=50, minimize="loss")    # python, mpirun or srun
    print(study.best.params, study.best.values)

`common.optimize` has objectives that are commands, generators or classes, and `ask` and `tell`; `common.strategies` has
the strategies. An `Experiment` is a study with settings of its own: `run_study` runs it here, `run` makes it a program
with a command line, `evaluate` is the study in this process, for a debugger. `common.sklearn` has scikit-learn's
searches. Importing this is quick: a name is loaded when it is first used, and no name loads MPI, a GPU library or
scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.cli import run
    from common.engine.options import RunOptions
    from common.errors import UsageError
    from common.experiment import Experiment, WorkerContext, one_round, per_trial
    from common.optimize.search import search
    from common.optimize.study import SearchStudy
    from common.settings import setting
    from common.spaces import Choice, Float, Int, Ordinal, Space, When
    from common.studies import StudyError, evaluate, run_study
    from common.trial import Batch, Evaluation, NoRoom, Outcome, Result, Search, Trial, seed_of

__all__ = [
    "Batch",
    "Choice",
    "Evaluation",
    "Experiment",
    "Float",
    "Int",
    "NoRoom",
    "Ordinal",
    "Outcome",
    "Result",
    "RunOptions",
    "Search",
    "SearchStudy",
    "Space",
    "StudyError",
    "Trial",
    "UsageError",
    "When",
    "WorkerContext",
    "evaluate",
    "one_round",
    "per_trial",
    "run",
    "run_study",
    "search",
    "seed_of",
    "setting",
]

_HOME = {
    "common.cli": ("run",),
    "common.engine.options": ("RunOptions",),
    "common.errors": ("UsageError",),
    "common.experiment": ("Experiment", "WorkerContext", "one_round", "per_trial"),
    "common.optimize.search": ("search",),
    "common.optimize.study": ("SearchStudy",),
    "common.settings": ("setting",),
    "common.spaces": ("Choice", "Float", "Int", "Ordinal", "Space", "When"),
    "common.studies": ("StudyError", "evaluate", "run_study"),
    "common.trial": ("Batch", "Evaluation", "NoRoom", "Outcome", "Result", "Search", "Trial", "seed_of"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
