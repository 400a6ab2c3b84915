"""What an unchanged script's `study.optimize` of Optuna means under `python -m mpitune`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from mpitune.errors import Caller, called_from
from mpitune.options import RunOptions


class OnImport(MetaPathFinder):
    """Calls something with Optuna, once the script imports it: who does not use it does not wait for it."""

    def __init__(self, then: Callable[[ModuleType], None]):
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "optuna":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def take_over(options: RunOptions, window: int | None, optuna: ModuleType) -> None:
    """Let `Study.optimize` use all workers, unless its caller gives `n_jobs=1`, or runs within another study."""
    theirs = optuna.study.Study.optimize

    @functools.wraps(theirs)
    def optimize(
        self: Any,
        func: Any,
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int | None = None,
        *args: Any,
        **more: Any,
    ) -> None:
        from mpitune.optuna import optimize as ours
        from mpitune.studies import leads

        if n_jobs == 1 or leads():
            theirs(self, func, n_trials, timeout, 1, *args, **more)
        else:
            with called_from(Caller.ARGUMENTS):  # a script has no other options
                ours(self, func, n_trials, timeout, n_jobs or -1, *args, **more, window=window, options=options)

    optuna.study.Study.optimize = optimize


def watch(options: RunOptions, window: int | None) -> None:
    """Take Optuna over, now or when it is imported."""
    then = functools.partial(take_over, options, window)
    if (optuna := sys.modules.get("optuna")) is not None:
        then(optuna)
    else:
        sys.meta_path.insert(0, OnImport(then))
