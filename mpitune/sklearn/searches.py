"""GridSearchCV and RandomizedSearchCV with scikit-learn's arguments and attributes, evaluated by the engine.

scikit-learn's own `fit` does everything but one thing: a joblib backend (`backend.py`) receives its tasks, one for each
candidate and fold, and gives them to a study. So splits, scorers, metadata routing, masks, ranks and refit are
scikit-learn's. Under MPI rank 0 runs `fit`, the other ranks join its studies and receive the fitted search.
"""

from __future__ import annotations

import inspect
import logging
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import Parameter, cleandoc, signature
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
import sklearn.model_selection as theirs
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import _search
from sklearn.model_selection._validation import _fit_and_score
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _num_samples, check_is_fitted
from threadpoolctl import threadpool_limits

from mpitune.devices.choose import CPU, environment, usable_cores
from mpitune.errors import Caller, StudyError, UsageError, own_traceback
from mpitune.options import RunOptions
from mpitune.processes.fork_server import server_for
from mpitune.processes.output import outliving
from mpitune.processes.process import IN_WORKER, can_be_sent, packed_error, unpacked_error
from mpitune.ranks.launch import every_rank_runs, launched
from mpitune.scripts import errors_in_one_line
from mpitune.sklearn.answers import Answer, Raised, answers_of, converged_of, results_of
from mpitune.sklearn.backend import SearchBackend, callbacks_of
from mpitune.sklearn.callbacks import packed_for, unpacked_for
from mpitune.sklearn.fit_graph import Plan
from mpitune.sklearn.folds import Folds, answers_here
from mpitune.sklearn.grids import SVC, last_step, refitted_as_solved, why_no_grid
from mpitune.sklearn.groups import Sharing, groups_of, in_grid, is_early, plan_of, why_alone
from mpitune.sklearn.limit import SearchLimit, StopWhen, names_of, not_evaluated
from mpitune.sklearn.notebook import html_of
from mpitune.sklearn.task import Task
from mpitune.studies import join, run_study

log = logging.getLogger(__name__)

# CPU seconds of fits in this process, as those of the clock tell how busy the machine is:
LONG = 0.25  # after which the server of workers starts: it imports meanwhile
SOON = 2.0  # after which workers do the rest: by then they can be forked
COMPILING_S = 30.0  # the same while the solver of grids is compiled, which takes one core 12 s
SMALL = 2_000, 200_000  # samples, and numbers in them, up to which a fit or two is done by then
ON_THE_WAY = ("mpitune", "sklearn", "joblib", "contextlib")  # between a script and the fits of its search
LIBRARIES = ("sklearn", "mpitune", "lightgbm", "xgboost")  # whose estimators may be fitted in this process
SHARED = "it shares fits with other candidates"  # why a fit is no part of a grid
NOT_SENT = (
    "a callback cannot be pickled, so it hears of no fit in a worker: scikit-learn makes all fits, on this machine, "
    "without results, timeout and stop_when"
)
WITH_CALLBACKS = "callbacks hear of what each fit does, so fits are single ones: candidates share none"

DRAWN_ANEW = "{} has no random_state: the next call draws others, so it cannot continue what is in `results`"

# Told of every list of fits: by which search, and how many are not solved as a grid for which reason (None: they are).
watchers: list[Callable[[OnEngine, Counter[str | None]], None]] = []


