"""`Study.optimize` of Optuna on all devices of all nodes: the same study on any number of them."""

from __future__ import annotations

import inspect
import pickle
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from optuna.logging import get_verbosity
from optuna.progress_bar import _ProgressBar
from optuna.samplers import BruteForceSampler
from optuna.storages import InMemoryStorage
from optuna.study import Study

from mpitune.errors import UsageError
from mpitune.optimize.door import Led, begun, own_folder, require_script, say_kept
from mpitune.optimize.search import known_settings, slots_here
from mpitune.optimize.strategies.base import said_of
from mpitune.optimize.strategies.from_optuna import constraints_func_of
from mpitune.optimize.tuning import require_whole
from mpitune.options import RunOptions, of_script, usual_options
from mpitune.optuna.asking import WINDOW, Asking, attrs_of, log, seed_of_study
from mpitune.optuna.leader import Callback, Leader
from mpitune.optuna.objective import InWorker, study_here
from mpitune.processes.pickles import packed_call
from mpitune.processes.process import sendable
from mpitune.studies import n_ranks, run_study

SAID = "_mpitune_said"  # of a sampler or pruner: the text of its settings
FIX = "make it within the objective"


@dataclass(frozen=True)
class Optimizing(Led):
    """One call of `optimize`. The fields before `in_worker` are those of the journal's header."""

    fix = "give set_user_attr numbers, texts or lists of them"

    study: str  # its name; "" where Optuna has made one up
    space: str
    strategy: str
    objectives: tuple[str, ...]
    seed: int
    window: int
    in_worker: InWorker = field(metadata={"changes_results": False})
    leader: Leader | None = field(default=None, metadata={"changes_results": False})

    def news_for_workers(self) -> Sequence[bytes]:
        return () if self.leader is None else self.leader.asking.news()


def optimize(
    study: Study,
    func: Callable[[Any], Any],
    n_trials: int | None = None,
    timeout: float | None = None,
    n_jobs: int = -1,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    callbacks: Iterable[Callback] | None = None,
    gc_after_trial: bool = False,
    show_progress_bar: bool = False,
    *,
    window: int | None = None,
    options: RunOptions | None = None,
    space: str = "as the objective asks",
) -> None:
    """`study.optimize(func, ...)`, whose trials run on all devices of all nodes.

    The same study on any number of workers and nodes with the same window: trial n knows the results of all trials up
    to n - window. See docs/optuna.md for what is as in Optuna and what is not.

    Args:
        study: the user's. Each trial is added to it when it and all before it have ended.
        func: the objective, which must be one that can be sent to workers.
        n_trials: how many trials; None for no limit.
        timeout: seconds after which no trial begins.
        catch: exceptions that are failures of their trial only.
        callbacks: called in this process with the study and each trial, in the order of numbers.
        gc_after_trial: whether a worker collects garbage after each trial.
        show_progress_bar: whether to show Optuna's bar.
        n_jobs: 1 is Optuna's own loop in this process; any other number is all workers.
        window: how many trials may be open; by default twice the number of workers at the first start of the study,
            which keeps it.
        options: how it is run; `results` is a folder that keeps the study.
        space: what a folder says of the space; with another one its study does not continue.

    Raises:
        UsageError: for what cannot be sent to workers, and options that cannot hold.

    Example:
        >>> import optuna
        >>> from mpitune.optuna import optimize
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
        >>> optimize(study, lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=20, window=4)
        >>> len(study.trials), study.best_value < 0.1
        (20, True)
    """
    options, window = options or usual_options(keeps=True), of_script.window(window)
    if study._thread_local.in_optimize_loop:
        raise RuntimeError("Nested invocation of `Study.optimize` method isn't allowed.")
    keeps_its_best = "_lightgbm_tuner" in type(func).__module__  # in itself, so in this process
    if n_jobs == 1:
        say_idle(options)
    if n_jobs == 1 or keeps_its_best:
        alone = inspect.unwrap(Study.optimize)  # Optuna's, under python -m mpitune as well
        return alone(study, func, n_trials, timeout, 1, catch, callbacks, gc_after_trial, show_progress_bar)
    require_whole("window", window, 1)
    if options.adapt:
        raise UsageError("adapt=True is for search(), not for a study of Optuna")
    if isinstance(study._storage, InMemoryStorage):
        require_script(options)
    elif name := "join" if options.join else "retry_failed" if options.retry_failed else "":
        raise UsageError(f"{name}=True is for a study in a results folder: leave the storage out")
    content, arrays = _sendable(study, func)
    options = own_folder(options, (weakref.ref(study._storage), study._study_id))  # a copy in memory is another one
    seed, size = _seed_and_window(study, window, options)
    fix = "use trial.set_user_attr, and take the best in a callback or afterwards (n_jobs=1 runs it in this process)"
    say_kept(func, fix, options)
    catches = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    begin = time.monotonic()
    bar = _ProgressBar(show_progress_bar, n_trials, timeout)
    leader = Leader(
        study, Asking(study, seed, size), {"objective": func}, arrays, n_trials, timeout, catches,
        list(callbacks or ()), bar=bar, keeps=options.results is not None, began=begin,
    )  # fmt: skip
    study._stop_flag, study._thread_local.in_optimize_loop = False, True
    try:
        experiment = _experiment(leader, content, gc_after_trial, seed, size, space)
        run_study(experiment, options)
    finally:
        study._thread_local.in_optimize_loop = False
        bar.close()
    if leader.raised is not None:
        raise leader.raised


