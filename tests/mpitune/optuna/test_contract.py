"""`optimize` keeps what `Study.optimize` promises, and a trial what Optuna's does."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import Trial, TrialState

from mpitune import Float, Int, RunOptions, search
from mpitune.errors import UsageError
from mpitune.optimize import door
from mpitune.optuna import asking, optimize
from mpitune.optuna.objective import InWorker
from mpitune.processes.pickles import packed_call
from mpitune.processes.process import packed
from mpitune.storage.history import read_study
from mpitune.tools.status import look
from tests.mpitune.optuna.made import HERE, TWO, digest, new, square, states


def test_callbacks_are_called_in_the_order_of_numbers_until_an_exception_that_is_not_caught() -> None:
    heard: list[tuple[int, int]] = []

    def objective(trial: Trial) -> float:
        time.sleep(0.02 * (3 - trial.number % 4))
        if trial.number in (4, 5):
            raise KeyError(trial.number)
        if trial.number == 2:
            raise ValueError("caught")
        return square(trial)

    study, hear = new(), lambda study, trial: heard.append((trial.number, len(study.trials)))
    with pytest.raises(KeyError, match="4") as raised:
        optimize(study, objective, 30, catch=(ValueError,), callbacks=[hear], window=4, options=TWO)
    assert "in objective" in str(raised.value.__cause__)
    assert states(study) == "CCFCF" and heard == [(n, n + 1) for n in range(4)]


def test_a_failure_that_is_caught_counts_for_all_that_count(tmp_path: Path) -> None:
    def half(trial: Trial) -> float:
        trial.report(2.5, 3)
        if trial.number == 3:
            raise optuna.TrialPruned
        return 1 / (trial.number % 2)

    optimize(study := new(), half, 4, catch=(ZeroDivisionError,), options=replace(HERE, results=tmp_path / "r"))
    assert len(look(tmp_path / "r").failures) == read_study(tmp_path / "r").ends[-1]["failed"] == 2
    assert "2 failed, 0 succeeded" in (tmp_path / "r/report.html").read_text()
    assert study.trials[3].value == 2.5 and "\n3,pruned,2.5," in (tmp_path / "r/trials.csv").read_text()


def looks(trial: Trial, study: optuna.Study) -> float:
    """What an objective sees of a study with a window of 2."""
    n, seen = trial.number, study.get_trials(states=[TrialState.COMPLETE])
    assert study is trial.study and len(study.trials) == n + 1 and len(seen) == max(0, n - 1)
    assert study.user_attrs == ({"last": {n - 2}, "heard": {n - 2}} if seen else {})
    assert not seen or study.best_value == min(one.value for one in seen)  # type: ignore[type-var]
    study.set_user_attr("last", {n})
    for adds in (study.ask, partial(study.enqueue_trial, {"x": 0})):
        with pytest.raises(RuntimeError, match="an objective can only read its study"):
            adds()
    if n == 5:
        study.stop()
    return square(trial)


@dataclass
class Holding:
    study: optuna.Study

    def looks(self, trial: Trial) -> float:
        return looks(trial, self.study)


WAYS: dict[str, Callable[[optuna.Study], Callable[[Trial], float]]] = {
    "closure": lambda study: lambda trial: looks(trial, study),
    "default": lambda study: lambda trial, study=study: looks(trial, study),  # type: ignore[misc]
    "partial": lambda study: partial(looks, study=study),
    "self": lambda study: Holding(study).looks,
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [HERE, TWO])
def test_the_study_that_an_objective_holds_is_that_of_its_trial(options: RunOptions) -> None:
    for way in WAYS.values():
        study = new()
        optimize(study, way(study), 20, callbacks=[lambda study, trial: study.set_user_attr("heard", {trial.number})],
                 window=2, options=options)  # fmt: skip
        assert states(study) == "C" * 6 and study.user_attrs == {"last": {5}, "heard": {5}}
        optimize(study, square, 4, options=options)  # which begins anew
        assert len(study.trials) == 10


def test_enqueued_and_added_trials() -> None:
    study = new()
    study.add_trial(optuna.trial.create_trial(
        params={"x": 0.5}, distributions={"x": optuna.distributions.FloatDistribution(-1, 1)}, value=0.25
    ))  # fmt: skip
    study.enqueue_trial({"x": 0.125}, user_attrs={"from": "me"})
    study.enqueue_trial({"x": -0.5})
    optimize(study, square, 5, window=3, options=TWO)
    assert states(study) == "CCCCCC"
    assert [trial.params["x"] for trial in study.trials[:3]] == [0.5, 0.125, -0.5]
    assert study.trials[1].user_attrs == {"from": "me"}


def test_a_timeout_and_other_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    study, kept = new(), replace(HERE, results=tmp_path)
    study.set_metric_names(["loss"])
    optimize(study, lambda trial: time.sleep(0.1) or square(trial), timeout=1.0, gc_after_trial=True, options=kept)
    assert read_study(tmp_path).stopped == "its time"
    assert 0 < len(study.trials) < 11 and states(study) == "C" * len(study.trials)
    optimize(late := new(), square, timeout=0, options=TWO)
    assert not late.trials
    optimize(late, square, timeout=0.01, window=2, options=TWO)  # as in Optuna a first trial runs
    assert states(late) in ("C", "CC")
    optimize(study, square, n_trials=3, show_progress_bar=True, options=HERE)
    assert "3/3" in capsys.readouterr().err


def test_one_job_stays_in_this_process_and_says_who_is_idle(capsys: pytest.CaptureFixture[str]) -> None:
    study, pids = new(), set[int]()
    for _ in range(2):
        optimize(study, lambda trial: pids.add(os.getpid()) or square(trial), 3, n_jobs=1, options=TWO)
    assert pids == {os.getpid()} and capsys.readouterr().err.count("1 of 2 workers are idle") == 1


@pytest.mark.parametrize(("module", "stays"), [("lightgbm._lightgbm_tuner.optimize", True), ("sklearn.sklearn", False)])
def test_of_optunas_integrations_the_tuner_of_lightgbm_alone_stays_here(module: str, stays: bool) -> None:
    class Objective:
        def __call__(self, trial: Trial) -> float:
            trial.set_user_attr("pid", os.getpid())
            return trial.suggest_float("x", 0, 1)

    Objective.__module__ = f"optuna_integration.{module}"
    study = optuna.create_study()
    optimize(study, Objective(), 2, options=TWO)
    assert all((trial.user_attrs["pid"] == os.getpid()) == stays for trial in study.trials)


def climbing() -> optuna.samplers.BaseSampler:
    """A sampler that keeps a state between trials, and counts in its class, which a script has in no module."""

    class Climbing(optuna.samplers.BaseSampler):
        place, asked = 0, 0

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {"n": optuna.distributions.IntDistribution(0, 100)}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            Climbing.asked += 1
            self.place += 2
            return {"n": self.place}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return param_distribution.low

    return Climbing()


@pytest.mark.parametrize("options", [HERE, TWO])
def test_a_samplers_own_state_is_kept_in_the_order_of_numbers(options: RunOptions) -> None:
    study = optuna.create_study(sampler=climbing())
    for n in (6, 4):
        optimize(study, lambda trial: trial.suggest_int("n", 0, 100), n, window=3, options=options)
    assert [trial.params["n"] for trial in study.trials] == list(range(2, 21, 2))
    assert vars(type(study.sampler))["asked"] == 10


@pytest.mark.parametrize("sampler", ["TPE", "NSGAII"])
def test_several_calls_are_one(sampler: str) -> None:
    digests, how = set(), {"population_size": 4} if sampler == "NSGAII" else {"n_startup_trials": 3}
    for parts in ([18], [5, 13], [3, 9, 6]):
        study = new(sampler=getattr(optuna.samplers, f"{sampler}Sampler")(seed=1, **how))
        for part in parts:
            optimize(study, square, part, window=4, options=HERE)
        digests.add(digest(study))
    assert len(digests) == 1


class Annealing(optuna.samplers.RandomSampler):
    """As in Optuna's tutorial: it needs the result of the trial before."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        return optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, float]:
        before = study.trials[-2] if search_space else None
        return {} if before is None else {"x": before.params["x"] / 2 + before.value}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of a sampler."""
    said: list[str] = []
    monkeypatch.setattr(asking.log, "warning", lambda text, *more: said.append(text % more))
    return said


def test_a_sampler_of_ones_own_has_each_result_before_the_next_trial(capsys: pytest.CaptureFixture[str]) -> None:
    study = new(sampler=Annealing(seed=1))
    for _ in range(2):
        optimize(study, square, 3, options=TWO)
    points = [trial.params["x"] for trial in study.trials]
    assert points[1:] == [x / 2 + x**2 for x in points[:-1]]
    assert capsys.readouterr().err.count("trial: one trial at a time (window=4, or --window 4: more)\n") == 1


def test_a_state_that_begins_anew_in_another_process_is_told(warned: list[str]) -> None:
    storage = optuna.storages.InMemoryStorage()
    for _ in range(2):  # as another process would
        study = optuna.create_study(sampler=climbing(), storage=storage, study_name="s", load_if_exists=True)
        for _ in range(2):
            optimize(study, lambda trial: trial.suggest_int("n", 0, 100), 2, window=1, options=HERE)
    assert warned == ["Climbing is not of Optuna: what it keeps begins anew, as an earlier process ran trials of s"]


def test_a_folder_has_one_study_with_all_trials_of_its_script(tmp_path: Path) -> None:
    def run(name: str = "svm", n: int = 2, restart: bool = False, **more: Any) -> int:
        door.studies_in.clear()  # as in another process
        study = new(study_name=name, **more)
        for _ in range(n):
            optimize(study, square, 5, window=2, options=replace(HERE, results=tmp_path / "r", restart=restart))
        return len((tmp_path / "r" / "trials.csv").read_text().splitlines()) - 1

    assert run() == run() == 10
    other = optuna.samplers.TPESampler(seed=1, multivariate=True)
    for more, words in (
        ({"name": "rf"}, "with study = svm, not rf"),
        ({"sampler": other}, r"strategy = TPESampler, MedianPruner, not TPESampler\(.*multivariate=True.*\), Med"),
        ({"pruner": optuna.pruners.MedianPruner(3)}, r"not TPESampler, MedianPruner\(n_startup_trials=3\): give"),
        ({"direction": "maximize"}, "with objectives = "),
    ):
        with pytest.raises(UsageError, match=words):
            run(**more)  # type: ignore[arg-type]
    assert run() == 10 == run(restart=True), "what an earlier process found is set aside, and nothing of this one"


def test_a_callback_may_enqueue_with_a_window_of_one_and_end_the_study(tmp_path: Path) -> None:
    def callback(study: optuna.Study, trial: Any) -> None:
        if trial.number == 1:
            study.enqueue_trial({"x": 0.75})
        if trial.number == 3:
            study.stop()

    how: dict[str, Any] = {"window": 1, "options": replace(TWO, results=tmp_path / "r")}
    optimize(study := new(), square, 9, callbacks=[callback], **how)
    assert study.trials[2].params == {"x": 0.75} and states(study) == "CCCC"
    optimize(study, square, 0, **how)
    assert len(read_study(tmp_path / "r").results) == 4, "a call that asks for nothing hides no trial"
    with pytest.raises(UsageError, match="a callback adds trial 2"):
        optimize(new(), square, 9, callbacks=[callback], window=4, options=TWO)


def test_options_that_cannot_hold_are_one_line(tmp_path: Path) -> None:
    stored = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db")
    for study, how, words in (
        (new(), {"options": RunOptions(results=tmp_path / "r", adapt=True)}, "adapt=True is for search"),
        (stored, {"options": RunOptions(results=tmp_path / "r", join=True)}, "in a results folder: leave the storage"),
        (new(), {"window": 0}, "window=0"),
    ):
        with pytest.raises(UsageError, match=words):
            optimize(study, square, 4, **how)  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


def test_a_storage_that_another_process_writes_to_is_one_line(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/s.db"

    def objective(trial: Trial) -> float:
        if trial.number == 2:
            optuna.load_study(study_name="s", storage=storage).add_trial(optuna.trial.create_trial(value=1.0))
        return square(trial)

    with pytest.raises(UsageError, match="another process.*let one job run it"):
        optimize(new(study_name="s", storage=storage), objective, 9, window=2, options=HERE)


@dataclass
class Counting(optuna.samplers.RandomSampler):
    """A sampler of one's own, which has no hash."""

    begun: int = 0

    def __post_init__(self) -> None:
        super().__init__(seed=1)