class OnEngine(_search.BaseSearchCV):
    """Common part of the searches; it comes after scikit-learn's class, whose `fit` ends here."""

    added: ClassVar[dict[str, Any]] = {
        "results": [str, os.PathLike, None],
        "workers": [Interval(Integral, 0, None, closed="left"), None],
        "gpu": [str, Interval(Integral, 0, None, closed="left"), None],
        "trial_timeout": [Interval(Real, 0, None, closed="neither"), None],
        "accelerate": ["boolean"],
        "changed": [str, "array-like"],
        "timeout": [Interval(Real, 0, None, closed="neither"), None],
        "stop_when": [callable, None],
        "share": [StrOptions({"exact", "tolerance"}), Options(bool, {False})],
    }
    _parameter_constraints: dict[str, Any] = {**_search.BaseSearchCV._parameter_constraints, **added}
    results: str | os.PathLike[str] | None = None
    workers: int | None = None
    gpu: str | int | None = None
    trial_timeout: float | None = None
    accelerate: bool = True
    share: str | bool = "exact"
    changed: str | Sequence[str] = ()
    timeout: float | None = None
    stop_when: StopWhen | None = None

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Evaluate all candidates, then refit the best; see scikit-learn's `fit`. All ranks of a job call it."""
        with errors_in_one_line(Caller.ARGUMENTS):
            together = every_rank_runs() and not self._in_this_process()
            transport = join(RunOptions(heartbeat_timeout=0.0)) if together else None
            if transport is None or transport.size == 1:
                return self._fit(X, y, params)
            if transport.rank == 0:
                try:
                    self._fit(X, y, params)
                    given = {*self.get_params(deep=False), "_skl_callbacks"}
                    fitted = {name: value for name, value in self.__dict__.items() if name not in given}
                    message: tuple[str, Any] = ("done", packed_for(callbacks_of(self), fitted))
                except BaseException as error:
                    transport.broadcast(("error", packed_error(error, own_traceback(error))))
                    transport.settle()
                    raise
                transport.broadcast(message)
            else:
                while (message := transport.broadcast(None))[0] == "study":
                    with suppress(UsageError, StudyError, KeyboardInterrupt, SystemExit):  # rank 0 says it next
                        run_study(Folds(), message[1])
            transport.settle()
            if message[0] == "error":
                raise unpacked_error(message[1])
            if transport.rank:
                self.__dict__.update(unpacked_for(callbacks_of(self), message[1]))
            return self

    def _fit(self, X: Any, y: Any, params: dict[str, Any]) -> Any:
        """scikit-learn's `fit`, whose tasks come to `_run`."""
        self._converged: list[np.ndarray] = []
        self._in_grid: list[bool] = []  # of each candidate, whether it was solved as part of a grid
        self._plans: list[Plan] = []
        self._began = time.monotonic()
        if hasattr(self, "aggressive_elimination") and (self.timeout is not None or self.stop_when is not None):
            raise UsageError("timeout and stop_when are for searches in one round: this one halves its candidates")
        if self.results is not None and (drawn := _unseeded(self)):
            warnings.warn(DRAWN_ANEW.format(drawn), UserWarning, stacklevel=3)
        if (heard := callbacks_of(self)) and not can_be_sent((heard, self)):
            warnings.warn(NOT_SENT, UserWarning, stacklevel=3)
            return super().fit(X, y, **params)
        with outliving():

            def evaluate(tasks: list[Task]) -> list[dict[str, Any]]:
                ours.unregister()  # estimators, and the refit, have the user's own backend
                return self._run(tasks)

            try:
                with (ours := parallel_config(backend=SearchBackend(evaluate, self))):
                    super().fit(X, y, **params)
            finally:
                self._in_grid = []
        self._say_what_was_shared()
        self._mask_what_is_missing()
        return self

    def _mask_what_is_missing(self) -> None:
        """Say in `cv_results_` how many splits of a candidate were evaluated, where that is not all of each."""
        if hasattr(self, "aggressive_elimination") or not (self._evaluated < self.n_splits_).any():
            return
        self.cv_results_["n_splits_evaluated"] = self._evaluated
        for name, column in self.cv_results_.items():
            if getattr(column, "dtype", None) == np.float64:
                missing = np.isnan(column) & (self._evaluated < self.n_splits_)
                self.cv_results_[name] = np.ma.masked_where(missing, column)

    def __setattr__(self, name: str, value: Any) -> None:
        """scikit-learn sets `best_estimator_`, then fits it: the solver of its candidate's score does."""
        if name == "best_estimator_" and (in_grid := vars(self).get("_in_grid")) and in_grid[self.best_index_]:
            value = refitted_as_solved(value)
        super().__setattr__(name, value)

    def _say_what_was_shared(self) -> None:
        """Add to `cv_results_` with whom each candidate shares a fit, where any does."""
        if not any(plan.shares for plan in self._plans):
            return
        shared: list[tuple[int, ...]] = []
        for plan in self._plans:
            offset = len(shared)  # of the numbers of an iteration
            shared += [tuple(offset + other for other in others) for _, others in sorted(plan.shared_with().items())]
        column = np.empty(len(shared), object)
        column[:] = shared
        self.cv_results_["shared_with"] = column

    def __getattr__(self, name: str) -> Any:
        """`plan_`, which no list of attributes has: scikit-learn's tests compare those with their own search's."""
        if name == "plan_" and vars(self).get("_plans"):
            return self._plans[-1]
        return object.__getattribute__(self, name)  # raises what it raised before this was asked

    def _repr_html_inner(self) -> str:
        """scikit-learn's diagram, and below it what a fitted search has found."""
        return super()._repr_html_inner() + self._found()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown = super()._repr_mimebundle_(**kwargs)
        return {kind: text + self._found() * (kind == "text/html") for kind, text in shown.items()}

    def _found(self) -> str:
        return html_of(self) if hasattr(self, "cv_results_") else ""

    @property
    def sharing(self) -> Sharing:
        return Sharing(self.accelerate, self.share)

    def _in_this_process(self) -> bool:
        """Whether the folds are evaluated here, without a study: as asked for, or inside a worker of any kind."""
        inside = multiprocessing.parent_process() is not None or IN_WORKER
        return inside or (self.workers == 0 and self.results is None and launched().size == 1)

    def _begins_here(self, tasks: list[Task]) -> bool:
        """Whether nothing was asked that needs workers, and fits are likely to be short, and of known libraries."""
        asked = (self.results, self.workers, self.gpu, self.trial_timeout)  # `n_jobs` is a ceiling
        if any(argument is not None for argument in asked) or launched().size > 1:
            return False
        X, estimator = tasks[0].args[0], tasks[0].estimator
        if _num_samples(X) > SMALL[0] or math.prod(getattr(X, "shape", ())) > SMALL[1]:
            return False
        replaced = any(hasattr(value, "fit") for task in tasks for value in task.parameters.values())
        parts = [estimator, *(part for part in estimator.get_params().values() if hasattr(part, "fit"))]
        return not replaced and all(type(part).__module__.partition(".")[0] in LIBRARIES for part in parts)

    def _run(self, tasks: list[Task], sharing: Sharing | None = None) -> list[dict[str, Any]]:
        """The result of each task, in their order. sharing: what is known of these tasks already."""
        limit = SearchLimit(self.timeout, self.stop_when, self._began, tasks)
        answers: dict[str, Answer] = {}
        sharing = sharing or self.sharing
        self._say_if_callbacks_cost(tasks)
        plan = plan_of(tasks, sharing)
        self._plans.append(plan)
        first = {task.candidate: task for task in tasks}
        why_not = {candidate: self._no_grid(task, plan, sharing) for candidate, task in first.items()}
        self._in_grid += [why_not[candidate] is None for candidate in sorted(why_not)]
        reasons = Counter(why_not[task.candidate] for task in tasks)
        for watcher in watchers:
            watcher(self, reasons)
        if self.verbose:
            print(plan, file=sys.stderr)
            if self.accelerate:
                _say(reasons)
        if early := any(is_early(task, sharing) for task in first.values()):
            log.warning("fits are single ones until the solver of grids is compiled, which is done once per machine")
        with threadpool_limits(1):  # as in workers, so it changes no result who makes a fit
            if self._in_this_process():
                answers |= answers_here(tasks, sharing, self.verbose, limit.is_reached, limit.add)
            elif self._begins_here(tasks):
                # The compiler has the other cores meanwhile, where the user did not ask for them.
                alone = early and self.n_jobs is None
                begins = _Beginning(() if alone else Folds.of(self, tasks).preload(), COMPILING_S if alone else SOON)
                ends = lambda: limit.is_reached() or begins.ends()  # noqa: E731
                answers |= answers_here(tasks, sharing, self.verbose, ends, limit.add)
            if not limit.reached and (rest := [task for task in tasks if task.key not in answers]):
                answers |= self._answers_of_study(rest, limit)
        self._left_out(tasks, answers, limit)
        self._converged.append(converged_of(tasks, answers))
        return results_of(tasks, answers)

    def _say_if_callbacks_cost(self, tasks: Sequence[Task]) -> None:
        """Say once in a search that fits are single ones where candidates would share some without callbacks."""
        if self._plans or not any(task.heard for task in tasks):
            return
        unheard = [replace(task, heard=False) for task in tasks]
        groups = groups_of(unheard, Sharing(self.accelerate, self.share))
        if any(len(group.keys) > 1 and (self.share or group.how != "steps") for group in groups):
            warnings.warn(WITH_CALLBACKS, UserWarning, stacklevel=_level_of_user())

    def _left_out(self, tasks: Sequence[Task], answers: dict[str, Answer], limit: SearchLimit) -> None:
        """Give tasks that were not begun an answer, and note how many splits of each candidate were evaluated."""
        evaluated = np.zeros(1 + max(task.candidate for task in tasks), np.int64)
        for task in tasks:
            evaluated[task.candidate] += task.key in answers
        names = names_of(answer.what["test_scores"] for answer in answers.values())
        answers |= {task.key: not_evaluated(task, names) for task in tasks if task.key not in answers}
        self._evaluated = evaluated
        n_splits = len(tasks) // len(evaluated)
        if not limit.reached or (evaluated == n_splits).all():
            return
        whole = int((evaluated == n_splits).sum())
        if not whole:
            raise UsageError(
                f"the search was stopped by {limit.reached} before any candidate had all its splits: give it more"
            )
        print(f"stopped by {limit.reached}: {whole} of {len(evaluated)} candidates have all splits", file=sys.stderr)

    def _answers_of_study(self, tasks: list[Task], limit: SearchLimit) -> dict[str, Answer]:
        study = Folds.of(self, tasks, limit)
        folder = None if self.results is None else study.folder_in(Path(self.results) / self._part())
        limit.begin(folder)
        options = RunOptions(
            gpu="none" if self.gpu is None else str(self.gpu),
            workers=self._n_workers if self.gpu is None else None,
            results=folder,
            trial_timeout=self.trial_timeout,
            verbose=self.verbose > 1,
            quiet=not self.verbose,
            changed=self.changed,  # type: ignore[arg-type]  # it takes one name, too
        )
        if every_rank_runs():
            join(RunOptions(heartbeat_timeout=0.0)).broadcast(("study", options))
        try:
            return answers_of(tasks, run_study(study, options))
        except Raised as raised:
            raise raised.error from raised.error.__cause__

    @property
    def _n_workers(self) -> int | None:
        """Workers of each node: `workers`, or what `n_jobs` means on these cores, which no more workers would serve."""
        if self.workers is not None or self.n_jobs is None:
            return self.workers
        cores = usable_cores()
        return min(self.n_jobs, cores) if self.n_jobs > 0 else max(cores + 1 + self.n_jobs, 1)

    def _no_grid(self, task: Task, plan: Plan, sharing: Sharing) -> str | None:
        """Why a task is not solved as part of a grid; None where it is."""
        if in_grid(task, sharing):
            return None
        reason = why_no_grid(task) if self.accelerate else "accelerate is False"
        other = reason is not None and task.candidate not in plan.alone and reason.endswith("has no fit_grid")
        return SHARED if other else reason or why_alone(task, sharing)

    def _part(self) -> str:
        """Where in the results folder this list of fits is kept: a halving search has several."""
        return f"iteration{len(self._converged)}" if hasattr(self, "aggressive_elimination") else ""

    @property
    def converged(self) -> np.ndarray:
        """Whether each fit came to its end, bool (n_candidates, n_splits): no failure, no `ConvergenceWarning`."""
        check_is_fitted(self, "cv_results_")
        return np.concatenate(self._converged)


