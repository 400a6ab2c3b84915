"""Hyperparameter search on all devices of a laptop or a cluster: the names that users import.

    from dataclasses import dataclass

    from common import Experiment, Trial, one_round, per_trial, run_study, setting

    @dataclass(frozen=True)
    class Parabola(Experiment):
        n: int = setting(help="points to try", low=1)

        def searches(self):
            yield one_round(Trial(f"x{i}", {"x": i}) for i in range(self.n))

        def objective(self, worker):
            return per_trial(lambda trial: {"loss": (trial.params["x"] - 3) ** 2})

    outcomes = run_study(Parabola(10))          # python, mpirun or srun: every rank gets them
    print(min(outcomes, key=lambda outcome: outcome.result.value("loss")).trial.params)

`run(Parabola)` in place of the last two lines makes it a program with a command line; `evaluate(Parabola(10))` is the
study in this process, for a debugger. `common.sklearn` has scikit-learn's searches. Importing this is quick: a name is
loaded when it is first used, and no name loads MPI, a GPU library or scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.cli import run
    from common.engine.node import RunOptions
    from common.errors import UsageError
    from common.experiment import Experiment, WorkerContext, one_round, per_trial
    from common.settings import setting
    from common.studies import StudyError, evaluate, run_study
    from common.trial import Batch, Evaluation, NoRoom, Outcome, Result, Search, Trial, seed_of

__all__ = [
    "Batch",
    "Evaluation",
    "Experiment",
    "NoRoom",
    "Outcome",
    "Result",
    "RunOptions",
    "Search",
    "StudyError",
    "Trial",
    "UsageError",
    "WorkerContext",
    "evaluate",
    "one_round",
    "per_trial",
    "run",
    "run_study",
    "seed_of",
    "setting",
]

_HOME = {
    "common.cli": ("run",),
    "common.engine.node": ("RunOptions",),
    "common.errors": ("UsageError",),
    "common.experiment": ("Experiment", "WorkerContext", "one_round", "per_trial"),
    "common.settings": ("setting",),
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