@cache
def say_idle(options: RunOptions) -> None:
    """Say, once, that workers have nothing to do, as a study stays in this process."""
    if (n := slots_here(options) * n_ranks()) > 1:
        print(f"n_jobs=1: {n - 1} of {n} workers are idle, leave n_jobs out or give {n} to use them", file=sys.stderr)


def _sendable(study: Study, func: Callable[[Any], Any]) -> tuple[bytes, dict[str, np.ndarray]]:
    """The packed objective and its large arrays. Raises UsageError for what cannot be sent to workers."""
    arrays: dict[str, np.ndarray] = {}

    def is_same(thing: Any) -> bool:
        is_study = issubclass(type(thing), Study)  # other things may be slow to say what they are
        return is_study and getattr(thing, "_storage", None) is study._storage and thing._study_id == study._study_id

    def reduced(other: Study) -> Any:
        return (study_here, ()) if is_same(other) else other.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    how = {Study: reduced, type(study): reduced}
    content = sendable("the objective", func, FIX, lambda thing: packed_call(thing, arrays, how))
    sendable("the sampler", study.sampler, FIX)
    sendable("the pruner", study.pruner, FIX)
    return content, arrays


def _seed_and_window(study: Study, window: int | None, options: RunOptions) -> tuple[int, int]:
    """What the study has from now on: what it has had, what its results folder says, or what begins here."""
    kind = type(getattr(study.sampler, "_base_sampler", study.sampler))
    of_optuna = kind.__module__.startswith(("optuna.", "optuna_integration."))
    alone = "" if of_optuna else f"{kind.__name__} is not of Optuna and may need each result before the next trial"
    seed, size = begun(options, known_settings(options).get("seed"), window or attrs_of(study).get(WINDOW), alone)
    if kind is BruteForceSampler and size > 1:  # with others open it would try points twice, and end too soon
        size = 1
        log.warning("BruteForceSampler needs each result before the next trial: one runs at a time (GridSampler: many)")
    study._storage.set_study_system_attr(study._study_id, WINDOW, size)
    return seed_of_study(study, seed), size


def _experiment(leader: Leader, function: bytes, collects: bool, seed: int, window: int, space: str) -> Optimizing:
    study = leader.study
    several = [f"values_{number}" for number in range(len(study.directions))]
    names = study.metric_names or (["value"] if len(several) == 1 else several)
    goals = [f"{way.name.lower()} {name}" for way, name in zip(study.directions, names, strict=True)]
    name = "" if study.study_name.startswith("no-name-") else study.study_name
    # As it was first: a sampler keeps what it has computed.
    texts = [vars(part).setdefault(SAID, said_of(part)) for part in (study.sampler, study.pruner)]
    in_worker = InWorker(
        function, leader.asking.view_of_workers(), names, constraints_func_of(study.sampler), collects, get_verbosity()
    )
    return Optimizing(name, space, ", ".join(texts), tuple(goals), seed, window, in_worker, leader)