class _Beginning:
    """The first seconds of a search, in which fits are made in this process.

    Args:
        modules: that workers need.
        soon: CPU seconds after which workers do the rest.
    """

    def __init__(self, modules: Sequence[str], soon: float) -> None:
        self._modules, self._soon, self._begun = modules, soon, time.process_time()

    def ends(self) -> bool:
        """Asked after each fit."""
        seconds = time.process_time() - self._begun
        if seconds > LONG and self._modules:
            with environment(CPU, 1):
                server_for(self._modules, os.environ)
            self._modules = ()
        return seconds > self._soon


class _Theirs(OnEngine):
    """Stands for one of scikit-learn's own searches, and makes its fits.

    scikit-learn refits the best by a single fit. A grid of its own SVC is single fits, too, as the solver of grids is
    another; an estimator that solves grids itself refits by the same solver.
    """

    def __init__(self, search: _search.BaseSearchCV, n_jobs: int) -> None:
        self.__dict__.update(vars(search), n_jobs=n_jobs, _converged=[], _in_grid=[], _plans=[], _began=0.0)
        self.accelerate = type(last_step(search.estimator)) is not SVC

    def _run_search(self, evaluate_candidates: Any) -> None:
        raise NotImplementedError  # `fit` is scikit-learn's


def backend_for(search: _search.BaseSearchCV, n_jobs: int) -> SearchBackend:
    """For one of scikit-learn's searches."""
    ours = _Theirs(search, n_jobs)

    def evaluate(tasks: list[Task]) -> list[dict[str, Any]]:
        plan = plan_of(tasks, sharing := ours.sharing)
        if plan.shares or any(in_grid(task, sharing) for task in tasks):
            return ours._run(tasks, sharing)
        ours._say_if_callbacks_cost(tasks)
        ours._plans.append(plan)
        fits = (delayed(_fit_and_score)(clone(task.estimator), *task.args, **task.kwargs) for task in tasks)
        results: list[dict[str, Any]] = Parallel(n_jobs=n_jobs)(fits)
        return results

    return SearchBackend(evaluate, search)


