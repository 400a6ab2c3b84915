"""Strategies: what each decides, that layouts agree, that failures, infinities and pruned trials are seen as such."""

from __future__ import annotations

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
from mpitune.optimize.strategies.base import Feedback, Problem, Sampler, TrialScheduler, number_of, trial_of
from mpitune.optimize.strategies.plain import Points
from mpitune.optimize.strategies.view import reseed
from mpitune.optimize.tuning import LeadersPart, Tuning, WorkersPart
from mpitune.storage.trials import read
from mpitune.trial import Ending, Result, Trial
from tests.mpitune.optimize.objectives import searched

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
LINE = Space({"x": Float(0, 1)})
LEARN = ["tpe", "cmaes", "nsga2"]
STAGED = [Halving(9), ASHA(9), Hyperband(9), PopulationBased(9, 3)]
BOTH = [Halving(9, sampler="tpe"), ASHA(9, sampler="tpe"), Hyperband(9, sampler="tpe")]
Loss = Callable[[Trial], float | None]


def slid(strategy: Any, loss: Loss, width: int = 4, seed: int | None = None, **how: Any) -> list[Trial]:
    """The trials and stages of a search with a window, in the order asked. `loss` says what becomes of each.

    None: it fails. They end in an order that is drawn by `seed`.
    """
    usual: dict[str, Any] = {"space": LINE, "n_trials": 20, "window": width, "staged": True}
    problem = Problem(objectives={"loss": False}, **{**usual, **how})
    plan = LeadersPart(strategy_of(strategy), (), SearchLimit(), None, None)
    tuning = Tuning("", "", ("loss",), 0, width, (), WorkersPart(None, problem, Path()), plan)
    study, rng = Study(tuning.searches(), {}, {}), np.random.default_rng(seed)
    open_, asked = study.start(), dict[str, Trial]()
    while open_ or study.is_behind:
        if study.is_behind and (not open_ or rng.random() < 0.5):
            open_ += study.catch_up()
            continue
        asked.update((trial.key, trial) for (trial,) in open_)
        ((trial,),) = (open_.pop(0 if seed is None else int(rng.integers(len(open_)))),)
        value, until = loss(trial), trial.segment.until
        failed, values = value is None, {} if value is None else {"loss": value}
        ending = Ending(steps={until: values} if until and not failed else {})
        open_ += study.record(Result(trial.key, values, error="it broke" if failed else None, ending=ending))
    assert study.finished and study.n_open == 0 and len(asked) == study.n_done
    return [asked[outcome.trial.key] for outcome in study.outcomes()]


def x_of(trial: Any) -> float:
    return float(trial.params["x"])


def lengths(trials: list[Trial]) -> dict[int, int]:
    return dict(Counter(trial.segment.until for trial in trials))


def ended_at(trials: list[Trial], until: int) -> list[int]:
    return [number_of(trial) for trial in trials if trial.segment.until == until]


def test_halving_keeps_the_best_third() -> None:
    trials = slid(Halving(max_steps=9), x_of, n_trials=18)
    assert lengths(trials) == {1: 18, 3: 6, 9: 2}
    best = sorted((x_of(trial), number_of(trial)) for trial in trials if trial.segment.until == 1)
    assert set(ended_at(trials, 9)) == {number for _, number in best[:2]}
    parts = (trial.segment for trial in trials)
    assert all(s.last == (s.until == 9) and s.start == {1: 0, 3: 1, 9: 3}[s.until] for s in parts)


@pytest.mark.parametrize("strategy", ["random", "sobol"])
def test_independent_points_are_asked_for_at_once(strategy: str) -> None:
    """One point is drawn before, to see that there is any. They are those of one by one."""
    drawn: list[Any] = []
    space = Space({"x": Float(0, 1), "n": Int(1, 9)}, constraints=[lambda p: drawn.append(p) or True])
    problem = Problem(space, {"loss": False}, seed=3, n_trials=300)
    proposer = strategy_of(strategy).begin(problem)
    assert len(drawn) == 1
    trials = proposer.ask(7)
    assert len(drawn) == 300 and list(map(number_of, trials)) == list(range(300)) and not proposer.ask(7)
    points = Points(strategy_of(strategy).draws(problem), problem)  # type: ignore[attr-defined]
    assert [point for _ in trials for point in points.take(1)] == [(number_of(trial), trial.params) for trial in trials]
    with pytest.raises(UsageError, match="fulfils the constraints"):
        strategy_of(strategy).begin(Problem(Space(space.parts, [lambda p: False]), {"loss": False}, n_trials=5))


