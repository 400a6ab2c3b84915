"""Hyperparameter search on all devices of a laptop or a cluster: the names that users import.

    from mpitune import Choice, Float, Int, search

    def objective(trial):
        return {"loss": (trial.params["lr"] - 0.01) ** 2 + abs(trial.params["units"] - 64)}

    space = {"lr": Float(1e-5, 1e-1, log=True), "units": Int(8, 512, log=True), "act": Choice("relu", "gelu")}
    study = search(objective, space, strategy="sobol", n_trials=50, minimize="loss")    # python, mpirun or srun
    print(study.best.params, study.best.values)

`mpitune.strategies` has the strategies. `mpitune.sklearn`, `mpitune.optuna` and `mpitune.joblib` are for scripts that
use these libraries.

An `Experiment` is a study with settings of its own. `run_study` runs it on all devices, `run` makes it a program with a
command line. `mpitune.trial`, `mpitune.experiment` and `mpitune.port` have the types that its methods take and return,
`mpitune.errors` and `mpitune.studies` the exceptions.

Importing this is quick: a name is loaded when it is first used. No name loads MPI, a GPU library or scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpitune.lazy import front

if TYPE_CHECKING:  # for type checkers, who cannot read the table below
    from mpitune.cli import run as run
    from mpitune.exchange.loading import load as load
    from mpitune.experiment import Experiment as Experiment
    from mpitune.experiment import one_round as one_round
    from mpitune.experiment import per_trial as per_trial
    from mpitune.optimize.commands import Command as Command
    from mpitune.optimize.objectives import TrialStopped as TrialStopped
    from mpitune.optimize.objectives import current_trial as current_trial
    from mpitune.optimize.search import search as search
    from mpitune.optimize.spaces import Choice as Choice
    from mpitune.optimize.spaces import Constant as Constant
    from mpitune.optimize.spaces import Float as Float
    from mpitune.optimize.spaces import Int as Int
    from mpitune.optimize.spaces import Space as Space
    from mpitune.optimize.spaces import When as When
    from mpitune.options import RunOptions as RunOptions
    from mpitune.port import Scheduling as Scheduling
    from mpitune.settings import setting as setting
    from mpitune.studies import run_study as run_study
    from mpitune.trial import Trial as Trial

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = front(
    __name__,
    {
        "cli": ("run",),
        "options": ("RunOptions",),
        "experiment": ("Experiment", "one_round", "per_trial"),
        "port": ("Scheduling",),
        "exchange.loading": ("load",),
        "optimize.commands": ("Command",),
        "optimize.objectives": ("TrialStopped", "current_trial"),
        "optimize.search": ("search",),
        "settings": ("setting",),
        "optimize.spaces": ("Choice", "Constant", "Float", "Int", "Space", "When"),
        "studies": ("run_study",),
        "trial": ("Trial",),
    },
)