def _unseeded(search: OnEngine) -> str:
    """What draws anew at each call, by its argument; "" for nothing."""
    if getattr(search, "random_state", 0) is None:
        return "the search"
    cv = search.cv
    draws = getattr(cv, "shuffle", hasattr(cv, "random_state")) and getattr(cv, "random_state", 0) is None
    return "cv" if draws else ""


def _level_of_user() -> int:
    """The `stacklevel` of a warning for the line that has called a search."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] in ON_THE_WAY:
        frame, level = frame.f_back, level + 1
    return level


def _say(reasons: Counter[str | None]) -> None:
    for reason, number in reasons.items():
        if reason not in (None, SHARED):
            print(f"{number} of {reasons.total()} fits do not use the shared SVM solver: {reason}", file=sys.stderr)


THEIRS = "scikit-learn's own text:"  # docs/conf.py leaves out what follows, as its marks lead to pages of scikit-learn
DOC = """{first} on the engine: the same line under python, mpirun and srun.

    The arguments and attributes are scikit-learn's; these arguments are added, and the attributes `converged`: bool
    (n_candidates, n_splits), whether each fit came to its end, without failure or `ConvergenceWarning`; and `plan_`:
    what the candidates share (of a halving search, those of the last iteration). Where any fit is shared, but for
    grids of SVC alone, `cv_results_["shared_with"]` has for each candidate the numbers of those below the same fit,
    and the time of a fit is divided by the number of candidates that use it.

    Args:
        results: Folder that keeps the study, so that the same call continues it; None keeps nothing. A fit to other
            data, as in `cross_val_score`, has a folder data-DIGEST in it.
        workers: Worker processes of each node, by default one per core, `n_jobs` at most; 0 evaluates in this process,
            for a debugger. A search of few samples in one process without any of these arguments begins in this
            process, too. Workers do what is left after two CPU seconds: they start meanwhile.
        gpu: GPUs of each node ("0,1", "all") for estimators that compute there; by default none is used.
        trial_timeout: Seconds after which a fold's worker is killed; its score is `error_score`, and the rest goes on.
        accelerate: Whether estimators that can fit a whole grid at once do so; see `mpitune.sklearn.grids`.
        share: "exact": candidates share fits where the result is that of single fits, up to rounding, see
            `mpitune.sklearn.sharing`; "tolerance": also fits that begin from another candidate's, within the
            estimator's own `tol`; False: none.
        timeout: Seconds of `fit`, after which no fit begins any more. What was not evaluated is masked in
            `cv_results_`, whose column n_splits_evaluated says how much was; the refit is of the best candidate with
            all splits.
        stop_when: A function of a dict with `params` and `mean_test_score` (with several scorers one for each) of the
            candidates that have all splits so far, also by earlier runs in `results`. When it returns True, no fit
            begins any more.
        changed: Functions and classes that were changed since the study began, by name, whose known results still
            count.

    Example:
        Seven values of k have one search of neighbours on each of five splits.

        >>> from sklearn.datasets import load_iris
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from mpitune.sklearn import GridSearchCV
        >>> X, y = load_iris(return_X_y=True)
        >>> search = GridSearchCV(KNeighborsClassifier(), {{"n_neighbors": [1, 3, 5, 7, 9, 11, 13]}}, cv=5)
        >>> search.fit(X, y).best_params_
        {{'n_neighbors': 7}}
        >>> print(search.plan_)
        5 step fits instead of 35
            KNeighborsClassifier, one fit for n_neighbors 1, 3 ... 13 (7 values): 7 candidates
    """


def documented(parent: type) -> str:
    """The text of one of these classes: what is added, then all that scikit-learn says of its own."""
    ours = DOC.format(first=f"sklearn.model_selection.{parent.__name__}")
    return f"{cleandoc(ours)}\n\n{THEIRS}\n\n{cleandoc(parent.__doc__ or '')}\n"


def constructor(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a class of scikit-learn, with the added arguments: in its signature, which `clone` reads."""
    whole = signature(init)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(OnEngine, name)) for name in OnEngine.added]
    whole = whole.replace(parameters=[*whole.parameters.values(), *added])

    def __init__(*args: Any, **kwargs: Any) -> None:
        given = whole.bind(*args, **kwargs)
        given.apply_defaults()
        for name in OnEngine.added:
            setattr(given.arguments["self"], name, given.kwargs[name])
        init(*given.args, **{name: value for name, value in given.kwargs.items() if name not in OnEngine.added})

    __init__.__signature__ = whole  # type: ignore[attr-defined]
    return __init__