def test_hyperband_has_the_brackets_of_its_source_and_one_begins_while_the_one_before_waits() -> None:
    trials = slid(Hyperband(max_steps=9), x_of, n_trials=9 + 5 + 3)
    begun = Counter(trial.segment.until for trial in trials if trial.segment.start == 0)
    assert begun == {1: 9, 3: 5, 9: 3} and lengths(trials) == {1: 9, 3: 5 + 3, 9: 1 + 1 + 3}
    again = slid(Hyperband(max_steps=9, sampler="tpe"), x_of, n_trials=9 + 5 + 3)
    assert lengths(again) == lengths(trials) and set(map(number_of, again)) == set(range(17))
    second = next(n for n, trial in enumerate(again) if trial.segment.start == 0 and trial.segment.until == 3)
    assert second < max(n for n, trial in enumerate(again) if number_of(trial) < 9)


def test_asha_promotes_as_soon_as_it_can() -> None:
    trials = slid(ASHA(max_steps=9), x_of, n_trials=27)
    assert lengths(trials)[1] == 27 and 9 <= lengths(trials)[3] <= 14 and lengths(trials)[9] >= 3
    assert min((x_of(trial), number_of(trial)) for trial in trials)[1] in ended_at(trials, 9)
    assert next(n for n, trial in enumerate(trials) if trial.segment.until == 3) < 8  # before all have begun


def test_asha_finishes_the_best_where_no_trial_comes_to_its_end_by_itself() -> None:
    """The one that is best after 9 of 10 steps; where that fails, the next best."""
    for fails, right in ((0, {1: 24, 3: 8, 9: 2, 10: 1}), (1, {1: 24, 3: 8, 9: 2, 10: 2})):
        ends: list[int] = []

        def loss(trial: Trial, fails: int = fails, ends: list[int] = ends) -> float | None:
            ends += [number_of(trial)] if trial.segment.last else []
            return None if trial.segment.last and len(ends) <= fails else x_of(trial)

        trials = slid(ASHA(max_steps=10), loss, n_trials=24)
        assert lengths(trials) == right
        best = sorted((x_of(trial), number_of(trial)) for trial in trials if trial.segment.until == 9)
        assert ends == [number for _, number in best][: len(ends)]


@pytest.mark.parametrize("strategy", STAGED)
def test_what_fails_or_diverges_never_goes_on(strategy: Any) -> None:
    bad = {3: None, 5: math.inf}
    trials = slid(strategy, lambda trial: bad.get(number_of(trial), x_of(trial)), n_trials=12)
    for n in bad:
        stages = [trial for trial in trials if number_of(trial) == n]
        if isinstance(strategy, PopulationBased):  # it takes over from others
            assert any(trial.segment.parent[:7] not in ("", f"t{n:06}") for trial in stages)
        else:
            assert len(stages) == 1


def test_populations_hand_checkpoints_on() -> None:
    trials = slid(PopulationBased(max_steps=6, every=2), x_of, n_trials=8)
    assert lengths(trials) == {2: 8, 4: 8, 6: 8}
    losses, others = {trial.key: x_of(trial) for trial in trials}, 0
    for trial in (trial for trial in trials if trial.segment.stage):
        before, parent = f"t{number_of(trial):06}/{(trial.segment.stage or 0) - 1}", trial.segment.parent
        others += parent != before
        assert x_of(trial) == losses[before] if parent == before else losses[parent] < losses[before]
    assert others == 4


@pytest.mark.parametrize("strategy", ["random", *LEARN, *STAGED, *BOTH])
def test_what_ends_first_changes_nothing(strategy: Any) -> None:
    """A trial that fails and one that diverges are among them."""
    space, bad = Space({"x": Float(0, 1), "y": Float(0, 1)}), {3: None, 5: math.inf}

    def loss(trial: Trial) -> float | None:
        return bad.get(number_of(trial), x_of(trial) + float(trial.params["y"]) / max(1, trial.segment.until))

    in_order = slid(strategy, loss, 5, space=space)
    assert len(set(map(number_of, in_order))) == 20
    for seed in range(5):
        assert slid(strategy, loss, 5, seed, space=space) == in_order


