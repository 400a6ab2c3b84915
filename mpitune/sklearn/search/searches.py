"""scikit-learn's four searches with its arguments and attributes, evaluated by the engine.

scikit-learn's own `fit` does everything but one thing: a joblib backend (`backend.py`) receives its tasks, one for each
candidate and fold, and gives them to a study. So splits, scorers, metadata routing, masks, ranks and refit are
scikit-learn's. Under MPI rank 0 runs `fit`, the other ranks join its studies and receive the fitted search.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import lru_cache
from inspect import getclosurevars
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import sklearn.model_selection as model_selection
from joblib import parallel_config
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 - without it there are no names of halving
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import _search
from sklearn.utils.validation import _num_samples
from threadpoolctl import ThreadpoolController

from mpitune.devices.choose import usable_cores
from mpitune.errors import Caller, UsageError
from mpitune.limit import SearchLimit
from mpitune.options import DEVICES, RunOptions, of_script
from mpitune.processes.output import outliving
from mpitune.processes.process import in_child
from mpitune.ranks.launch import every_rank_runs
from mpitune.scripts import errors_in_one_line
from mpitune.sklearn.fits.answers import Answer, Raised, answers_of, finite, not_evaluated, results_of
from mpitune.sklearn.fits.evaluator import Evaluator
from mpitune.sklearn.fits.fit_graph import Plan
from mpitune.sklearn.fits.grids import refitted_as_solved
from mpitune.sklearn.fits.grouping import Grouping
from mpitune.sklearn.fits.task import Task, splits_of
from mpitune.sklearn.search.backend import SearchBackend, copied_once, hear_of_what_fits_do
from mpitune.sklearn.search.place import FirstSeconds, all_here, inside, is_small, modules_of, place_of
from mpitune.sklearn.search.signature import documented
from mpitune.sklearn.search.winner import Careful, score_name, splits_known, winner_of

if TYPE_CHECKING:
    from mpitune.sklearn.search.race import FoldRace

log = logging.getLogger(__name__)

NOT_SENT = (
    "callbacks hear of what fits do where scikit-learn makes these: so it makes all of them, on this machine, "
    "without results, timeout and race"
)
NOT_KEPT = "results={} keeps nothing of a search in a process that a rank has started: search in the ranks themselves"


@lru_cache(1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Libraries with threads, of so many modules: who loads another library imports one. To find them takes 3 ms."""
    return ThreadpoolController()