@pytest.mark.parametrize("kind", [Counting, partial(optuna.samplers.RandomSampler, 1)])
def test_one_sampler_gives_two_studies_other_points_and_the_same_in_the_next_run(kind: Any) -> None:
    both = []
    for _ in range(2):
        sampler = kind()
        studies = [new(sampler=sampler), new(sampler=sampler)]
        for study in studies:
            optimize(study, square, 4, window=2, options=HERE)
        both.append([digest(study) for study in studies])
    assert both[0] == both[1] and both[0][0] != both[0][1]


class Picky(optuna.samplers.RandomSampler):
    def after_trial(self, study: optuna.Study, trial: Any, *args: Any) -> None:
        if trial.number == 1:
            raise KeyError("after")


def test_a_sampler_that_raises_after_a_trial_leaves_it_told_as_in_optuna() -> None:
    for how in ({"n_jobs": 1}, {"options": HERE, "window": 2}):
        with pytest.raises(KeyError, match="after"):
            optimize(study := new(sampler=Picky(1)), square, 4, **how)  # type: ignore[arg-type]
        assert states(study) == "CC"


def test_a_worker_that_begins_late_sees_no_attribute_of_the_study_too_early() -> None:
    leader = asking.Asking(study := new(), 1, 2)
    seen = packed_call(lambda trial: float(len(trial.study.user_attrs)), {})
    worker = InWorker(seen, leader.view_of_workers(), ["value"], None, False, 0).begin({})
    first = leader.ask()
    worker.on_news(packed(([], [(1, {"told": "after one result"})])))
    assert [answer.values for answer in worker((first,))] == [{"value": 0.0}] and not study.user_attrs