def stepping(trial: Any) -> Any:
    state = trial.folder / "step"
    done = int(state.read_text()) if trial.start else 0
    assert done == trial.start
    for step in range(done + 1, 10):
        state.write_text(str(step))
        trial.set_user_attr("model", [trial.number])
        yield {"step": step, "loss": trial.params["x"] + 1 / step, "begun": float(done)}


def found(study: Any) -> list[Any]:
    return [(trial.params, trial.state, trial.values, trial.steps, trial.user_attrs) for trial in study.trials]


@pytest.mark.parametrize("strategy", ["sobol", "tpe", STAGED[1], STAGED[3], BOTH[2]])
def test_points_beside_the_steps_are_evaluated_and_a_cut_journal_goes_on(strategy: Any, tmp_path: Path) -> None:
    """They are evaluated as given; a sampler learns from the nearest, also from those that the journal has."""
    space = Space({"x": Float(0, 1, step=0.3), "n": Int(1, 10, step=4), "c": Choice(1, True, None)})
    points: list[dict[str, Any]] = [{"x": 0.25, "n": 3, "c": True}, {"x": 1.0, "n": 10, "c": None}]
    population = isinstance(strategy, PopulationBased)
    how: dict[str, Any] = dict(strategy=strategy, n_trials=9, results=tmp_path / "r", window=2)
    study = searched(stepping, space, enqueue=iter(points), **how)
    assert population or [dict(trial.params) for trial in study.trials[:2]] == points
    assert population or all(trial.params["n"] in (1, 5, 9) for trial in study.trials[2:])
    assert study.trials[0].params["c"] is not 1 and all(t.user_attrs == {"model": [t.number]} for t in study.trials)  # noqa: F632
    journal = tmp_path / "r" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    assert found(searched(stepping, space, enqueue=points, **how)) == found(study)


def test_a_stage_goes_on_from_the_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    study = searched(stepping, LINE, strategy=Halving(9), n_trials=9, results=tmp_path / "r")
    assert [t.state for t in study.trials].count("pruned") == 8 and len({len(t.steps) for t in study.trials}) == 3
    assert study.best.values["begun"] == 3 and list(study.best.steps) == list(range(1, 10))
    with pytest.raises(UsageError, match="holds a study with strategy = "):
        searched(stepping, LINE, strategy=Halving(9), n_trials=12, results=tmp_path / "r")


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("strategy", ["random", STAGED[0], STAGED[3]])
def test_steps_may_begin_at_0(strategy: Any, keeps: bool) -> None:
    """The same trials go on as with steps from 1."""

    def stepping_from(first: int) -> Any:
        def objective(trial: Any) -> Any:
            done = int((trial.folder / "done").read_text()) if keeps and trial.start else 0
            assert done == (trial.start if keeps else 0)
            for step in range(done, 9):
                if keeps:
                    (trial.folder / "done").write_text(str(step + 1))
                yield {"step": step + first, "loss": trial.params["x"] + 1 / (step + 1)}

        return objective

    zero, one = (searched(stepping_from(n), LINE, strategy=strategy, n_trials=9, window=3) for n in (0, 1))
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


@dataclass(frozen=True)
class Recording(Random):
    """Random points; `told` has what was told, `known` the numbers that were told before a point was drawn."""

    told: list[tuple[int, float]] = field(default_factory=list, repr=False)
    known: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def draws(self, problem: Problem) -> Sampler:
        drawn = super().draws(problem)
        drawn.adaptive, point = True, drawn.point
        tell: Any = lambda index, point, told: self.told.append((index, told.loss))  # noqa: E731

        def noted(index: int) -> Any:
            self.known[index] = [number for number, _ in self.told]
            return point(index)

        drawn.tell, drawn.point = tell, noted  # type: ignore[method-assign]
        return drawn


