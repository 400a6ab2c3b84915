"""What `python -m mpitune script.py` takes over: by package, what its calls mean while the script runs.

A door is one row of DOORS. It is opened once the script imports the package: who does not use it does not wait for it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from mpitune.errors import Caller, called_from
from mpitune.options import RunOptions
from mpitune.processes.process import OnImport, in_child
from mpitune.studies import leads

Door = Callable[[RunOptions, int | None, types.ModuleType], None]  # its options, --window, the package


def stays() -> bool:
    """Whether a call is the package's own, as it is made within a trial, or in a child."""
    return leads() or in_child()


def _optuna(options: RunOptions, window: int | None, package: types.ModuleType) -> None:
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


DOORS: dict[str, Door] = {
    "optuna": _optuna,
}


def open_doors(options: RunOptions, window: int | None) -> None:
    """Let these packages use all workers, from when the script imports them."""
    for name, door in DOORS.items():
        sys.meta_path.insert(0, OnImport(name, functools.partial(door, options, window)))