def test_what_cma_es_would_unpickle_is_never_taken_from_a_journal() -> None:
    study = new()
    leader = asking.Asking(study, 1, 1)
    leader.view_of_workers()
    leader.ask()
    of_journal = copy.copy(leader._trials[0])
    of_journal.system_attrs = {"cma:optimizer:0": "80", "cma:generation": 3}
    leader.tell(of_journal, [1.0], TrialState.COMPLETE)
    assert {"cma:optimizer:0", "cma:generation"} & study.trials[0].system_attrs.keys() == {"cma:generation"}


def branching(trial: Trial) -> float:
    if trial.suggest_categorical("kind", ["a", "b", "c"]) == "a":
        return float(trial.suggest_int("x", 1, 4))
    return float(trial.suggest_int("y", 1, 3) + trial.suggest_int("z", 0, 1))


def test_brute_force_tries_each_point_once() -> None:
    digests = set()
    for options in (HERE, TWO):
        study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=2))
        optimize(study, branching, window=3, options=options)
        assert len(study.trials) == 16 == len({tuple(trial.params.items()) for trial in study.trials})
        digests.add(digest(study))
    assert len(digests) == 1


DECLARED: dict[str, Callable[..., Any]] = {
    **{
        f"tpe {n}": partial(optuna.samplers.TPESampler, n_startup_trials=4, multivariate=n < 2, constant_liar=n % 2 > 0)
        for n in range(4)
    },
    "two goals": lambda **how: optuna.samplers.NSGAIISampler(population_size=4, **how),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_search_of_a_declared_space_is_the_same_study(name: str, tmp_path: Path) -> None:
    """With reports and values to be maximized."""
    ways = ["minimize", "maximize"] if name == "two goals" else ["maximize"]

    def objective(trial: Any, params: Any) -> list[float]:
        losses = [params["x"] ** 2 + params["n"], -((params["x"] - 1) ** 2)]
        if len(ways) == 1:
            trial.report(losses[1], 1)
        return losses[-len(ways) :]

    def suggesting(trial: Trial) -> list[float]:
        return objective(trial, {"x": trial.suggest_float("x", -1, 1), "n": trial.suggest_int("n", 1, 9, step=2)})

    study = new(sampler=DECLARED[name](seed=1), directions=ways)
    optimize(study, suggesting, 14, window=3, options=replace(HERE, results=tmp_path))
    columns = "value_values_0,value_values_1" if len(ways) > 1 else "value_value"  # as Optuna's own table has them
    assert (tmp_path / "trials.csv").read_text().startswith(f"number,state,param_x,param_n,{columns},error\n")
    found = search(
        lambda trial: dict(zip("ab"[-len(ways) :], objective(trial, trial.params), strict=True)),
        {"x": Float(-1, 1), "n": Int(1, 9, step=2)}, strategy=DECLARED[name](), n_trials=14,
        minimize="a" if len(ways) > 1 else (), maximize="b", window=3, options=HERE,
        seed=study._storage.get_study_system_attrs(0)["mpitune:seed"],
    )  # fmt: skip
    assert [(dict(trial.params), [*trial.values.values()]) for trial in found.trials] == [
        (trial.params, trial.values) for trial in study.trials
    ]
    best = found.pareto if len(ways) > 1 else [found.best]
    assert [trial.number for trial in best] == [trial.number for trial in study.best_trials]


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_generations_go_on_from_their_parents_here_and_with_optuna_alone(ours_first: bool, tmp_path: Path) -> None:
    """They are kept by the ids of a storage, which are no numbers of trials where it has another study."""
    pytest.importorskip("optuna.samplers._ga", reason="Optuna 4.0 keeps them by number")
    storage = f"sqlite:///{tmp_path}/studies.db"
    optuna.create_study(storage=storage).optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    sampler = optuna.samplers.NSGAIISampler(population_size=4, seed=1)
    study = optuna.create_study(storage=storage, sampler=sampler, directions=["minimize"] * 2)

    def objective(trial: Any) -> tuple[float, float]:
        return trial.suggest_float("x", 0, 5) ** 2, (trial.suggest_float("y", 0, 5) - 2) ** 2

    ways = [lambda n: optimize(study, objective, n, window=1), lambda n: study.optimize(objective, n)]
    for way in ways if ours_first else ways[::-1]:
        way(10)
        kept = study._storage.get_study_system_attrs(study._study_id)
        numbers = {trial._trial_id: trial.number for trial in study.trials}
        of = {int(name.rpartition(":")[2]): [numbers[n] for n in kept[name]] for name in kept if ":parent:" in name}
        seen = optuna.load_study(study_name=study.study_name, storage=storage)  # which has looked at no trials before
        assert of == {n: [trial.number for trial in sampler.select_parent(seen, n)] for n in of}
    assert len(of) >= 3
