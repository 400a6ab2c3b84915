"""What `python -m mpitune script.py` takes over: by package, what its calls mean while the script runs.

A door is one row of DOORS. It is opened once the script imports the package: who does not use it does not wait for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mpitune.errors import Caller, UsageError, called_from, needs
from mpitune.options import of_script, usual_options
from mpitune.processes.process import OnImport
from mpitune.studies import leads, stays

Door = Callable[[Any], None]  # of the package


def _taken_over(own: Callable[..., Any], module: str) -> Callable[..., Any]:
    """A call of a script means that of this name here; within a trial, or in a child of the script, it is its own."""

    @functools.wraps(own)
    def call(*args: Any, **more: Any) -> Any:
        if stays():
            return own(*args, **more)
        with called_from(Caller.SCRIPT):
            return getattr(import_module(module), own.__name__)(*args, **more)

    return call


def _optuna(package: Any) -> None:
    """Let `Study.optimize` use all workers, unless its caller gives `n_jobs=1`."""
    own = package.study.Study.optimize

    @functools.wraps(own)
    def optimize(
        self: Any, func: Any, n_trials: Any = None, timeout: Any = None, n_jobs: Any = None, *args: Any, **more: Any
    ) -> None:
        with needs("Optuna 4 or newer", '"mpitune[search]"'):
            from mpitune.optuna.optimizing import optimize as on_engine
        if stays():
            own(self, func, n_trials, timeout, 1 if leads() else n_jobs or 1, *args, **more)
        else:
            with called_from(Caller.SCRIPT):
                options = usual_options(keeps=True, quiet=True)
                on_engine(self, func, n_trials, timeout, n_jobs or -1, *args, **more, options=options)

    package.study.Study.optimize = optimize


def _hyperopt(package: Any) -> None:
    """Let `fmin` use all workers."""
    home: Any = sys.modules["hyperopt.fmin"]  # where `Trials.fmin` finds it
    package.fmin = home.fmin = _taken_over(package.fmin, "mpitune.hyperopt")


def _wandb(package: Any) -> None:
    """Let sweeps that the script makes itself use all workers, without the server."""
    login, init = package.login, package.init

    def login_or_offline(*args: Any, **more: Any) -> bool:
        try:
            return bool(login(*args, **more))
        except package.errors.UsageError as error:  # there is no key, and nobody to ask
            print(f"wandb.login: {error}; runs of sweeps are offline", file=sys.stderr)
            return False

    def init_or_offline(*args: Any, **more: Any) -> Any:
        try:
            return init(*args, **more)
        except package.errors.UsageError as error:
            if "No API key configured" not in str(error) or more.get("mode") == "online":
                raise
            return init(*args, **{**more, "mode": "offline"})

    def controller(*args: Any, **more: Any) -> None:
        raise UsageError("wandb.controller needs W&B's server: leave it out, wandb.agent is all")

    class Api(package.Api):
        def __init__(self, *args: Any, **more: Any) -> None:
            try:
                super().__init__(*args, **more)
            except package.errors.UsageError as error:
                raise UsageError(f"wandb.Api needs W&B's server: {error} Runs of sweeps lie in wandb/") from error

    package.sweep, package.agent = (_taken_over(own, "mpitune.sweeps.agents") for own in (package.sweep, package.agent))
    package.login, package.init = login_or_offline, init_or_offline
    package.controller, package.Api = controller, Api


def _ray(package: Any) -> None:
    """Let the rest of Ray be this process."""
    from mpitune.ray import core

    core.stand_in(of_script.given.get("results"))


def _ray_tune(package: Any) -> None:
    """Let Ray Tune's studies use all workers."""
    from mpitune.ray.study import take_over

    take_over(usual_options(keeps=True, quiet=True), of_script.window(None))


DOORS: dict[str, Door] = {"wandb": _wandb, "hyperopt": _hyperopt, "optuna": _optuna, "ray": _ray, "ray.tune": _ray_tune}


def open_doors() -> None:
    """Let these packages use all workers, from when the script imports them."""
    for name, door in DOORS.items():
        sys.meta_path.insert(0, OnImport(name, door))