@pytest.mark.parametrize("width", [1, 3, 8, 50])
def test_a_trial_is_proposed_when_all_but_the_last_of_a_window_are_told(width: int) -> None:
    """Those and no others, in the order asked, whatever ended first."""
    for seed in (None, 0, 1, 2):
        strategy = Recording()
        slid(strategy, lambda trial: float(number_of(trial)), width, seed)
        assert [index for index, _ in strategy.told] == list(range(20))
        assert strategy.known == {n: list(range(max(0, n - width + 1))) for n in range(20)}


def test_a_strategy_is_told_of_each_trial_in_the_order_asked() -> None:
    """Early trials take longest here, so workers return them last. By default the window is twice the workers."""

    def objective(trial: Any) -> float:
        import time

        time.sleep(0.05 * (3 - trial.number % 4))
        return float(trial.number) + trial.params["x"] / 2

    strategy = Recording()
    study = searched(objective, LINE, strategy=strategy, n_trials=10, workers=2)
    assert strategy.told == [(t.number, t.values["loss"]) for t in study.trials] and len(study) == 10
    assert [len(known) for known in strategy.known.values()] == [max(0, n - 3) for n in range(10)]


@dataclass(frozen=True)
class Unequal(Strategy):
    """Trials with so many steps; the numbers of those that were told are written down in `told`."""

    steps: tuple[int, ...] = (9, 1, 2, 3, 1, 9, 1, 1)
    told: list[int] = field(default_factory=list, repr=False)
    at_once: bool = False

    def begin(self, problem: Problem) -> TrialScheduler:
        strategy, left, asked = self, list(enumerate(self.steps)), list[int]()

        class Scheduler(TrialScheduler):
            at_once = strategy.at_once

            def ask(self, most: int) -> list[Trial]:
                assert not self.at_once or len(asked) == len(strategy.told), "not all were told"
                new, left[:] = left[:most], left[most:]
                asked.extend(number for number, _ in new)
                return [trial_of(number, {"x": 0.5}, 0, until=steps) for number, steps in new]

            def tell(self, trial: Trial, feedback: Feedback) -> None:
                strategy.told.append(number_of(trial))

        return Scheduler()


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_short_stages_are_told_before_a_long_one_that_was_asked_before(seed: int | None) -> None:
    """In the order in which two workers would end them, whatever ends first; those that end together as asked.

    A scheduler that asks at once is told as asked.
    """
    for at_once, right in ((False, [1, 2, 3, 4, 0, 6, 7, 5]), (True, list(range(8)))):
        strategy = Unequal(at_once=at_once)
        slid(strategy, lambda trial: 1.0, 2, seed)
        assert strategy.told == right


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
    assert len(slid(Stopping(seed=1), x_of, 1)) == 3


def test_samplers_without_a_seed_get_that_of_the_study(tmp_path: Path) -> None:
    made = optuna.samplers.QMCSampler
    for n, of in enumerate((
        optuna.samplers.RandomSampler, lambda: made(scramble=True),
        lambda: optuna.samplers.PartialFixedSampler({}, made(scramble=True, qmc_type="halton")),
    )):  # fmt: skip
        how: dict[str, Any] = dict(window=2, results=tmp_path / str(n))
        for n_trials in (5, 9):
            study = searched(x_of, LINE, strategy=of(), n_trials=n_trials, **how)
        at_once, other = (searched(x_of, LINE, strategy=of(), n_trials=9, seed=seed, window=2) for seed in (0, 1))
        assert found(study) == found(at_once) != found(other) and len({x_of(t) for t in study.trials}) == 9
    seeds = []
    for given in (7, None, None):  # that of a scrambling counts
        reseed(sampler := made(scramble=True, seed=given), "3/0")
        seeds.append(sampler._seed)
    assert seeds[0] == 7 != seeds[1] == seeds[2]