class Arguments(TypedDict, total=False):
    """Keyword arguments of all searches, for editors and type checkers; a test compares them with the constructors."""

    scoring: Any
    n_jobs: int | None
    refit: bool | str | Callable[..., Any]
    cv: Any
    verbose: int
    error_score: float | str
    return_train_score: bool
    results: str | os.PathLike[str] | None
    workers: int | None
    gpu: str | int | None
    trial_timeout: float | None
    accelerate: bool
    share: str | bool
    changed: str | Sequence[str]
    timeout: float | None
    stop_when: StopWhen | None


class PlainArguments(Arguments, total=False):
    """Those of searches in one round."""

    pre_dispatch: int | str


class RandomArguments(PlainArguments, total=False):
    """Those of RandomizedSearchCV."""

    n_iter: int
    random_state: Any


class GridSearchCV(theirs.GridSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.GridSearchCV)
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_grid: Any, **arguments: Unpack[PlainArguments]) -> None: ...
    else:
        __init__ = constructor(theirs.GridSearchCV.__init__)
    _parameter_constraints = {**theirs.GridSearchCV._parameter_constraints, **OnEngine.added}


class RandomizedSearchCV(theirs.RandomizedSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.RandomizedSearchCV)
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_distributions: Any, **arguments: Unpack[RandomArguments]) -> None: ...
    else:
        __init__ = constructor(theirs.RandomizedSearchCV.__init__)
    _parameter_constraints = {**theirs.RandomizedSearchCV._parameter_constraints, **OnEngine.added}
