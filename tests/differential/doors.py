"""python -m tests.differential.doors --seed S --studies N: random studies of Optuna, here and by references.

Each study is made of one integer (`tests/mpitune/optuna/made.py`). The ways: `alone` is a window of 1 beside Optuna's
own loop, whose random numbers begin anew for each trial, as here; `window` one of 3 beside `Rebuilt`; `workers` two
workers beside none; `resumed` a study that a callback stops and the same command continues beside an undisturbed one.
A difference is one line; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import optuna
from optuna.search_space import intersection_search_space
from optuna.trial import TrialState, create_trial

from mpitune import RunOptions
from mpitune.optimize import door
from mpitune.optimize.strategies.view import reseed
from mpitune.optuna import optimize
from tests.mpitune.optuna.made import Made, made_study, quiet

TRIALS = 14


class Case:
    """A study, its objective, and what its script does with it."""

    def __init__(self, number: int):
        draw = Random(f"doors {number}")
        self.number, self.objective = number, Made(number)
        self.catch = draw.choice(((ValueError,), (ValueError,), ()))
        self.n_enqueued = draw.choice((0, 0, 0, 1, 3))
        self.stops = draw.choice((99, 99, 99, draw.randint(1, TRIALS)))
        self.heard: list[Any] = []  # by callbacks

    def study(self) -> optuna.Study:
        study, draw = made_study(self.number, study_name="made"), Random(self.number)
        flat = [more for more in self.objective.block if more[0] in ("float", "int", "choice")]
        for n in range(self.n_enqueued):
            known = {name: draw.choice(more[0]) if len(more) == 1 else more[0] for _, name, *more in flat[n % 2 :]}
            study.enqueue_trial(known, user_attrs={"from": n})
        return study

    def hear(self, study: optuna.Study, trial: Any) -> None:
        self.heard.append((trial.number, trial.state.name, len(study.trials)))
        if trial.number == self.stops:
            study.stop()

    def outcome(self, run: Callable[[Case, optuna.Study], object]) -> list[Any]:
        """The rows of the study, and what else came."""
        self.heard, study, raised = [], self.study(), None
        try:
            run(self, study)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        rows = [
            {"state": t.state.name, "params": list(t.params.items()), "values": t.values, "drawn": t.distributions,
             "steps": t.intermediate_values, "user_attrs": t.user_attrs, "attrs": [
                 (name, value) for name, value in t.system_attrs.items()
                 if name != "mpitune" and ":optimizer" not in name]}
            for t in study.trials
        ]  # fmt: skip
        return [*rows, {"raised": raised, "heard": self.heard, "study": study.user_attrs}]


def ours(window: int, **options: Any) -> Callable[[Case, optuna.Study], object]:
    how = RunOptions(gpu="none", quiet=True, **{"workers": 0, **options})
    return lambda case, study: optimize(
        study, case.objective, TRIALS, catch=case.catch, callbacks=[case.hear], window=window, options=how
    )


def seed_of(case: Case) -> str:
    """The seed that the study has here."""
    study = case.study()
    optimize(study, case.objective, 0, options=RunOptions(gpu="none", workers=0, quiet=True))
    return str(study._storage.get_study_system_attrs(study._study_id)["mpitune:seed"])


def by_optuna_alone(case: Case, study: optuna.Study) -> None:
    """Optuna's loop. As in Optuna 4 its samplers are asked before the objective is called."""
    seed, sampler = seed_of(case), study.sampler
    told: Any = sampler  # whose methods are replaced

    def begun_anew(what: str, then: Callable[..., object]) -> Callable[..., object]:
        def call(seen: Any, trial: Any, *more: Any) -> None:
            told._gprs_cache_list = told._constraints_gprs_cache_list = None  # where the fits of GPSampler begin
            reseed(sampler, f"{seed}/{trial.number}/{what}")
            then(seen, trial, *more)

        return call

    def objective(trial: optuna.Trial) -> Any:
        assert trial.relative_params is not None
        reseed(sampler, f"{seed}/{trial.number}")
        return case.objective(trial)

    told.before_trial = begun_anew("joint", sampler.before_trial)
    told.after_trial = begun_anew("after", sampler.after_trial)
    study.optimize(objective, TRIALS, catch=case.catch, callbacks=[case.hear])