def test_tpe_knows_options_conditions_constraints_and_points_to_begin_with() -> None:
    """It tells options apart that Python calls equal: the loss of True is the best, and 1 is not."""
    space = Space({"c": Choice(1, 1.0, True, None, "None")})
    trials = slid("tpe", lambda trial: float(trial.params["c"] is not True), space=space, n_trials=60)
    kinds = Counter(repr(trial.params["c"]) for trial in trials[20:])
    assert kinds.most_common(1)[0][0] == "True" and len({repr(trial.params["c"]) for trial in trials}) == 5
    parts = {"kind": Choice("a", "b"), "x": When(Float(0, 1), kind="a"), "y": Float(0, 1)}
    how: dict[str, Any] = dict(n_trials=30, enqueued=[{"kind": "a", "y": 0.25}])
    points = [t.params for t in slid("tpe", lambda t: float(t.params["y"]), space=Space(parts, [below]), **how)]
    assert points[0]["y"] == 0.25 and "x" in points[0]
    assert all(("x" in point) == (point["kind"] == "a") and below(point) for point in points)


def below(point: Any) -> bool:
    return bool(point["y"] < 0.8)


CONDITION = Space({"x": Int(0, 1), "y": When(Int(0, 3), x=1)})
FIXED = optuna.samplers.PartialFixedSampler({"x": 3}, optuna.samplers.TPESampler())


@pytest.mark.parametrize(
    ("strategy", "change", "told"),
    [
        ("hyperband", {}, "give one with its arguments, such as mpitune.strategies.Hyperband(...)"),
        (Halving(9), {"objective": "true {x} {n} {kind} {y}"}, "so the command must have {until}"),
        (Halving(9), {"minimize": ["loss", "cost"]}, "Halving compares one value, not loss, cost"),
        (Halving(9, sampler=Halving(3)), {}, "its sampler draws points"),
        (lambda: Halving(0), {}, "give 1 <= min_steps <= max_steps"),
        (lambda: Halving(9, eta=1), {}, "give an eta of at least 2"),
        (Hyperband(27), {"n_trials": None}, "n_trials is missing"),
        (PopulationBased(9), {"n_trials": 4, "space": CONDITION}, "needs a space without conditions"),
        ("cmaes", {}, "CMA-ES needs two or more numbers"),
        (optuna.samplers.GridSampler({"x": [1]}), {}, "GridSampler goes through all points: use strategy='grid'"),
        (optuna.samplers.BruteForceSampler(), {}, "BruteForceSampler goes through all points: use strategy='grid'"),
        (optuna.samplers.TPESampler(constraints_func=len), {}, "constraints_func is for study.optimize of Optuna"),
        (FIXED, {}, "the sampler draws x = 3.0, not in Float"),
        (Optuna("BestSampler"), {}, "Optuna has no sampler 'BestSampler'"),
        (Grid(points=0), {}, "give at least one point"),
    ],
)
def test_strategies_that_do_not_fit(strategy: Any, change: dict[str, Any], told: str, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(objective=stepping, space=LINE, n_trials=1, results=tmp_path / "r")
    with pytest.raises(UsageError) as error:
        made = strategy() if callable(strategy) and not isinstance(strategy, str) else strategy
        searched(strategy=made, **{**how, **change})
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


def test_without_optuna_its_extra_is_named(program: Any) -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from mpitune import search, Float\n"
        "search(lambda t: 1.0, {'x': Float(0, 1)}, strategy='tpe', n_trials=3, minimize='loss', workers=0)"
    )
    done = program("-c", code, status=2)
    assert done.stderr.count("\n") == 1
    assert "Optuna is not installed (" in done.stderr and ': pip install "mpitune[search]", or use' in done.stderr


@pytest.mark.parametrize("strategy", ["random", ASHA(4)])
def test_failed_ones_of_a_journal_are_tried_again_beside_new_ones(strategy: Any, tmp_path: Path) -> None:
    fails = True

    def objective(trial: Any) -> Any:
        for step in range(4):
            yield {"step": step + 1, "loss": math.nan if fails and trial.number in (3, 7) else trial.params["x"]}

    how: dict[str, Any] = {"strategy": strategy, "results": tmp_path / "r"}
    searched(objective, {"x": Float(0, 1)}, n_trials=9, **how)
    fails = False
    how["options"] = RunOptions(quiet=True, retry_failed=True)
    study = searched(objective, {"x": Float(0, 1)}, n_trials=14, **how)
    assert [trial.number for trial in study.trials] == list(range(14))
    assert not any(trial.state == "failed" for trial in study.trials)
