"""What `python -m mpitune script.py` takes over: by package, what its calls mean while the script runs.

A door is one row of DOORS. It is opened once the script imports the package: who does not use it does not wait for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from mpitune.errors import Caller, UsageError, called_from
from mpitune.options import RunOptions
from mpitune.processes.process import OnImport
from mpitune.studies import leads, stays

Door = Callable[[RunOptions, int | None, Any], None]  # its options, --window, the package


def _optuna(options: RunOptions, window: int | None, package: Any) -> None:
    """Let `Study.optimize` use all workers, unless its caller gives `n_jobs=1`."""
    optunas = package.study.Study.optimize

    @functools.wraps(optunas)
    def optimize(
        self: Any,
        func: Any,
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int | None = None,
        *args: Any,
        **more: Any,
    ) -> None:
        from mpitune.optuna.optimizing import optimize as on_engine
        from mpitune.optuna.optimizing import say_idle

        if n_jobs == 1 and not stays():
            say_idle(options)
        if n_jobs == 1 or stays():
            optunas(self, func, n_trials, timeout, 1 if leads() else n_jobs or 1, *args, **more)
        else:
            with called_from(Caller.SCRIPT):
                on_engine(self, func, n_trials, timeout, n_jobs or -1, *args, **more, window=window, options=options)

    package.study.Study.optimize = optimize


def _hyperopt(options: RunOptions, window: int | None, package: Any) -> None:
    """Let `fmin` use all workers, and `SparkTrials` be trials of theirs."""
    from mpitune.hyperopt import minimizing

    @functools.wraps(minimizing.hyperopts)
    def fmin(*args: Any, **more: Any) -> Any:
        if stays():
            return minimizing.hyperopts(*args, **more)
        with called_from(Caller.SCRIPT):
            return minimizing.fmin(*args, **more, window=window, options=options)

    package.fmin = minimizing.MODULE.fmin = fmin  # which `Trials.fmin` finds there
    package.SparkTrials = package.spark.SparkTrials = minimizing.SparkTrials


def _mongo(options: RunOptions, window: int | None, package: Any) -> None:
    """Say what `MongoTrials` needs, before it looks for its database."""

    def refused(*args: Any, **more: Any) -> None:
        raise UsageError("MongoTrials needs a database and workers that are not here: give Trials(), and --results DIR")

    package.MongoTrials = refused


def _wandb(options: RunOptions, window: int | None, package: Any) -> None:
    """Let sweeps that the script makes itself use all workers, without the server."""
    of_server = {name: getattr(package, name) for name in ("agent", "sweep", "login", "init")}

    def sweep(*args: Any, **more: Any) -> str:
        from mpitune.sweeps.agents import sweep as here

        return of_server["sweep"](*args, **more) if stays() else here(*args, **more)

    def agent(*args: Any, **more: Any) -> None:
        from mpitune.sweeps.agents import agent as here

        if stays():
            return of_server["agent"](*args, **more)
        with called_from(Caller.SCRIPT):
            here(*args, **more, window=window, options=options)

    def login(*args: Any, **more: Any) -> bool:
        try:
            return bool(of_server["login"](*args, **more))
        except package.errors.UsageError as error:  # there is no key, and nobody to ask
            print(f"wandb.login: {error}; runs of sweeps are offline", file=sys.stderr)
            return False

    def init(*args: Any, **more: Any) -> Any:
        try:
            return of_server["init"](*args, **more)
        except package.errors.UsageError as error:
            if "No API key configured" not in str(error) or more.get("mode") == "online":
                raise
            return of_server["init"](*args, **{**more, "mode": "offline"})

    def controller(*args: Any, **more: Any) -> None:
        raise UsageError("wandb.controller needs W&B's server: leave it out, wandb.agent is all")

    class Api(package.Api):
        def __init__(self, *args: Any, **more: Any) -> None:
            try:
                super().__init__(*args, **more)
            except package.errors.UsageError as error:
                raise UsageError(f"wandb.Api needs W&B's server: {error} Runs of sweeps lie in wandb/") from error

    package.Api = Api
    package.sweep, package.agent, package.login, package.controller = sweep, agent, login, controller
    package.init = init


def _ray(options: RunOptions, window: int | None, package: Any) -> None:
    """Let the rest of Ray be this process."""
    from mpitune.ray import core

    core.stand_in()


def _ray_tune(options: RunOptions, window: int | None, package: Any) -> None:
    """Let Ray Tune's studies use all workers."""
    from mpitune.ray.study import take_over

    take_over(options, window)


DOORS: dict[str, Door] = {
    "wandb": _wandb,
    "hyperopt": _hyperopt,
    "hyperopt.mongoexp": _mongo,
    "optuna": _optuna,
    "ray": _ray,
    "ray.tune": _ray_tune,
}


def open_doors(options: RunOptions, window: int | None) -> None:
    """Let these packages use all workers, from when the script imports them."""
    for name, door in DOORS.items():
        sys.meta_path.insert(0, OnImport(name, functools.partial(door, options, window)))