class Rebuilt:
    """A slow loop: a study is made for each trial to be asked, to run and to be told, with what is known then."""

    def __init__(self, case: Case, study: optuna.Study, window: int):
        self.case, self.study, self.seed = case, study, seed_of(case)
        self.trials, self.told = study.get_trials(), study.get_trials()  # with what runs, and as the user has them
        self.attrs: dict[str, Any] = {}  # the study's of its sampler
        self.ended: dict[int, tuple[Any, ...]] = {}  # of open trials in their order: what came of them
        study._thread_local.in_optimize_loop = True
        while not study._stop_flag:
            n_waiting = sum(trial.state == TrialState.WAITING for trial in self.trials)
            if len(self.ended) < window and len(self.trials) - n_waiting < TRIALS:
                self.ask()
            elif not self.ended:
                return
            else:
                self.tell(next(iter(self.ended)))

    def made(self, trials: list[Any], what: str) -> optuna.Study:
        """A study that has these trials, whose sampler begins the random numbers of this name."""
        sampler, pruner = copy.deepcopy(self.study.sampler), copy.deepcopy(self.study.pruner)
        reseed(sampler, f"{self.seed}/{what}")
        made = optuna.create_study(
            study_name="made", directions=self.study.directions, sampler=sampler, pruner=pruner)  # fmt: skip
        made._thread_local.in_optimize_loop = True
        for trial in trials:
            made._storage.create_new_trial(made._study_id, template_trial=trial)
        for name, value in self.attrs.items():
            made._storage.set_study_system_attr(made._study_id, name, value)
        return made

    def ask(self) -> None:
        """Ask for a trial and run it: it may know what is told now."""
        waiting = next((trial for trial in self.trials if trial.state == TrialState.WAITING), None)
        number = waiting.number if waiting else len(self.trials)
        kept: Any = {"user_attrs": waiting.user_attrs} if waiting else {}
        attrs = waiting.system_attrs if waiting else {}
        self.trials[number : number + 1] = [create_trial(state=TrialState.RUNNING, system_attrs=attrs, **kept)]
        asked = self.made(self.trials, f"{number}/joint")
        trial, params, space, raised = optuna.Trial(asked, number), {}, {}, None
        try:
            params, space = trial.relative_params, trial.relative_search_space or {}
        except Exception as error:  # the sampler's own
            raised = error
        if getattr(getattr(asked.sampler, "_base_sampler", asked.sampler), "_constant_liar", False) and not params:
            for name, drawn_from in intersection_search_space(asked.get_trials()).items():
                trial._suggest(name, drawn_from)
        self.trials[number], self.study._stop_flag = asked.trials[number], self.study._stop_flag or asked._stop_flag
        self.attrs = asked._storage.get_study_system_attrs(asked._study_id)
        mine = create_trial(state=TrialState.RUNNING, system_attrs=asked.trials[number].system_attrs, **kept)
        bare = create_trial(state=TrialState.RUNNING)
        run = self.made([*(t if t.state.is_finished() else bare for t in self.trials[:number]), mine], str(number))
        params, space = {**params, **trial.params}, {**space, **trial.distributions}
        mocked: Any = run.sampler
        mocked.before_trial, mocked.infer_relative_search_space = lambda *given: None, lambda *given: space
        mocked.sample_relative = lambda *given: params
        values, state, trial = None, TrialState.FAIL, optuna.Trial(run, number)
        try:
            returned = None if raised else self.case.objective(trial)
            several = returned if isinstance(returned, list) else [returned]
            if None not in several and not any(map(math.isnan, several)):
                values, state = several, TrialState.COMPLETE
        except optuna.TrialPruned:
            state = TrialState.PRUNED
        except ValueError as error:
            raised = error
        self.ended[number] = run, values, state, raised

    def tell(self, number: int) -> None:
        ran, values, state, raised = self.ended.pop(number)
        self.trials[number] = ran.trials[number]
        study = self.made(self.trials, f"{number}/after")
        try:
            study.tell(number, values, state)
        finally:  # it has ended, whatever its sampler raises then
            self.trials[number] = study.trials[number]
            self.told[number : number + 1] = [study.trials[number]]
            self.study._storage._studies[self.study._study_id].trials[:] = self.told  # type: ignore[attr-defined]
        self.attrs = study._storage.get_study_system_attrs(study._study_id)
        for name, value in ran.user_attrs.items():
            self.study.set_user_attr(name, value)
        self.study._stop_flag |= ran._stop_flag | study._stop_flag
        if raised and not isinstance(raised, self.case.catch):
            raise raised
        self.case.hear(self.study, self.told[number])


def stopped_once(case: Case, study: optuna.Study) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, case.catch = ours(3, results=Path(folder) / "r"), (ValueError,)  # what ended a study is not raised again
        stops, case.stops = case.stops, min(case.stops, case.number % 9)
        with suppress(Exception):  # of a sampler: the same command goes on
            run(case, case.study())
        door.studies_in.clear()  # as in another process
        case.stops, case.heard = stops, []
        run(case, study)


WAYS: dict[str, tuple[Callable[[Case, optuna.Study], object], Callable[[Case, optuna.Study], object]]] = {
    "alone": (ours(1), by_optuna_alone),
    "window": (ours(3), lambda case, study: Rebuilt(case, study, 3)),
    "workers": (ours(3, workers=2), ours(3)),
    "resumed": (stopped_once, ours(3)),
}


def _texts(rows: list[Any]) -> list[dict[str, str]]:
    return [{name: repr(value) for name, value in row.items()} for row in rows]


def difference(number: int, way: str) -> str:
    """The first thing that differs; "" where all is equal."""
    kind = type(made_study(number).sampler).__name__
    if way == "window" and kind == "BruteForceSampler":
        return ""  # it waits where all that it knows of runs: test_contract.py
    here, there = map(Case(number).outcome, WAYS[way])
    with np.printoptions(legacy="1.25"):  # a crossover of NSGA gives NumPy's numbers: floats, as in any database
        here, there = map(_texts, (here, there))
    for place, (mine, right) in enumerate(zip(here, there, strict=False)):
        for name in mine.keys() & right.keys():
            if mine[name] != right[name]:
                return f"{number} {kind} {way}: trial {place}, {name} {mine[name]:.200}, right {right[name]:.200}"
    return "" if len(here) == len(there) else f"{number} {kind} {way}: {len(here) - 1} trials, right {len(there) - 1}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential.doors")
    parser.add_argument("--seed", type=int, default=0, help="number of the first study (default 0)")
    parser.add_argument("--studies", type=int, default=100, metavar="N", help="how many (default 100)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)} (default all)")
    chosen, begin, found = parser.parse_args(), time.monotonic(), 0
    quiet()
    for number in range(chosen.seed, chosen.seed + chosen.studies):
        for differs in filter(None, (difference(number, way) for way in chosen.ways.split(","))):
            found += 1
            print(differs, flush=True)
    print(f"{chosen.studies} studies ({chosen.ways}), {found} differ; {time.monotonic() - begin:.0f} s", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
