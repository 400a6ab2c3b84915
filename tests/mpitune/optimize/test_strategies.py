"""Strategies: what each decides, that layouts agree, that failures, infinities and pruned trials are seen as such."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from mpitune import Choice, Float, Int, RunOptions, Space, When, search
from mpitune.engine.study import Study
from mpitune.errors import UsageError
from mpitune.exchange.trials import read
from mpitune.limit import SearchLimit
from mpitune.optimize.strategies import (
    ASHA,
    Grid,
    Halving,
    Hyperband,
    Optuna,
    PopulationBased,
    Random,
    Strategy,
    strategy_of,
)
from mpitune.optimize.strategies.base import Feedback, Problem, Sampler, TrialScheduler, TrialSegment
from mpitune.optimize.strategies.plain import Points
from mpitune.optimize.strategies.racing import Race, winning
from mpitune.optimize.strategies.view import reseed
from mpitune.optimize.tuning import LeadersPart, Tuning, WorkersPart
from mpitune.report.candidates import Goal, ReportedStudy, read_candidates
from mpitune.storage.history import read_study
from mpitune.track.formats import to_optuna
from mpitune.trial import Ending, Result
from tests.mpitune.optimize.objectives import searched

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
LINE = Space({"x": Float(0, 1)})


def played(
    strategy: Any, loss: Callable[[TrialSegment], float | None], space: Space = LINE, **how: Any
) -> list[TrialSegment]:
    """The segments that a strategy asks for, in order, where `loss` says what becomes of each (None: it fails)."""
    problem = Problem(space, {"loss": False}, **{"n_trials": 20, "window": 4, "staged": True, **how})
    asked = []
    for proposer in strategy_of(strategy).begin(problem):
        while segments := proposer.ask(problem.window):
            asked += segments
            for segment in segments:
                value = loss(segment)
                proposer.tell(segment, Feedback(None) if value is None else Feedback((value,), {segment.until: value}))
    assert len({segment.key for segment in asked}) == len(asked)
    return asked


def slid(
    strategy: Any, loss: Callable[[TrialSegment], float | None], width: int, seed: int | None = None, **how: Any
) -> list[TrialSegment]:
    """The segments of a search with a window, in the order asked; they end in an order that is drawn by `seed`."""
    usual: dict[str, Any] = {"space": LINE, "n_trials": 20, "window": width, "staged": True}
    problem = Problem(objectives={"loss": False}, **{**usual, **how})
    plan = LeadersPart(strategy_of(strategy), (), SearchLimit(), None, None)
    task = WorkersPart(None, problem, Path())
    tuning = Tuning("", "", ("loss",), 0, width, (), task, plan)
    study, rng = Study(tuning.searches(), {}, {}), np.random.default_rng(seed)
    open_, asked = study.start(), {}
    while open_ or study.is_behind:
        if study.is_behind and (not open_ or rng.random() < 0.5):
            open_ += study.catch_up()
            continue
        asked.update((trial.key, TrialSegment.of(trial)) for (trial,) in open_)
        ((trial,),) = (open_.pop(0 if seed is None else int(rng.integers(len(open_)))),)
        segment = asked[trial.key]
        value = loss(segment)
        failed, values = value is None, {} if value is None else {"loss": value}
        ending = Ending(steps={segment.until: values} if segment.until and not failed else {})
        open_ += study.record(Result(trial.key, values, error="it broke" if failed else None, ending=ending))
    assert study.finished and study.n_open == 0 and len(asked) == study.n_done
    return [asked[outcome.trial.key] for outcome in study.outcomes()]


def x_of(segment: TrialSegment) -> float:
    return float(segment.point["x"])


def x_of_trial(trial: Any) -> float:
    return float(trial.params["x"])


def lengths(segments: list[TrialSegment]) -> dict[int, int]:
    return dict(Counter(segment.until for segment in segments))


def test_halving_keeps_the_best_third() -> None:
    segments = played(Halving(max_steps=9), x_of, n_trials=18)
    assert lengths(segments) == {1: 18, 3: 6, 9: 2}
    best = sorted((x_of(p), p.number) for p in segments if p.until == 1)
    assert {p.number for p in segments if p.until == 9} == {number for _, number in best[:2]}
    assert all(p.last == (p.until == 9) and p.start == {1: 0, 3: 1, 9: 3}[p.until] for p in segments)


@pytest.mark.parametrize("strategy", ["random", "sobol"])
def test_independent_points_are_drawn_when_they_are_asked(strategy: str) -> None:
    """A million trials begin at once: one point is drawn to see that there is any. They are those of one by one."""
    drawn: list[Any] = []
    space = Space({"x": Float(0, 1), "n": Int(1, 9)}, constraints=[lambda p: drawn.append(p) or True])
    proposers = strategy_of(strategy).begin(Problem(space, {"loss": False}, seed=3, n_trials=1_000_000))
    assert len(drawn) == 1 and len(proposers) == 10_000
    segments = [segment for proposer in proposers[:3] for segment in proposer.ask(7)]
    assert (
        len(drawn) == 300 and [segment.number for segment in segments] == list(range(300)) and not proposers[0].ask(7)
    )
    few = Problem(space, {"loss": False}, seed=3, n_trials=300)
    one_by_one = Points(strategy_of(strategy).draws(few), few).rest()  # type: ignore[attr-defined]
    assert list(one_by_one) == [(segment.number, segment.point) for segment in segments]
    with pytest.raises(UsageError, match="fulfils the constraints"):
        strategy_of(strategy).begin(Problem(Space(space.parts, [lambda p: False]), {"loss": False}, n_trials=5))


def test_hyperband_has_the_brackets_of_its_source() -> None:
    segments = played(Hyperband(max_steps=9), x_of, n_trials=9 + 5 + 3)
    begun = Counter(p.until for p in segments if p.start == 0)
    assert begun == {1: 9, 3: 5, 9: 3} and lengths(segments) == {1: 9, 3: 5 + 3, 9: 1 + 1 + 3}
    again = played(Hyperband(max_steps=9, sampler="tpe"), x_of, n_trials=9 + 5 + 3)
    assert lengths(again) == lengths(segments) and {p.number for p in again} == set(range(17))


def test_asha_promotes_as_soon_as_it_can() -> None:
    segments = played(ASHA(max_steps=9), x_of, n_trials=27)
    assert lengths(segments)[1] == 27 and 9 <= lengths(segments)[3] <= 14 and lengths(segments)[9] >= 3
    first = min((x_of(p), p.number) for p in segments)[1]
    assert first in {p.number for p in segments if p.until == 9}
    assert segments.index(next(p for p in segments if p.until == 3)) < 8  # before all have begun


def test_asha_finishes_the_best_where_no_trial_comes_to_its_end_by_itself() -> None:
    """The one that is best after 9 of 10 steps; where that fails, the next best."""
    for fails, lengths_then in ((set(), {1: 24, 3: 8, 9: 2, 10: 1}), ({0}, {1: 24, 3: 8, 9: 2, 10: 2})):
        ends: list[int] = []

        def loss(p: TrialSegment, fails: set[int] = fails, ends: list[int] = ends) -> float | None:
            ends += [p.number] if p.last else []
            return None if p.last and len(ends) - 1 in fails else x_of(p)

        segments = played(ASHA(max_steps=10), loss, n_trials=24)
        assert lengths(segments) == lengths_then
        assert ends == [n for _, n in sorted((x_of(p), p.number) for p in segments if p.until == 9)][: len(ends)]
    assert lengths(slid(ASHA(max_steps=10), x_of, 4, n_trials=24, seed=1))[10] == 1


@pytest.mark.parametrize("strategy", [Halving(9), ASHA(9), Hyperband(9), PopulationBased(9, 3)])
def test_what_fails_or_diverges_never_goes_on(strategy: Any) -> None:
    bad = {3: None, 5: math.inf}
    segments = played(strategy, lambda p: bad.get(p.number, x_of(p)), n_trials=12)
    stages = Counter(p.number for p in segments)
    if isinstance(strategy, PopulationBased):  # they take over from others
        assert all(any(p.number == n and p.parent[:7] not in ("", f"t{n:06}") for p in segments) for n in bad)
    else:
        assert all(stages[n] == 1 for n in bad)
    assert stages[3] == 1 or isinstance(strategy, PopulationBased)


def test_populations_hand_checkpoints_on() -> None:
    segments = played(PopulationBased(max_steps=6, every=2), x_of, n_trials=8)
    assert lengths(segments) == {2: 8, 4: 8, 6: 8}
    losses = {p.key: x_of(p) for p in segments}
    for p in (p for p in segments if p.stage):
        before = f"t{p.number:06}/{p.stage - 1}"  # type: ignore[operator]
        if p.parent == before:
            assert x_of(p) == losses[before]
        else:
            assert losses[p.parent] < losses[before]
    assert sum(p.parent[:7] != f"t{p.number:06}" for p in segments if p.stage) == 4


def test_racing_spares_folds_and_finds_the_winner() -> None:
    """In 200 races the winner is that of all folds as often as is stated, and much is spared."""
    kept, spent = 0, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        table = rng.uniform(0, 1, (30, 1)) + rng.normal(0, 0.3, (1, 5)) + rng.normal(0, 0.05, (30, 5))
        race = Race(range(30), 5)
        while pairs := race.next_folds():
            spent += len(pairs)
            for candidate, fold in pairs:
                race.tell(candidate, float(table[candidate, fold]))
        kept += int(np.argmin(table.mean(axis=1))) in race.kept()
    assert kept >= 190 and spent < 200 * 150 * 0.8


def test_folds_of_a_race_come_in_an_order_of_their_number_alone() -> None:
    """Not that of the data; the folds of a repeat together. The first look is after a fifth of them and one.

    After two of five a winner is lost in a quarter of data sets in some order, after three in a seventh.
    """
    looks = {2: 2, 3: 2, 4: 3, 5: 3, 6: 3, 10: 3, 11: 4}
    assert {k: len(Race([0, 1], k).next_folds()) // 2 for k in looks} == looks
    orders = [Race(range(3), 20, repeats=4).order for _ in range(2)]
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(20)) and orders[0] != list(range(20))
    assert all(len({fold // 5 for fold in orders[0][n : n + 5]}) == 1 for n in range(0, 20, 5))


@pytest.mark.parametrize("unequal", [False, True])
def test_a_race_keeps_the_winner_of_equal_candidates(unequal: bool) -> None:
    """The hardest there is: 25 folds, of which each look may lose the winner."""
    kept = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        table = rng.normal(0, 1, (40, 25)) * np.exp(0.7 * unequal * rng.normal(0, 1, (40, 1))) + rng.normal(0, 2, 25)
        race, whole = Race(range(40), 25), set[int]()
        while pairs := race.next_folds():
            whole = {number for number, _ in pairs}
            for number, fold in pairs:
                race.tell(number, float(table[number, fold]))
        kept += int(np.argmin(table.mean(axis=1))) in whole
    assert kept >= (54 if unequal else 57)


def test_racing_knows_what_is_certain() -> None:
    losses = np.array([[0.1, 0.2], [0.1, 0.2], [9.1, 9.2], [math.inf, 1.0], [0.12, 0.19], [5.0, 5.2]])
    chances = winning(losses, 5)
    assert chances[0] == 1 and chances[3] == 0 and chances[1] == 0.5 and chances[2] < chances[5] < chances[4]


class Seeded(optuna.samplers.BaseSampler):
    """For Optuna's own loop: a sampler whose random numbers come from the seed and the trial's number, as ours do."""

    def __init__(self, sampler: Any, seed: int):
        self._sampler, self._fresh, self._seed = sampler, copy.deepcopy(sampler), seed
        self.before_trial, self.infer_relative_search_space = sampler.before_trial, sampler.infer_relative_search_space
        self.after_trial = sampler.after_trial

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        self._sampler = copy.deepcopy(self._fresh)  # a Gaussian process begins with what it has fitted before
        reseed(self._sampler, f"{self._seed}/{trial.number}/joint")
        params: dict[str, Any] = self._sampler.sample_relative(study, trial, search_space)
        reseed(self._sampler, f"{self._seed}/{trial.number}")
        return params

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any: ...

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        return self._sampler.sample_independent(study, trial, name, distribution)


def curves(params: Any, step: int) -> tuple[float, float]:
    return (params["x"] - 1) ** 2 + params["n"] / 5 + 3 / step - (step > 5) * params["y"], (params["x"] + 1) ** 2


SAMPLERS: dict[str, Callable[..., Any]] = {
    "random": lambda **how: optuna.samplers.RandomSampler(),
    "tpe": lambda **how: optuna.samplers.TPESampler(multivariate=True, constant_liar=True, **how),
    "cmaes": lambda **how: optuna.samplers.CmaEsSampler(),
    "nsga2": lambda **how: optuna.samplers.NSGAIISampler(population_size=8, **how),
    "gp": lambda **how: optuna.samplers.GPSampler(**how),
}
FEW = [("tpe", "+"), ("cmaes", "+"), ("nsga2", "+-c"), ("tpe", "+c")]
MORE = [("random", "-"), ("tpe", "-"), ("cmaes", "-"), ("tpe", "++"), ("tpe", "-+c"), ("nsga2", "--"), ("gp", "+c")]


@pytest.mark.parametrize(("sampler", "goals"), FEW + [pytest.param(*row, marks=pytest.mark.slow) for row in MORE])
def test_samplers_of_optuna_are_told_what_optuna_tells_them(sampler: str, goals: str) -> None:
    """Its own loop has the same trials, states, values and best; + is a value to be maximized, c has constraints."""
    space = Space({"x": Float(-3, 3), "y": Float(1e-3, 1, log=True), "n": Int(1, 9, step=2)})
    ups = {name: sign == "+" for name, sign in zip("ab", goals.rstrip("c"), strict=False)}
    ups = dict(sorted(ups.items(), key=lambda pair: pair[1]))  # those to be minimized come first
    n = 12 if sampler == "gp" else 40
    given = {"constraints_func": lambda trial: trial.user_attrs["over"]} if "c" in goals else {}
    made = Optuna(SAMPLERS[sampler](**given))

    def values(params: Any, step: int) -> dict[str, float]:
        named = dict(zip("ab", curves(params, step), strict=True))
        return {name: -named[name] if up else named[name] for name, up in ups.items()}

    def ours(trial: Any) -> Any:
        for step in range(trial.start + 1, 10):
            trial.set_user_attr("over", (curves(trial.params, step)[0] - 3, trial.params["x"]))
            yield {"step": step, **values(trial.params, step)}

    def theirs(trial: Any) -> list[float]:
        params = {
            "x": trial.suggest_float("x", -3, 3),
            "y": trial.suggest_float("y", 1e-3, 1, log=True),
            "n": trial.suggest_int("n", 1, 9, step=2),
        }
        for step in range(1, 10):
            trial.set_user_attr("over", (curves(params, step)[0] - 3, params["x"]))
            if len(ups) == 1:
                trial.report(*values(params, step).values(), step)
        return list(values(params, 9).values())

    study = searched(
        ours, space, strategy=made, n_trials=n, seed=3, window=1,
        minimize=[name for name, up in ups.items() if not up], maximize=[name for name, up in ups.items() if up],
    )  # fmt: skip
    alone = optuna.create_study(
        study_name="mpitune-3", sampler=Seeded(SAMPLERS[sampler](**given), 3),
        directions=["maximize" if up else "minimize" for up in ups.values()],
    )  # fmt: skip
    alone.optimize(theirs, n_trials=n)
    over = [any(value > 0 for value in t.system_attrs.get("constraints") or ()) for t in alone.trials]
    assert [(t.params, t.state, [t.values[name] for name in ups]) for t in study.trials] == [
        (t.params, "infeasible" if over[t.number] else "complete", t.values) for t in alone.trials
    ]
    assert any(over) == ("c" in goals)
    if len(ups) > 1:
        assert [t.number for t in study.pareto] == [t.number for t in alone.best_trials]
    else:
        assert study.best.number == alone.best_trial.number


@pytest.mark.parametrize("join", [False, True])
def test_user_attributes_are_part_of_a_result(join: bool, tmp_path: Path) -> None:
    """They are there for `constraints_func` in a search that goes on, is adapted, or has jobs that join."""

    def objective(trial: Any) -> Any:
        trial.set_user_attr("over", (trial.params["x"] - 0.5, 1))
        return trial.params["x"]

    def constraints(trial: Any) -> Any:
        assert trial.user_attrs["over"] == [trial.params["x"] - 0.5, 1]
        return trial.user_attrs["over"][:1]

    sampler = optuna.samplers.TPESampler(constraints_func=constraints, n_startup_trials=4)
    how: dict[str, Any] = dict(strategy=sampler, window=2)
    for n in (6, 14):
        study = searched(objective, LINE, n_trials=n, join=join, results=tmp_path / "r", **how)
    whole = searched(objective, LINE, n_trials=14, **how)
    assert [(t.params, t.user_attrs) for t in study.trials] == [(t.params, t.user_attrs) for t in whole.trials]
    how = dict(n_trials=20, strategy=sampler, enqueue=[{"x": 0.25}], results=tmp_path / "r")
    wider = searched(objective, {"x": Float(0, 2)}, adapt=True, **how)
    assert [t.user_attrs for t in wider.trials] == [{"over": [t.params["x"] - 0.5, 1]} for t in wider.trials]


def test_constraints_are_known_from_the_journal(tmp_path: Path) -> None:
    def objective(trial: Any) -> Any:
        trial.set_user_attr("over", np.float32(0.5 - trial.params["x"]))
        return trial.params["x"]

    sampler = optuna.samplers.TPESampler(constraints_func=lambda trial: [trial.user_attrs["over"]])
    how: dict[str, Any] = dict(strategy=sampler, n_trials=9, results=tmp_path / "r")
    first, again = (searched(objective, LINE, **how) for _ in range(2))
    right = min(t.params["x"] for t in first.trials if t.params["x"] >= 0.5)
    assert right == first.best_value == again.best_value
    assert [t.state == "infeasible" for t in again.trials] == [t.params["x"] < 0.5 for t in again.trials]
    history = read_study(tmp_path / "r")
    candidates = read_candidates(history, goal := Goal("loss", False))
    best = ReportedStudy(tmp_path / "r", "", history, goal, candidates).best
    assert best is not None and best.value == right
    to_optuna(read(tmp_path / "r"), tmp_path / "log")
    file = optuna.storages.journal.JournalFileBackend(str(tmp_path / "log"))
    there = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(file))
    assert there.best_value == right
    plain = searched(objective, {"x": Float(0, 2)}, **{**how, "strategy": "tpe", "n_trials": 10}, adapt=True)
    assert plain.best_value < 0.5 and not plain.best.constraints


def test_no_name_means_something_to_the_engine(tmp_path: Path) -> None:
    """Of a user attribute, a value or a parameter: each is what it is, also for who reads the journal."""

    def objective(trial: Any) -> dict[str, float]:
        for name in ("@chosen", "@optuna", "@constraints"):
            trial.set_user_attr(name, {"state": "pruned", "params": {"@last": 7}})
        return {"loss": trial.params["@last"] ** 2, "loss@1": 5.0}

    how: dict[str, Any] = {"n_trials": 3, "minimize": "loss", "workers": 0, "results": tmp_path}
    study = search(objective, {"@last": Float(-1, 1), "fold": 2}, **how)
    assert [trial.state for trial in study.trials] == ["complete"] * 3 and len(study.trials[0].user_attrs) == 3
    assert study.best.values == {"loss": study.best.params["@last"] ** 2, "loss@1": 5.0} and not study.best.steps
    assert [trial.params for trial in read(tmp_path).trials] == [{"@last": t.params["@last"]} for t in study.trials]


def test_user_attributes_of_a_stage_are_kept_with_its_checkpoint() -> None:
    def objective(trial: Any) -> Any:
        (trial.folder / "state").touch()
        if not trial.start:
            trial.set_user_attr("model", {"layers": [trial.number, 2]})
        for step in range(trial.start + 1, 10):
            yield {"step": step, "loss": trial.params["x"]}

    study = searched(objective, LINE, strategy=ASHA(9), n_trials=9)
    assert all(t.user_attrs == {"model": {"layers": [t.number, 2]}} for t in study.trials)


def test_a_user_attribute_that_is_not_json_is_told() -> None:
    def objective(trial: Any, value: Any) -> float:
        trial.set_user_attr("a", value if trial.number == 1 else 0)
        return 1.0

    study = searched(lambda trial: objective(trial, math.nan), LINE, n_trials=3)
    assert [trial.error for trial in study.trials][::2] == ["", ""]
    assert "it gave nan as user attribute 'a': give JSON" in study.trials[1].error
    with pytest.raises(UsageError, match="correct the objective: it gave .5. as user attribute 'a'.*trial 1"):
        searched(lambda trial: objective(trial, {5}), LINE, n_trials=3)


class Stopping(optuna.samplers.RandomSampler):
    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        if trial.number == 2:
            study.stop()


def test_a_sampler_that_stops_its_study_ends_the_search() -> None:
    assert len(played(Stopping(seed=1), x_of, window=1)) == 3


@pytest.mark.parametrize(
    "made",
    [
        lambda: optuna.samplers.RandomSampler(),
        lambda: optuna.samplers.QMCSampler(scramble=True),
        lambda: optuna.samplers.PartialFixedSampler({}, optuna.samplers.QMCSampler(scramble=True, qmc_type="halton")),
    ],
)
def test_samplers_without_a_seed_get_that_of_the_study(made: Callable[[], Any], tmp_path: Path) -> None:
    how: dict[str, Any] = dict(window=2)
    for n in (5, 9):
        study = searched(x_of_trial, LINE, strategy=made(), n_trials=n, results=tmp_path / "r", **how)
    at_once = searched(x_of_trial, LINE, strategy=made(), n_trials=9, **how)
    assert [t.params for t in study.trials] == [t.params for t in at_once.trials]
    assert len({t.params["x"] for t in study.trials}) == 9
    other = searched(x_of_trial, LINE, strategy=made(), n_trials=9, seed=1, **how)
    assert [t.params for t in study.trials] != [t.params for t in other.trials]


def test_the_seed_of_a_scrambling_counts() -> None:
    seeds = []
    for given in (7, None, None):
        reseed(sampler := optuna.samplers.QMCSampler(scramble=True, seed=given), "3/0")
        seeds.append(sampler._seed)
    assert seeds[0] == 7 != seeds[1] == seeds[2]


@pytest.mark.parametrize("strategy", ["random", "sobol", "grid", "tpe", "cmaes", "nsga2", Halving(9, sampler="tpe")])
def test_points_beside_the_steps_are_evaluated(strategy: Any, tmp_path: Path) -> None:
    """As given; a sampler learns from the nearest. Also where the journal has one that ended the study before."""
    space = Space({"x": Float(0, 1, step=0.3), "n": Int(1, 10, step=4), "c": Choice(1, True, None)})
    points: list[dict[str, Any]] = [{"x": 0.25, "n": 3, "c": True}, {"x": 1.0, "n": 10, "c": None}]
    how: dict[str, Any] = dict(strategy=strategy, n_trials=8, results=tmp_path / "r", window=1)
    study = searched(stepping, space, enqueue=iter(points), **how)
    assert [dict(trial.params) for trial in study.trials[:2]] == points and study.trials[0].params["c"] is True
    assert all(trial.params["n"] in (1, 5, 9) for trial in study.trials[2:])
    journal = tmp_path / "r" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]))
    again = searched(stepping, space, enqueue=points, **how)
    assert [(t.params, t.state) for t in again.trials] == [(t.params, t.state) for t in study.trials]


def test_optuna_tells_options_apart_that_python_calls_equal() -> None:
    """The loss of True is the best; TPE, which took it for 1, prefers it."""
    space = Space({"c": Choice(1, 1.0, True, None, "None")})
    segments = played("tpe", lambda p: float(p.point["c"] is not True), space, n_trials=60)
    kinds = Counter(repr(p.point["c"]) for p in segments[20:])
    assert kinds.most_common(1)[0][0] == "True" and len({repr(p.point["c"]) for p in segments}) == 5


def test_tpe_on_conditions_constraints_and_points_to_begin_with() -> None:
    space = Space(
        {"kind": Choice("a", "b"), "x": When(Float(0, 1), kind="a"), "y": Float(0, 1)}, [lambda p: p["y"] < 0.8]
    )
    segments = played("tpe", lambda p: float(p.point["y"]), space, n_trials=30, enqueued=[{"kind": "a", "y": 0.25}])
    assert segments[0].point["y"] == 0.25 and "x" in segments[0].point
    assert all(("x" in p.point) == (p.point["kind"] == "a") and float(p.point["y"]) < 0.8 for p in segments)


@pytest.mark.parametrize(
    "strategy",
    [
        "random", "tpe", "cmaes", "nsga2", Halving(9), Halving(9, sampler="tpe"), Hyperband(9), ASHA(9, sampler="tpe"),
        Hyperband(9, sampler="tpe"), PopulationBased(9, 3),
    ],
)  # fmt: skip
def test_what_ends_first_changes_nothing(strategy: Any) -> None:
    """A trial that fails and one that diverges are among them."""
    space = Space({"x": Float(0, 1), "y": Float(0, 1)})
    bad = {3: None, 5: math.inf}
    loss: Any = lambda p: bad.get(p.number, x_of(p) + float(p.point["y"]) / max(1, p.until))  # noqa: E731
    in_order = slid(strategy, loss, 5, space=space)
    assert len({segment.number for segment in in_order}) == 20
    for seed in range(5):
        assert slid(strategy, loss, 5, seed, space=space) == in_order


@pytest.mark.parametrize("width", [1, 3, 8, 50])
def test_a_trial_is_proposed_when_all_but_the_last_of_a_window_are_told(width: int) -> None:
    """Those and no others, in the order asked, whatever ended first."""
    for seed in (None, 0, 1, 2):
        strategy = Recording()
        slid(strategy, lambda p: float(p.number), width, seed)
        assert [index for index, _ in strategy.told] == list(range(20))
        assert strategy.known == {n: list(range(max(0, n - width + 1))) for n in range(20)}


@dataclass(frozen=True)
class Unequal(Strategy):
    """Trials with so many steps; the numbers of those that were told are written down in `told`."""

    steps: tuple[int, ...]
    told: list[int] = field(default_factory=list, repr=False)

    def begin(self, problem: Problem) -> list[TrialScheduler]:
        strategy, left = self, list(enumerate(self.steps))

        class Scheduler(TrialScheduler):
            def ask(self, most: int) -> list[TrialSegment]:
                new, left[:] = left[:most], left[most:]
                return [TrialSegment(number, {"x": 0.5}, 0, True, 0, steps) for number, steps in new]

            def tell(self, segment: TrialSegment, feedback: Feedback) -> None:
                strategy.told.append(segment.number)

        return [Scheduler()]


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_short_stages_are_told_before_a_long_one_that_was_asked_before(seed: int | None) -> None:
    """In the order in which two workers would end them, whatever ends first; those that end together as asked."""
    strategy = Unequal((9, 1, 2, 3, 1, 9, 1, 1))
    slid(strategy, lambda p: 1.0, 2, seed)
    assert strategy.told == [1, 2, 3, 4, 0, 6, 7, 5]


def test_a_bracket_begins_while_the_one_before_waits_for_its_last() -> None:
    segments = slid(Hyperband(9, sampler="tpe"), x_of, 4, n_trials=17)
    assert lengths(segments) == {1: 9, 3: 5 + 3, 9: 1 + 1 + 3}
    second = next(place for place, p in enumerate(segments) if p.start == 0 and p.until == 3)
    last_of_first = max(place for place, p in enumerate(segments) if p.number < 9)
    assert second < last_of_first


def test_a_scheduler_that_asks_at_once_is_asked_again_when_all_are_told() -> None:
    class Patient(Unequal):
        def begin(self, problem: Problem) -> list[TrialScheduler]:
            (scheduler,) = super().begin(problem)
            ask, asked = scheduler.ask, []

            def all_told(most: int) -> list[TrialSegment]:
                assert len(asked) == len(self.told)
                asked.extend(new := ask(most))
                return new

            scheduler.at_once, scheduler.ask = True, all_told  # type: ignore[method-assign]
            return [scheduler]

    strategy = Patient((9, 1, 2, 3, 1, 9, 1, 1))
    slid(strategy, lambda p: 1.0, 3, 0)
    assert strategy.told == list(range(8))


def stepping(trial: Any) -> Any:
    state = trial.folder / "step"
    done = int(state.read_text()) if trial.start else 0
    assert done == trial.start
    for step in range(done + 1, 10):
        state.write_text(str(step))
        yield {"step": step, "loss": trial.params["x"] + 1 / step, "begun": float(done)}


def test_checkpoints_are_handed_from_stage_to_stage(tmp_path: Path) -> None:
    study = searched(stepping, LINE, strategy=Halving(9), n_trials=9, results=tmp_path / "r")
    assert [t.state for t in study.trials].count("pruned") == 8
    assert study.best.values["begun"] == 3 and list(study.best.steps) == list(range(1, 10))
    assert len({len(t.steps) for t in study.trials}) == 3
    again = searched(stepping, LINE, strategy=Halving(9), n_trials=9, results=tmp_path / "r")
    assert [(t.params, t.values, t.steps) for t in again.trials] == [
        (t.params, t.values, t.steps) for t in study.trials
    ]
    with pytest.raises(UsageError, match="holds a study with strategy = "):
        searched(stepping, LINE, strategy=Halving(9), n_trials=12, results=tmp_path / "r")
    study = searched(stepping, LINE, strategy=PopulationBased(6, 2), n_trials=4, results=tmp_path / "p")
    assert {t.state for t in study.trials} == {"complete"} and {t.values["begun"] for t in study.trials} == {4.0}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("strategy", ["random", Halving(9), ASHA(9), PopulationBased(9, 3)])
def test_steps_may_begin_at_0(strategy: Any, keeps: bool) -> None:
    """The same trials go on as with steps from 1."""

    def stepping_from(first: int) -> Any:
        def objective(trial: Any) -> Any:
            done = 0
            if keeps and trial.start:
                done = int((trial.folder / "done").read_text())
                assert done == trial.start
            for step in range(done, 9):
                if keeps:
                    (trial.folder / "done").write_text(str(step + 1))
                yield {"step": step + first, "loss": trial.params["x"] + 1 / (step + 1)}

        return objective

    how: dict[str, Any] = dict(strategy=strategy, n_trials=9, window=3)
    zero, one = (searched(stepping_from(first), LINE, **how) for first in (0, 1))
    for a, b in zip(zero.trials, one.trials, strict=True):
        assert (a.params, a.state, a.values) == (b.params, b.state, b.values)
        assert [step + 1 for step in a.steps] == list(b.steps)


def test_nan_after_the_last_checkpoint_fails_its_trial_alone() -> None:
    """The second attempt finds a checkpoint of its end, and yields nothing."""

    def objective(trial: Any) -> Any:
        state = trial.folder / "done"
        for step in range(int(state.read_text()) if state.exists() else 0, 3):
            state.write_text(str(step + 1))
            yield {"step": step, "loss": math.nan if trial.number == 1 and step == 2 else 1.0}

    study = searched(objective, LINE, strategy=Halving(3, 3), n_trials=3)
    assert [trial.state for trial in study.trials] == ["complete", "failed", "complete"]


@pytest.mark.parametrize("steps", [(1, 3, 2), (2, 2), (-1, 0), (0.5, 1), (0, math.inf)])
def test_steps_that_do_not_grow_are_told(steps: tuple[float, ...]) -> None:
    def objective(trial: Any) -> Any:
        for step in steps:
            yield {"step": step, "loss": 1.0}

    with pytest.raises(UsageError, match="it said step .*: say whole numbers that begin at 0 or 1 and grow"):
        searched(objective, LINE, strategy=Halving(9), n_trials=2)


@pytest.mark.parametrize(
    ("strategy", "change", "told"),
    [
        ("hyperband", {}, "give one with its arguments, such as mpitune.strategies.Hyperband(...)"),
        (Halving(9), {"objective": "true {x} {n} {kind} {y}"}, "so the command must have {until}"),
        (Halving(9), {"minimize": ["loss", "cost"]}, "Halving compares one value, not loss, cost"),
        (Halving(9, sampler=Halving(3)), {}, "its sampler draws points"),
        (Hyperband(27), {"n_trials": None}, "n_trials is missing"),
        (
            PopulationBased(9),
            {"n_trials": 4, "space": Space({"x": Int(0, 1), "y": When(Int(0, 3), x=1)})},
            "needs a space without conditions",
        ),
        ("cmaes", {}, "CMA-ES needs two or more numbers"),
        (optuna.samplers.GridSampler({"x": [1]}), {}, "GridSampler goes through all points: use strategy='grid'"),
        (optuna.samplers.BruteForceSampler(), {}, "BruteForceSampler goes through all points: use strategy='grid'"),
        (
            optuna.samplers.PartialFixedSampler({"x": 3}, optuna.samplers.TPESampler()),
            {},
            "the sampler draws x = 3.0, not in Float",
        ),
        (Optuna("BestSampler"), {}, "Optuna has no sampler 'BestSampler'"),
        (Grid(points=0), {}, "give at least one point"),
    ],
)
def test_strategies_that_do_not_fit(strategy: Any, change: dict[str, Any], told: str, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(objective=stepping, space=LINE, n_trials=1, results=tmp_path / "r")
    with pytest.raises(UsageError) as error:
        searched(strategy=strategy, **{**how, **change})
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("bad", [lambda: Halving(0), lambda: Halving(9, eta=1)])
def test_options_of_strategies(bad: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="give"):
        bad()


def test_without_optuna_its_extra_is_named(program: Any) -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from mpitune import search, Float\n"
        "search(lambda t: 1.0, {'x': Float(0, 1)}, strategy='tpe', n_trials=3, minimize='loss', workers=0)"
    )
    done = program("-c", code, status=2)
    assert done.stderr.count("\n") == 1
    assert "Optuna is not installed (" in done.stderr and ': pip install "mpitune[search]", or use' in done.stderr


@pytest.mark.parametrize(
    "strategy",
    ["tpe", "sobol", ASHA(9), Hyperband(9, sampler="tpe")],
)
def test_a_search_that_was_stopped_goes_on_as_if_it_was_not(strategy: Any, tmp_path: Path) -> None:
    """The journal of a search is cut in its middle; the same call finds what the whole one has found."""
    how: dict[str, Any] = dict(strategy=strategy, n_trials=14, results=tmp_path / "r", window=4)
    whole = searched(stepping, LINE, **how)
    journal = tmp_path / "r" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    again = searched(stepping, LINE, **how)
    assert [(t.params, t.state, t.values) for t in again.trials] == [
        (t.params, t.state, t.values) for t in whole.trials
    ]


@dataclass(frozen=True)
class Recording(Random):
    """Random points; `told` has what was told, `known` the numbers that were told before a point was drawn."""

    told: list[tuple[int, float]] = field(default_factory=list, repr=False)
    known: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def draws(self, problem: Problem) -> Sampler:
        drawn = super().draws(problem)
        drawn.adaptive, point = True, drawn.point
        tell: Any = lambda index, point, told, pruned=False: self.told.append((index, told.loss))  # noqa: E731

        def noted(index: int) -> Any:
            self.known[index] = [number for number, _ in self.told]
            return point(index)

        drawn.tell, drawn.point = tell, noted  # type: ignore[method-assign]
        return drawn


@pytest.mark.parametrize("how", [{"window": 4}, {}])
def test_a_strategy_is_told_of_each_trial_in_the_order_asked(how: dict[str, int]) -> None:
    """Early trials take longest here, so workers return them last."""

    def objective(trial: Any) -> float:
        import time

        time.sleep(0.05 * (3 - trial.number % 4))
        return float(trial.number) + trial.params["x"] / 2

    strategy = Recording()
    study = searched(objective, LINE, strategy=strategy, n_trials=10, workers=2, **how)
    assert strategy.told == [(t.number, t.values["loss"]) for t in study.trials] and len(study) == 10
    assert [len(known) for known in strategy.known.values()] == [max(0, n - 3) for n in range(10)]


@pytest.mark.parametrize("strategy", ["random", ASHA(4)])
def test_failed_ones_of_a_journal_are_tried_again_beside_new_ones(strategy: Any, tmp_path: Path) -> None:
    fails = True

    def objective(trial: Any) -> Any:
        for step in range(4):
            yield {"step": step + 1, "loss": math.nan if fails and trial.number in (3, 7) else trial.params["x"]}

    how: dict[str, Any] = {"strategy": strategy, "workers": 2, "results": tmp_path / "r"}
    searched(objective, {"x": Float(0, 1)}, n_trials=9, **how)
    fails = False
    how["options"] = RunOptions(quiet=True, retry_failed=True)
    study = searched(objective, {"x": Float(0, 1)}, n_trials=14, **how)
    assert [trial.number for trial in study.trials] == list(range(14))
    assert not any(trial.state == "failed" for trial in study.trials)
