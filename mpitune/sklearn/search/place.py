"""Where the fits of a search are made: in this process, in workers, or first here and then there."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from sklearn.utils.validation import _num_samples

from mpitune import svm
from mpitune.devices.choose import CPU, environment
from mpitune.processes.fork_server import server_for
from mpitune.processes.process import in_child
from mpitune.ranks.launch import launched
from mpitune.sklearn.fits.grouping import Grouping
from mpitune.sklearn.fits.task import Task

# CPU seconds of fits in this process, as those of the clock tell how busy the machine is:
LONG_S = 0.25  # after which the server of workers starts: it imports meanwhile
ALONE_S = 2.0  # after which workers do the rest: by then they can be forked
SMALL_SEARCH = 2_000, 200_000  # samples, and numbers in them, up to which a fit or two is done by then
LOAD_S = 0.7  # CPU seconds in which the solver of grids is loaded, and begins
SURE = 12  # fits after which it is known how long one takes
FEW_SAMPLES = 500  # up to which LIBSVM makes a fit in a hundredth of a second
KNOWN_LIBRARIES = ("sklearn", "mpitune", "lightgbm", "xgboost")  # whose estimators may be fitted in this process

Place = Literal["here", "here first", "workers"]


def inside(search: Any) -> bool:
    """Whether it is made within a worker, which has no workers of its own."""
    return in_child() and (search.results is None or launched().size > 1)


def all_here(search: Any) -> bool:
    """Whether this process makes all fits without a study."""
    return inside(search) or (search.workers == 0 and search.results is None and launched().size == 1)


def is_small(X: Any) -> bool:
    """Whether a single fit of an SVC to the samples takes no time to speak of."""
    return bool(_num_samples(X) <= FEW_SAMPLES)


def place_of(search: Any, grouping: Grouping) -> Place:
    """Where fits are made. "here first" if they are likely to be short, and nothing asked needs workers."""
    if all_here(search):
        return "here"
    arguments = (search.results, search.gpu, search.trial_timeout)  # `n_jobs` is a ceiling
    if launched().size > 1 or any(argument is not None for argument in arguments):
        return "workers"
    tasks = grouping.tasks
    # A small grid of SVC is done before the first worker has imported what it needs.
    if search.workers is not None and not all(grouping.method(task).in_grid for task in grouping.first.values()):
        return "workers"
    X, estimator = tasks[0].args[0], tasks[0].estimator
    if _num_samples(X) > SMALL_SEARCH[0] or math.prod(getattr(X, "shape", ())) > SMALL_SEARCH[1]:
        return "workers"
    # How long a fit of another library takes is not known.
    replaced = any(hasattr(value, "fit") for task in tasks for value in task.parameters.values())
    parts = [estimator, *(part for part in estimator.get_params().values() if hasattr(part, "fit"))]
    others = any(type(part).__module__.partition(".")[0] not in KNOWN_LIBRARIES for part in parts)
    return "workers" if replaced or others else "here first"


def modules_of(tasks: Sequence[Task]) -> tuple[str, ...]:
    """What workers need: what evaluates tasks, and the modules of the estimator's parts that are of known libraries."""
    modules = {"mpitune.sklearn.fits.evaluator", "mpitune.engine.worker", "mpitune.sklearn.search.folds"}
    for task in tasks[:1]:
        parts = [task.estimator, *task.estimator.get_params(deep=True).values()]
        modules.update(type(part).__module__ for part in parts)
    own = {name for name in modules if name.split(".")[0] in KNOWN_LIBRARIES}
    if any(name.startswith("sklearn.svm.") for name in own) and svm.is_compiled():
        own.add("mpitune.svm.loaded")
    return tuple(sorted(own))


class FirstSeconds:
    """The time in which fits are made in this process before workers do the rest.

    The solver of grids is loaded when that takes less time than single fits of all tasks that are left, or for the
    second search of a process: more may follow.

    Args:
        grouping: the tasks.
        modules: that workers need.
    """

    _is_second = False

    def __init__(self, grouping: Grouping, modules: Sequence[str]) -> None:
        self._modules, self._total, self._done = modules, len(grouping.tasks), 0
        self._begun = time.process_time()
        self._waits = any(map(grouping.solves, grouping.first.values())) and svm.is_compiled()
        if self._waits:
            loaded = "mpitune.svm.solved" in sys.modules
            if loaded or FirstSeconds._is_second or not is_small(grouping.tasks[0].args[0]):
                self._load()
            FirstSeconds._is_second = True

    def _load(self) -> None:
        svm.warm_up()
        self._waits, self._begun = False, time.process_time()

    def single(self) -> bool:
        """Asked before each fit of a grid, whether it is a single one. The first fit of a process takes longer."""
        if self._waits:
            self._done += 1
            if self._done == 2:
                self._begun = time.process_time()
            spent = time.process_time() - self._begun
            if self._done > SURE and spent / (self._done - 2) * (self._total - self._done) > LOAD_S:
                self._load()
        return self._waits

    def are_over(self) -> bool:
        """Asked after each fit."""
        seconds = 0.0 if self._waits else time.process_time() - self._begun
        if seconds > LONG_S and self._modules:
            with environment(CPU, 1):
                server_for(self._modules, os.environ)
            self._modules = ()
        return seconds > ALONE_S