class OnEngine(_search.BaseSearchCV):
    """Common part of the searches; it comes before scikit-learn's class."""

    @property
    def _halves(self) -> bool:
        """Whether it halves its candidates, so that each iteration is a study."""
        return hasattr(self, "aggressive_elimination")

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Evaluate all candidates, then refit the best; see scikit-learn's `fit`. All ranks of a job call it."""
        with errors_in_one_line(Caller.ARGUMENTS):
            if self.results is not None and inside(self):
                warnings.warn(NOT_KEPT.format(self.results), UserWarning, stacklevel=2)
            if not every_rank_runs() or all_here(self):
                return self._fit(X, y, params)
            from mpitune.sklearn.search.ranks import on_all_ranks  # studies, which a small search does not need
            from mpitune.studies import join

            if (transport := join(RunOptions(heartbeat_timeout=0.0))).size == 1:
                return self._fit(X, y, params)
            on_all_ranks(transport, self, lambda: self._fit(X, y, params))
            return self

    def _fit(self, X: Any, y: Any, params: dict[str, Any]) -> Any:
        """scikit-learn's `fit`, whose tasks come to `_run`."""
        self._in_grid: list[bool] = []  # of each candidate, whether the solver of grids makes its refit
        self._plans: list[Plan] = []
        self._began = time.monotonic()
        self._splits: dict[str, Any] = {}  # not known yet
        self._all_finite = False  # the scores of the fits that a race has made
        if self._halves and self.timeout is not None:
            raise UsageError("timeout is for searches in one round: this one halves its candidates")
        if self._halves and self.default:
            raise UsageError("default=True is for searches in one round: give this one [{}, grid] as its grid")
        if self.race is not None:
            from mpitune.sklearn.search.race import check

            check(self)
        self._collected = not hear_of_what_fits_do(self)  # whether tasks come to this backend
        if not self._collected:
            warnings.warn(NOT_SENT, UserWarning, stacklevel=3)
            return super().fit(X, y, **params)
        with outliving():

            def evaluate(tasks: list[Task]) -> list[dict[str, Any]]:
                own_backend.unregister()  # estimators, and the refit, have the user's own backend
                return self._run(tasks, params)

            try:
                with (own_backend := parallel_config(backend=SearchBackend(evaluate))):
                    super().fit(X, y, **params)
            finally:
                self._in_grid = []
        self._mask_what_is_missing()
        return self

    def _run_search(self, evaluate_candidates: Callable[..., Any], callback_ctx: Any = None) -> None:
        """scikit-learn's, with the estimator as it is before the candidates if that is asked."""

        def evaluate(candidates: Iterable[Any], *others: Any, **options: Any) -> Any:
            if self.default and (context := options.get("callback_ctx")) is not None:
                context.max_subtasks += self.n_splits_
            with copied_once(known.get("base_estimator")) if self._collected else nullcontext():
                return evaluate_candidates([{}, *candidates] if self.default else candidates, *others, **options)

        known: Mapping[str, Any] = {}
        with suppress(TypeError, ValueError):  # of a script's own function in place of scikit-learn's
            known = getclosurevars(evaluate_candidates).nonlocals
        context = {} if callback_ctx is None else {"callback_ctx": callback_ctx}  # since scikit-learn 1.9
        super()._run_search(evaluate, **context)

    def _select_best_index(self, refit: Any, refit_metric: str, results: Any) -> Any:
        """scikit-learn's choice. `careful` is told the splits, as `winner_` is."""
        if isinstance(refit, Careful):
            known: dict[str, Any] = {}
            with suppress(UsageError):  # where scikit-learn makes all fits
                known = splits_known(self)
            return refit(results, name=score_name(self, refit.metric), **known)
        return super()._select_best_index(refit, refit_metric, results)

    def _mask_what_is_missing(self) -> None:
        """Say in `cv_results_` how many splits of a candidate were evaluated, where that is not all of each."""
        if self._halves or self._evaluated.all():
            return
        self.cv_results_["n_splits_evaluated"] = self._evaluated.sum(axis=1)
        some = ~self._evaluated.all(axis=1)
        for name, column in self.cv_results_.items():
            if split := re.match(r"split(\d+)_", name):
                self.cv_results_[name] = np.ma.masked_where(~self._evaluated[:, int(split[1])], column)
            elif getattr(column, "dtype", None) == np.float64:
                self.cv_results_[name] = np.ma.masked_where(some & np.isnan(column), column)
            elif name.startswith("rank_test_"):
                self.cv_results_[name] = np.ma.masked_where(some, column)

    def _format_results(self, *args: Any, **kwargs: Any) -> Any:
        """scikit-learn's table; it warns of scores that are no numbers, but not of those that a race has spared."""
        if not self._all_finite:
            return super()._format_results(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "One or more of the t.* scores are non-finite")
            return super()._format_results(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """scikit-learn sets `best_estimator_`, then fits it: the solver of its candidate's score does."""
        if name == "best_estimator_" and (in_grid := vars(self).get("_in_grid")) and in_grid[self.best_index_]:
            value = refitted_as_solved(value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """`plan_` and `winner_`, which no list of attributes has: scikit-learn's tests compare those with their own."""
        if name == "plan_" and vars(self).get("_plans"):
            return self._plans[-1]
        if name == "winner_" and "cv_results_" in vars(self):
            try:
                return winner_of(self)
            except UsageError as error:
                raise AttributeError(f"winner_: {error}", name=name, obj=self) from error
        return object.__getattribute__(self, name)  # raises what it raised before this was asked

    def _run(self, tasks: list[Task], params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The result of each task, in their order."""
        place = place_of(self, grouping := Grouping(tasks, self.share))
        limit = SearchLimit(self.timeout, self._began)
        self._plans.append(grouping.plan)
        X, y = tasks[0].args[:2]
        first = [task.kwargs for task in tasks if task.candidate == tasks[0].candidate]
        self._splits = splits_of([(task["train"], task["test"]) for task in first], n := _num_samples(X))
        if self._halves:  # whose folds are parts of these
            whole = self._checked_cv_orig.split(X, y, **self._get_routed_params_for_fit(dict(params)).splitter.split)
            self._splits = splits_of(list(whole), n)
        if isinstance(self.refit, Careful):
            several = tasks[0].kwargs["scorer"]
            scorers = list(several._scorers) if isinstance(several, _MultimetricScorer) else ()
            self.refit.check([task.kwargs["parameters"] for task in grouping.first.values()], scorers)
        solves = not is_small(X)
        self._in_grid += [solves and grouping.method(task).in_grid for _, task in sorted(grouping.first.items())]
        if self.verbose:
            print(grouping.plan, file=sys.stderr)
        if any(map(grouping.is_early, grouping.first.values())):
            log.warning("fits are single ones until the solver of grids is compiled, which is done once per machine")
        race = None
        if self.race is not None:
            from mpitune.sklearn.search.race import FoldRace

            race = FoldRace(self, grouping)
        answers: dict[str, Answer] = {}

        def done(task: Task, what: Mapping[str, Any]) -> None:
            task.tell_callbacks()
            if race is not None:
                race.add(task, what["test_scores"])

        with _libraries(len(sys.modules)).limit(limits=1):  # as in workers, so it changes no result who makes a fit
            if place != "workers":
                # Asked after each fit in this process, whether it was the last one here.
                seconds = FirstSeconds(grouping, modules_of(grouping.tasks))
                ends = lambda: bool(limit.ended_by()) or (place != "here" and seconds.are_over())  # noqa: E731
                evaluator = Evaluator(grouping, single=seconds.single)
                for wanted in [tasks] if race is None else race.rounds(ends):
                    answers |= evaluator.answers(wanted, self.verbose, ends, done)
            rest = [task for task in tasks if task.key not in answers]
            if not limit.reached and rest and (race is None or race.wanted()):
                answers |= self._answers_of_study(grouping.only(rest), limit, race)
        if race is not None and not limit.reached:
            answers, spared = race.counted(answers)
            print(spared, file=sys.stderr)
        self._left_out(tasks, answers, limit)
        return results_of(tasks, answers)

    def _left_out(self, tasks: Sequence[Task], answers: dict[str, Answer], limit: SearchLimit) -> None:
        """Give tasks that were not begun an answer, and note how many splits of each candidate were evaluated."""
        n_candidates = 1 + max(task.candidate for task in tasks)
        evaluated = np.zeros((n_candidates, len(tasks) // n_candidates), np.bool_)
        for task in tasks:
            evaluated[task.candidate, task.split] = task.key in answers
        self._all_finite = self.race is not None and all(map(finite, answers.values()))
        answers |= not_evaluated([task for task in tasks if task.key not in answers], answers.values())
        self._evaluated = evaluated
        if not limit.reached or evaluated.all():
            return
        whole = int(evaluated.all(axis=1).sum())
        if not whole:
            raise UsageError(
                f"the search was stopped by {limit.reached} before any candidate had all its splits: give it more"
            )
        print(f"stopped by {limit.reached}: {whole} of {len(evaluated)} candidates have all splits", file=sys.stderr)

    def _answers_of_study(self, grouping: Grouping, limit: SearchLimit, race: FoldRace | None) -> dict[str, Answer]:
        from mpitune.sklearn.search.folds import Folds
        from mpitune.studies import run_study

        study = Folds.of(self, grouping, limit, race)
        if self.results is not None:
            study.require_identity()
        folder = None if self.results is None else study.folder_in(Path(self.results) / self._part())
        given = self._given
        options = RunOptions(
            gpu=(gpu := "none" if in_child() else given.get("gpu", "none") if self.gpu is None else str(self.gpu)),
            workers=0 if in_child() else self._n_workers if gpu == "none" else None,
            worker_folders=given.get("worker_folders"),
            results=folder,
            trial_timeout=self.trial_timeout,
            verbose=self.verbose > 1,
            quiet=not self.verbose,
            changed=self.changed,
        )
        try:
            return answers_of(grouping.tasks, run_study(study, options))
        except Raised as raised:
            raise raised.error from raised.error.__cause__

    @property
    def _given(self) -> dict[str, Any]:
        """What the command line of the script says, where the search does not."""
        says = self.workers is not None or self.gpu is not None
        return {} if in_child() else of_script.take(*(("worker_folders",) if says else DEVICES))

    @property
    def _n_workers(self) -> int | None:
        """Workers of each node: `workers`, or what `n_jobs` means on these cores, which no more workers would serve."""
        if self.workers is not None or self.n_jobs is None:
            return self._given.get("workers", self.workers)
        cores = self._given.get("workers", usable_cores())
        return min(self.n_jobs, cores) if self.n_jobs > 0 else max(cores + 1 + self.n_jobs, 1)

    def _part(self) -> str:
        """Grouping in the results folder this list of fits is kept: a halving search has several."""
        return f"iteration{len(self._plans) - 1}" if self._halves else ""


@documented
class GridSearchCV(OnEngine, model_selection.GridSearchCV):  # noqa: D101 - made by the decorator
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_grid: Any, **arguments: Any) -> None: ...


@documented
class RandomizedSearchCV(OnEngine, model_selection.RandomizedSearchCV):  # noqa: D101 - made by the decorator
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_distributions: Any, **arguments: Any) -> None: ...


@documented
class HalvingGridSearchCV(OnEngine, model_selection.HalvingGridSearchCV):  # noqa: D101 - made by the decorator
    _select_best_index = staticmethod(model_selection.HalvingGridSearchCV._select_best_index)  # last iteration's

    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_grid: Any, **arguments: Any) -> None: ...


@documented
class HalvingRandomSearchCV(OnEngine, model_selection.HalvingRandomSearchCV):  # noqa: D101 - made by the decorator
    _select_best_index = staticmethod(model_selection.HalvingRandomSearchCV._select_best_index)  # last iteration's

    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_distributions: Any, **arguments: Any) -> None: ...
