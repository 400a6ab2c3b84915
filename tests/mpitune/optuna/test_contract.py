"""`optimize` keeps what `Study.optimize` promises, and a trial what Optuna's does."""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache as cached
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pandas
import pytest
from optuna.trial import Trial, TrialState
from sklearn.model_selection import KFold

from mpitune import Float, Int, RunOptions, search
from mpitune.errors import UsageError
from mpitune.optimize import door
from mpitune.optimize.kept import kept_by
from mpitune.optuna import asking, optimize
from tests.mpitune.optuna.made import digest

HERE = RunOptions(gpu="none", workers=0, quiet=True)
TWO = RunOptions(gpu="none", workers=2, quiet=True)


def new(**more: Any) -> optuna.Study:
    return optuna.create_study(**{"sampler": optuna.samplers.TPESampler(seed=1), **more})


def square(trial: Trial) -> float:
    return trial.suggest_float("x", -1, 1) ** 2


def states(study: optuna.Study) -> str:
    return "".join(trial.state.name[0] for trial in study.trials)


def test_callbacks_are_called_in_the_order_of_numbers_and_may_stop() -> None:
    heard: list[tuple[int, int]] = []

    def callback(study: optuna.Study, trial: Any) -> None:
        heard.append((trial.number, len(study.trials)))
        if trial.number == 6:
            study.stop()

    study = new()
    optimize(study, lambda trial: time.sleep(0.02 * (trial.number % 3)) or square(trial), 30, callbacks=[callback],
             window=4, options=TWO)  # fmt: skip
    assert heard == [(n, n + 1) for n in range(7)] and len(study.trials) == 7


def looks(trial: Trial, study: optuna.Study) -> float:
    """What an objective sees of a study with a window of 2."""
    n, seen = trial.number, study.get_trials(states=[TrialState.COMPLETE])
    assert study is trial.study and len(study.trials) == n + 1 and len(seen) == max(0, n - 1)
    assert study.user_attrs == ({"last": {n - 2}, "heard": {n - 2}} if seen else {})
    assert not seen or study.best_value == min(one.value for one in seen)  # type: ignore[type-var]
    study.set_user_attr("last", {n})
    if n == 5:
        study.stop()
    return square(trial)


@dataclass
class Holding:
    study: optuna.Study

    def looks(self, trial: Trial) -> float:
        return looks(trial, self.study)


held: optuna.Study


def looks_at_global(trial: Trial) -> float:
    return looks(trial, held)


WAYS: dict[str, Callable[[optuna.Study], Callable[[Trial], float]]] = {
    "closure": lambda study: lambda trial: looks(trial, study),
    "default": lambda study: lambda trial, study=study: looks(trial, study),  # type: ignore[misc]
    "partial": lambda study: partial(looks, study=study),
    "self": lambda study: Holding(study).looks,
    "global of a module": lambda study: looks_at_global,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [HERE, TWO])
def test_the_study_that_an_objective_holds_is_that_of_its_trial(way: str, options: RunOptions) -> None:
    global held
    held = study = new()
    optimize(study, WAYS[way](study), 20, callbacks=[lambda study, trial: study.set_user_attr("heard", {trial.number})],
             window=2, options=options)  # fmt: skip
    assert states(study) == "C" * 6 and study.user_attrs == {"last": {5}, "heard": {5}} and held is study
    optimize(study, square, 4, options=options)  # which begins anew
    assert len(study.trials) == 10


@pytest.mark.parametrize("adds", [lambda study: study.ask(), lambda study: study.enqueue_trial({"x": 0})])
def test_an_objective_adds_no_trials(adds: Any) -> None:
    with pytest.raises(RuntimeError, match="an objective can only read its study"):
        optimize(new(), lambda trial: adds(trial.study) or square(trial), 2, options=HERE)


def test_an_exception_is_raised_with_the_workers_traceback_and_its_trial_is_kept() -> None:
    def objective(trial: Trial) -> float:
        if trial.number in (4, 5):
            raise KeyError(trial.number)
        if trial.number == 2:
            raise ValueError("caught")
        return square(trial)

    study = new()
    with pytest.raises(KeyError, match="4") as raised:
        optimize(study, objective, 30, catch=(ValueError,), window=4, options=TWO)
    assert "in objective" in str(raised.value.__cause__)
    assert states(study) == "CCFCF"


def test_values_that_are_none_fail() -> None:
    returned = [None, float("nan"), "text", (1.0, 2.0), 2]
    study = new()
    optimize(study, lambda trial: returned[trial.number], len(returned), options=HERE)
    assert states(study) == "FFFFC" and study.best_value == 2


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


def test_a_timeout_and_other_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    study = new()
    study.set_metric_names(["loss"])
    optimize(study, lambda trial: time.sleep(0.1) or square(trial), timeout=1.0, gc_after_trial=True, options=HERE)
    assert 0 < len(study.trials) < 11 and states(study) == "C" * len(study.trials)
    late = new()
    optimize(late, square, timeout=0, options=TWO)
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


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_trial() -> None:
    def objective(trial: Trial) -> float:
        if trial.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return square(trial)

    study = new(sampler=optuna.samplers.TPESampler(seed=1, multivariate=True, n_startup_trials=0))
    optimize(study, objective, 8, window=3, options=TWO)
    assert states(study) == "CCCFCCCC" and study.trials[3].params.keys() == {"x"}  # which rank 0 has proposed


def test_what_cannot_be_sent_is_one_line() -> None:
    lock, splits = threading.Lock(), (n for n in range(3))
    with pytest.raises(UsageError, match=r"^splits of the objective cannot be sent.*within the objective$"):
        optimize(new(), lambda trial: lock and next(splits) + square(trial), 3, options=TWO)
    with ThreadPoolExecutor(2) as pool, pytest.raises(UsageError, match=r"^pool of the objective cannot be sent"):
        optimize(new(), lambda trial: pool.submit(square, trial).result(), 3, options=TWO)
    sampler = optuna.samplers.RandomSampler()
    sampler.lock = lock  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"sampler"):
        optimize(new(sampler=sampler), square, 3, options=TWO)


def named_things() -> tuple[Any, ...]:
    """Modules that are of a library's own class, and functions with a cache."""

    @lru_cache(maxsize=7)
    def load(n: int) -> int:
        return n and n + load(n - 1)

    class Loader:
        @cached  # noqa: B019 - as in scripts
        def load(self, n: int) -> int:
            return load(n)

    torch = find_spec("torch") and import_module("torch")
    modules = (torch, torch.backends.cudnn, torch.backends.mps, torch.backends.cuda.matmul, torch.ops, torch.ops.aten,
               torch.classes) if torch else ()  # fmt: skip
    return optuna.integration, *modules, load, Loader()


@pytest.mark.slow
def test_an_objective_may_name_modules_of_own_classes_and_cached_functions() -> None:
    things = named_things()

    def objective(trial: Any) -> float:
        *modules, load, loader = things
        assert modules[0] is optuna.integration and (not modules[1:] or modules[2] is modules[1].backends.cudnn)
        for module in modules[2:3]:
            module.deterministic = True  # as in everybody's `seed_everything`
        assert load.cache_info().misses in (0, 5) and load.cache_parameters()["maxsize"] == 7
        return float(load(4) + loader.load(4))

    study = new()
    optimize(study, objective, 2, options=TWO)
    found = search(
        objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", workers=2, options=replace(TWO, workers=None)
    )
    assert study.best_value == found.best.values["loss"] == 20 and states(study) == "CC"


def held_sources() -> tuple[Any, ...]:
    sources: list[Any] = [
        np.random.default_rng(0),
        np.random.default_rng(1),
        random.Random(0),
        np.random.RandomState(0),
    ]
    draws = [lambda of: of.random()] * 4
    if find_spec("torch"):
        torch = import_module("torch")
        sources.append(torch.Generator().manual_seed(0))
        draws.append(lambda of: float(torch.rand((), generator=of)))
    sources.append(KFold(2, shuffle=True, random_state=np.random.RandomState(0)))
    draws.append(lambda of: float(next(of.split(np.zeros(1000)))[0] @ np.arange(500.0)))
    hidden = random.uniform, np.random.rand
    return lambda: [draw(source) for draw, source in zip(draws, sources, strict=True)], hidden


@pytest.mark.slow
def test_sources_that_an_objective_holds_begin_anew_with_each_trial() -> None:
    drawn, (uniform, rand) = held_sources()
    first = drawn()

    def objective(trial: Any) -> float:
        trial.set_user_attr("drawn", [*drawn(), drawn()[0], uniform(0, 1), rand()])
        return 0.0

    def of(trials: Any) -> list[Any]:
        return [trial.user_attrs["drawn"] for trial in trials]

    ways = [HERE, replace(TWO, workers=1), TWO]
    studies = [new() for _ in ways]
    for study, options in zip(studies, ways, strict=True):
        optimize(study, objective, 6, window=2, options=options)
    found = [
        search(objective, {"x": Float(0, 1)}, n_trials=6, minimize="loss", seed=1, window=2, workers=n,
               options=RunOptions(quiet=True, gpu="none")) for n in (1, 2)
    ]  # fmt: skip
    for runs in ([of(study.trials) for study in studies], [of(one.trials) for one in found]):
        assert all(run == runs[0] for run in runs)
        assert (
            all(len(set(column)) == 6 for column in zip(*runs[0], strict=True)) and len({*runs[0][0]}) == len(first) + 3
        )


def made_of(tmp_path: Path) -> dict[str, Any]:
    """Things that objectives of scripts hold and pickle refuses, and what each is asked."""
    X, y = np.arange(400.0).reshape(100, 4), np.arange(100) % 2
    made: dict[str, Any] = {
        "lock": (threading.RLock(), lambda lock: lock.acquire() - 1),
        "bytes": (open(Path(__file__), "rb"), lambda file: len(file.read(10))),  # noqa: SIM115 - as in scripts
    }
    if find_spec("tqdm"):
        made["bar"] = (import_module("tqdm").tqdm(total=3, file=io.StringIO()), lambda bar: bar.update(1) or 0)
    if find_spec("xgboost"):
        made["xgboost"] = (import_module("xgboost").DMatrix(X, label=y), lambda data: data.get_label().sum())
    if find_spec("lightgbm"):
        data = import_module("lightgbm").Dataset(X, label=y, params={"verbosity": -1}).construct()
        made["lightgbm"] = (data, lambda data: data.num_data() + data.get_label().sum())
    if find_spec("torch") and find_spec("tensorboard"):
        writer = import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "runs"))
        made["events"] = (writer, lambda writer: writer.add_scalar("a", 1.0) or 0)
    return made


@pytest.mark.slow
def test_what_pickle_cannot_send_is_made_again(tmp_path: Path) -> None:
    made = made_of(tmp_path)
    with open(tmp_path / "log.csv", "w") as file:
        file.write("begin\n")

        def objective(trial: Trial) -> float:
            print(trial.number, file=file)
            for name, (thing, ask) in made.items():
                trial.set_user_attr(name, float(ask(thing)))
            return square(trial)

        study = new()
        optimize(study, objective, 2, window=1, options=replace(TWO, workers=1))
        file.write("end\n")
    right = {"lock": 0, "bytes": 10, "bar": 0, "xgboost": 50, "lightgbm": 150, "events": 0}
    assert study.trials[0].user_attrs == {name: right[name] for name in made}
    assert (tmp_path / "log.csv").read_text().split() == ["begin", "0", "1", "end"]


class Climbing(optuna.samplers.BaseSampler):
    """It keeps a state between trials."""

    def __init__(self) -> None:
        self.place = 0

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {"n": optuna.distributions.IntDistribution(0, 100)}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        self.place += 2
        return {"n": self.place}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return param_distribution.low


@pytest.mark.parametrize("options", [HERE, TWO])
def test_a_samplers_own_state_is_kept_in_the_order_of_numbers(options: RunOptions) -> None:
    study = optuna.create_study(sampler=Climbing())
    for n in (6, 4):
        optimize(study, lambda trial: trial.suggest_int("n", 0, 100), n, window=3, options=options)
    assert [trial.params["n"] for trial in study.trials] == list(range(2, 21, 2))


def test_a_samplers_class_stays_as_it_is() -> None:
    heard: list[int] = []

    class Hearing(optuna.samplers.RandomSampler):
        n = 0

        def before_trial(self, study: Any, trial: Any) -> None:
            heard.append(trial.number)
            Hearing.n += 1

    optimize(optuna.create_study(sampler=Hearing()), square, 3, options=TWO)
    assert heard == [0, 1, 2] and Hearing.n == 3


def everything(trial: Trial) -> float:
    """All that a trial can be asked."""
    values = [
        trial.suggest_float("f", 0, 1), trial.suggest_float("log", 1e-3, 1, log=True),
        trial.suggest_float("step", 0, 1, step=0.25), trial.suggest_int("i", 1, 9, step=2),
        trial.suggest_int("ilog", 1, 100, log=True),
    ]  # fmt: skip
    assert trial.suggest_categorical("c", ["a", None, 1.5, True]) in ("a", None, 1.5, True)
    assert trial.suggest_float("f", 0, 1) == values[0] and values[2] * 4 % 1 == 0 and values[3] % 2 == 1
    assert set(trial.params) == set(trial.distributions) == {"f", "log", "step", "i", "ilog", "c"}
    assert trial.datetime_start is not None and isinstance(trial.relative_params, dict)
    trial.set_user_attr("two", {"numbers": [1, 2.5]})
    assert trial.user_attrs["two"] == {"numbers": [1, 2.5]}
    study = trial.study
    others = study.get_trials(deepcopy=False)
    assert study.direction.name == "MINIMIZE" and others[trial.number].number == trial.number
    assert all(other.state.is_finished() for other in others[: max(0, trial.number - 2)])
    if trial.number > 3:
        assert study.best_value <= others[0].value  # type: ignore[operator]
    trial.report(values[0], 0)
    trial.report(float("inf"), 1)
    assert trial.should_prune() in (True, False)
    if hasattr(trial, "set_constraint"):
        trial.set_constraint("less", values[0] - 0.9)
    with pytest.raises(RuntimeError):
        study.optimize(square, 1)
    return sum(values)


def test_a_trial_can_be_asked_all_that_optunas_can() -> None:
    study = new(sampler=optuna.samplers.TPESampler(seed=2, multivariate=True, n_startup_trials=3))
    optimize(study, everything, 10, window=3, options=TWO)
    assert states(study) == "C" * 10
    assert all(trial.user_attrs == {"two": {"numbers": [1, 2.5]}} for trial in study.trials)
    assert all(trial.duration is not None and trial.intermediate_values[1] == float("inf") for trial in study.trials)
    assert study.trials[0].state == TrialState.COMPLETE
    assert len(optuna.importance.get_param_importances(study)) == 6


def test_parameters_may_go_under_cma_es() -> None:
    def objective(trial: Trial) -> float:
        return sum(trial.suggest_float(name, 0, 1) for name in ("xyz" if trial.number != 5 else "xy"))

    study = new(sampler=optuna.samplers.CmaEsSampler(seed=1, warn_independent_sampling=False))
    for n in (9, 5):
        optimize(study, objective, n, window=1, options=HERE)
    assert states(study) == "C" * 14


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "more"),
    [("TPE", {}), ("NSGAII", {"population_size": 4})],
)
def test_several_calls_are_one(sampler: str, more: Any) -> None:
    digests = set()
    for parts in ([18], [5, 13], [3, 9, 6]):
        study = new(sampler=getattr(optuna.samplers, f"{sampler}Sampler")(seed=1, **more))
        for part in parts:
            optimize(study, square, part, window=4, options=TWO)
        digests.add(digest(study))
    assert len(digests) == 1


class Odd(Exception):
    """It cannot be made again from the arguments that it keeps."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("two")


class Always:
    """It is equal to all."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def odd(trial: Trial) -> float:
    sizes = trial.suggest_categorical("sizes", [(64,), (64, 32)])
    trial.set_user_attr("model", {1: {2}})
    trial.study.set_user_attr("last", trial.number)
    if trial.number == 2:
        raise Odd(1, 2)
    return len(sizes)


def test_what_json_cannot_say_reaches_the_study(tmp_path: Path) -> None:
    study = new()
    optimize(study, odd, 6, catch=(Odd,), window=2, options=TWO)
    assert states(study) == "CCFCCC" and study.user_attrs["last"] == 5
    assert all(trial.params["sizes"] in ((64,), (64, 32)) for trial in study.trials)
    assert all(trial.user_attrs["model"] == {1: {2}} for trial in study.trials)
    with pytest.raises(UsageError, match="choices of sizes cannot be kept"):
        optimize(new(), odd, 6, window=2, options=replace(TWO, results=tmp_path / "r"))


class Label(StrEnum):
    A, B = "a", "b"


def attributes() -> dict[str, Any]:
    frame = pandas.DataFrame({"a": [1, 2]})
    return {"array": np.array([0.5, 1]), "arrays": [{"p": np.ones(3)}], "f": frame, "all": Always(), "label": Label.B}


@pytest.mark.slow
def test_attributes_are_never_compared_but_packed() -> None:
    def objective(trial: Trial) -> float:
        if (label := trial.suggest_categorical("label", list(Label))) is not Label.A:
            for name, value in {**attributes(), "lock": threading.Lock()}.items():
                trial.set_user_attr(name, value)
        return float(label is Label.B)

    study = new(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    optimize(study, objective, 6, window=2, options=TWO)
    trials = study.get_trials(deepcopy=False)
    assert states(study) == "C" * 6 and {type(trial.params["label"]) for trial in trials} == {Label}
    kept = dict(trials[study.best_trial.number].user_attrs)
    assert "lock object" in kept.pop("lock")
    assert pickle.dumps(kept) == pickle.dumps(attributes())

    def circular(trial: Trial) -> float:
        trial.set_user_attr("itself", itself := [])  # type: ignore[var-annotated]
        itself.append(itself)
        return square(trial)

    with pytest.raises(UsageError, match=r"given trial \d cannot be sent from its worker \(RecursionError"):
        optimize(new(), circular, 3, options=TWO)


@pytest.mark.slow
def test_tuples_are_lists_in_a_database_as_by_optuna_alone(tmp_path: Path) -> None:
    def objective(trial: Trial) -> float:
        return sum(trial.suggest_categorical("h", [(50,), (100, 50)])) + trial.suggest_float("x", 0, 1)

    studies = [
        new(storage=f"sqlite:///{tmp_path}/{n}.db", sampler=optuna.samplers.RandomSampler(seed=1)) for n in range(2)
    ]
    optimize(studies[0], objective, 4, window=2, options=TWO)
    studies[1].optimize(objective, 4)
    for study in studies:
        assert states(study) == "CCCC" and all(type(trial.params["h"]) is list for trial in study.trials)
    assert studies[0].trials[0].distributions == studies[1].trials[0].distributions


def test_attributes_that_are_texts_in_a_folder_are_named_at_the_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def objective(trial: Trial) -> float:
        trial.set_user_attr("best_booster", Annealing())
        trial.set_user_attr("shape", (1, 2))
        return square(trial)

    for n in (3, 5):
        door.studies_in.clear()  # as in another process
        assert "their attribute" not in capsys.readouterr().err
        study = new(study_name="s")
        optimize(study, objective, n, window=1, options=replace(HERE, results=tmp_path / "r"))
    assert capsys.readouterr().err.count("in their attribute best_booster: fit the best again") == 1


hi: Any = 1.0
given: Any = SimpleNamespace(low=1, unread=1)


@dataclass
class Tuner:
    top: float
    n_trials: float

    def objective(self, trial: Trial) -> float:
        return trial.suggest_float("x", 0, self.top)

    def tuned(self) -> float:
        return self.n_trials


def reads_globals(trial: Trial) -> float:
    return trial.suggest_float("x", given.low - 1, hi if isinstance(hi, float) else 1)


def scaled(trial: Trial, times: float) -> float:
    return square(trial) * times


def reads_cell(top: float) -> Callable[[Trial], float]:
    return lambda trial: sum(trial.suggest_float("x", 0, top) for _ in range(2))


READS: dict[str, tuple[Any, str]] = {
    "global": (lambda n: globals().update(hi=n) or reads_globals, "hi (was 1.0, is 5.0)"),
    "time": (lambda n: globals().update(hi=n + time.time()) or reads_globals, ""),
    "namespace": (lambda n: globals().update(hi=0, given=SimpleNamespace(low=1 / n, unread=n)) or reads_globals,
                  "SimpleNamespace.low (was 1.0, is 0.2)"),
    "closure": (reads_cell, "top (was 1.0, is 5.0)"),
    "partial": (lambda n: partial(scaled, times=n), "times (was 1.0, is 5.0)"),
    "self": (lambda n: Tuner(n, n).objective, "Tuner.top (was 1.0, is 5.0)"),
}  # fmt: skip


@pytest.mark.parametrize("way", READS)
def test_a_value_that_the_objective_reads_and_that_has_changed_is_told(
    way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, words = READS[way]
    for n in (1.0, 1.0, 5.0):
        assert " changed since " not in capfd.readouterr().err
        door.studies_in.clear()  # as in another process
        optimize(new(), made(n), 2, window=1, options=replace(HERE, results=tmp_path / "r"))
    said = [line.partition(" changed since the known results (2)") for line in capfd.readouterr().err.splitlines()]
    assert [before.split(" ", 4)[4] for before, changed, _ in said if changed] == [words][: bool(words)]
    assert "secret" not in (tmp_path / "r" / "journal.jsonl").read_text()


history: list[float] = []
cache: dict[int, float] = {}
best, loaded = float("inf"), None


class Keeping:
    """An objective with its best model, and things that are its own."""

    def __init__(self) -> None:
        self.best_model, self.score, self.n, self.losses, self.device = None, 1.0, 0, list[float](), ""

    def __call__(self, trial: Trial) -> float:
        self.device = "cpu"
        self.losses = []
        self.losses.append(score := square(trial))
        if score < self.score:
            self.score, self.best_model = score, [score]
        self.n += 1
        return score + len(self.device)


def to_globals(trial: Trial) -> float:
    global best
    value = square(trial)
    history.append(value)
    if best > value:
        best = value
    return value


def to_lowest(trial: Trial) -> float:
    global best
    value = square(trial)
    if best is None or value < best:
        best = value
    return value


def to_least(trial: Trial) -> float:
    global best
    value = square(trial)
    best = min(best, value)
    return value


def to_smaller(trial: Trial) -> float:
    global best
    value = square(trial)
    best = value if value < best else best
    return value


def to_nothing(trial: Trial) -> float:
    global loaded
    if loaded is None:
        loaded = np.arange(3)
    if trial.number not in cache:
        cache[trial.number] = float(loaded.sum())
    values, model = [], SimpleNamespace()
    values.append(cache[trial.number])
    model.fitted, values[0] = True, 2.0
    trial.set_user_attr("a", values)
    logging.getLogger("mine").info("value")
    os.environ["MINE"] = "1"
    return square(trial)


def closing() -> Callable[[Trial], float]:
    n, seen = 0, list[int]()

    def objective(trial: Trial) -> float:
        nonlocal n
        n += 1
        seen.append(trial.number)
        return square(trial)

    return objective


def test_what_an_objective_keeps_to_itself_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Few false alarms matter more than what is missed."""
    assert kept_by(Keeping()) == ["self.best_model", "self.n", "self.score"]
    assert kept_by(Keeping().__call__) == ["self.best_model", "self.n", "self.score"]
    assert kept_by(closing()) == ["n", "seen"]
    assert [kept_by(each) for each in (to_lowest, to_least, to_smaller)] == [["best"]] * 3
    named, low = lambda trial: history.append(square(trial)) or square(trial), -1
    assert (kept_by(named), kept_by(lambda trial: square(trial) + low)) == (["history"], [])
    assert not any(map(kept_by, (to_nothing, square, everything, odd, max, partial(square))))
    for _ in range(2):
        optimize(new(), to_globals, 1, options=HERE)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("the objective stores"))
    assert "stores best, history, which" in line


@pytest.mark.parametrize("restarts", [False, True])
def test_workers_have_folders_of_their_own(restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("0.5")
    (tmp_path / "checkpoint").write_text("of another run")
    monkeypatch.chdir(tmp_path)

    def objective(trial: Trial) -> float:
        x, place = trial.suggest_float("x", 0, 1), Path("checkpoint")
        for _ in range(3):
            place.write_text(repr(x))
            time.sleep(0.05)
        return float(place.read_text()) + float(Path("data/x").read_text())

    study, how = new(sampler=optuna.samplers.RandomSampler(seed=1)), replace(TWO, worker_folders="own", results="r")
    if restarts:  # by another process
        optimize(
            new(study_name=study.study_name, sampler=optuna.samplers.RandomSampler(seed=1)), objective, 3, options=how
        )
        door.studies_in.clear()
    optimize(study, objective, 8, options=how)
    assert all(trial.value == trial.params["x"] + 0.5 for trial in study.trials)
    assert (tmp_path / "checkpoint").read_text() == "of another run"
    assert len(list((tmp_path / "own").iterdir())) == 2 and (tmp_path / "r" / "trials.csv").exists()


def test_a_workers_copies_are_those_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, old = Path("scale.txt"), Path("v1.txt")
    old.write_text("7")
    os.utime(old, (1e9, 1e9))

    def objective(trial: Trial) -> float:
        said = place.read_text() if place.exists() else "0"
        place.write_text("8")
        place.chmod(0o400)
        Path("own.txt").write_text(Path("own.txt").read_text() + "." if Path("own.txt").exists() else "")
        trial.set_user_attr("own", len(Path("own.txt").read_text()))
        return float(said)

    steps: list[tuple[Callable[[], Any], float]] = [
        (lambda: place.write_text("100"), 100),
        (lambda: None, 100),  # and not what the trial has written
        (lambda: shutil.copy2(old, place), 7),
        (lambda: (place.unlink(), place.symlink_to("nowhere")), 0),
        (lambda: (place.unlink(), old.write_text("3"), place.symlink_to(old)), 3),
        (lambda: place.unlink(), 0),
    ]
    for n, (change, right) in enumerate(steps):
        change()
        study = new()
        optimize(study, objective, 1, options=replace(TWO, workers=1, worker_folders="own"))
        assert (study.best_value, study.trials[0].user_attrs["own"]) == (right, n)


class Annealing(optuna.samplers.RandomSampler):
    """As in Optuna's tutorial: it needs the result of the trial before."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        return optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, float]:
        before = study.trials[-2] if search_space else None
        return {} if before is None else {"x": before.params["x"] / 2 + before.value}


def test_a_sampler_of_ones_own_has_each_result_before_the_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(asking.log, "warning", lambda text, *more: said.append(text % more))
    study = new(sampler=Annealing(seed=1))
    for _ in range(2):
        optimize(study, square, 3, options=TWO)
    points = [trial.params["x"] for trial in study.trials]
    assert points[1:] == [x / 2 + x**2 for x in points[:-1]]
    assert len(said) == 1 and "Annealing is not of Optuna" in said[0] and "window=4" in said[0]


@pytest.mark.slow
def test_studies_of_one_name_have_folders_in_the_order_of_the_script(tmp_path: Path) -> None:
    options, storage = replace(HERE, results=tmp_path / "r"), f"sqlite:///{tmp_path}/s.db"

    def tuned(study: optuna.Study, shift: int) -> float:
        optimize(study, lambda trial: trial.suggest_float("x", 0, 1) + shift, 3, window=1, options=options)
        return study.best_value // 1

    for _ in range(2):
        door.studies_in.clear()  # as in another process
        first = new(study_name="svm")
        assert [tuned(first, 0), tuned(copy.deepcopy(first), 100)] == [0, 0]
        assert [tuned(new(study_name="svm"), shift) for shift in (200, 300)] == [200, 300]
        assert len(list((tmp_path / "r").glob("**/journal.jsonl"))) == 4
    for _ in range(2):  # opened twice, a database has one study
        tuned(new(study_name="svm", storage=storage, load_if_exists=True), 400)
        assert len(list((tmp_path / "r").glob("**/journal.jsonl"))) == 5


@pytest.mark.slow
def test_a_folder_has_one_study_with_all_trials_of_its_script(tmp_path: Path) -> None:
    def run(name: str = "svm", n: int = 2, **more: Any) -> int:
        door.studies_in.clear()  # as in another process
        study = new(study_name=name, **more)
        for _ in range(n):
            optimize(study, square, 5, window=2, options=replace(HERE, results=tmp_path / "r"))
        return len((tmp_path / "r" / "trials.csv").read_text().splitlines()) - 1

    assert run() == run() == run(n=2) == 10
    other = optuna.samplers.TPESampler(seed=1, multivariate=True)
    for more, words in (
        ({"name": "rf"}, "with study = svm, not rf"),
        ({"sampler": other}, r"strategy = TPESampler, MedianPruner, not TPESampler\(.*multivariate=True.*\), Med"),
        ({"pruner": optuna.pruners.MedianPruner(3)}, r"not TPESampler, MedianPruner\(n_startup_trials=3\): give"),
        ({"direction": "maximize"}, "with objectives = "),
    ):
        with pytest.raises(UsageError, match=words):
            run(**more)  # type: ignore[arg-type]
    assert run() == 10


def test_restart_sets_aside_what_an_earlier_process_found_and_nothing_of_this_one(tmp_path: Path) -> None:
    for _ in range(2):
        door.studies_in.clear()
        study = new()
        for n in (2, 3):
            optimize(study, square, n, window=1, options=replace(HERE, results=tmp_path / "r", restart=True))
        assert len((tmp_path / "r" / "trials.csv").read_text().splitlines()) == 6


def test_a_callback_may_enqueue_with_a_window_of_one() -> None:
    def callback(study: optuna.Study, trial: Any) -> None:
        if trial.number == 1:
            study.enqueue_trial({"x": 0.75})

    study = new()
    optimize(study, square, 5, callbacks=[callback], window=1, options=TWO)
    assert study.trials[2].params == {"x": 0.75} and states(study) == "CCCCC"
    with pytest.raises(UsageError, match="a callback adds trial 2"):
        optimize(new(), square, 9, callbacks=[callback], window=4, options=TWO)


def test_options_that_cannot_hold_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="adapt=True is for search"):
        optimize(new(), square, 4, options=RunOptions(results=tmp_path / "r", adapt=True))
    stored = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db")
    with pytest.raises(UsageError, match="join=True is for a study in a results folder: leave the storage out"):
        optimize(stored, square, 4, options=RunOptions(results=tmp_path / "r", join=True))
    with pytest.raises(UsageError, match="window=0"):
        optimize(new(), square, 4, window=0)
    assert not (tmp_path / "r").exists()


@dataclass
class Counting(optuna.samplers.RandomSampler):
    """A sampler of one's own, which has no hash."""

    begun: int = 0

    def __post_init__(self) -> None:
        super().__init__(seed=1)


def test_one_sampler_gives_two_studies_other_points_and_the_same_in_the_next_run() -> None:
    both = []
    for _ in range(2):
        sampler = Counting()
        studies = [new(sampler=sampler), new(sampler=sampler)]
        for study in studies:
            optimize(study, square, 4, window=2, options=HERE)
        both.append([digest(study) for study in studies])
    assert both[0] == both[1] and both[0][0] != both[0][1]


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


def test_a_state_that_begins_anew_in_another_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(asking.log, "warning", lambda text, *more: said.append(text % more))
    storage = optuna.storages.InMemoryStorage()
    for _ in range(2):  # as another process would
        study = optuna.create_study(sampler=Climbing(), storage=storage, study_name="s", load_if_exists=True)
        for _ in range(2):
            optimize(study, lambda trial: trial.suggest_int("n", 0, 100), 2, window=1, options=HERE)
    assert said == ["Climbing is not of Optuna: what it keeps begins anew, as an earlier process ran trials of s"]


DECLARED: dict[str, Callable[..., Any]] = {
    **{
        f"tpe {n}": partial(optuna.samplers.TPESampler, n_startup_trials=4, multivariate=n < 2, constant_liar=n % 2 > 0)
        for n in range(4)
    },
    "cmaes": lambda **how: optuna.samplers.CmaEsSampler(n_startup_trials=2, **how),
    "two goals": lambda **how: optuna.samplers.NSGAIISampler(population_size=4, **how),
    "constraints": lambda **how: optuna.samplers.NSGAIISampler(
        population_size=4, constraints_func=lambda trial: trial.user_attrs["over"], **how
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_search_of_a_declared_space_is_the_same_study(name: str) -> None:
    """With reports, values to be maximized, and constraints, which both have of user attributes."""
    ways = ["minimize", "maximize"] if name in ("two goals", "constraints") else ["maximize"]

    def objective(trial: Any, params: Any) -> list[float]:
        trial.set_user_attr("over", [0.5 - params["x"], params["n"] - 8])
        losses = [params["x"] ** 2 + params["n"], -((params["x"] - 1) ** 2)]
        if len(ways) == 1:
            trial.report(losses[1], 1)
        return losses[-len(ways) :]

    def suggesting(trial: Trial) -> list[float]:
        return objective(trial, {"x": trial.suggest_float("x", -1, 1), "n": trial.suggest_int("n", 1, 9, step=2)})

    study = new(sampler=DECLARED[name](seed=1), directions=ways)
    optimize(study, suggesting, 14, window=3, options=HERE)
    found = search(
        lambda trial: dict(zip("ab"[-len(ways) :], objective(trial, trial.params), strict=True)),
        {"x": Float(-1, 1), "n": Int(1, 9, step=2)}, strategy=DECLARED[name](), n_trials=14,
        minimize="a" if len(ways) > 1 else (), maximize="b", window=3, workers=0, options=RunOptions(quiet=True),
        seed=study._storage.get_study_system_attrs(0)["mpitune:seed"],
    )  # fmt: skip
    assert [(dict(trial.params), [*trial.values.values()]) for trial in found.trials] == [
        (trial.params, trial.values) for trial in study.trials
    ]
    best = found.pareto if len(ways) > 1 else [found.best]
    assert [trial.number for trial in best] == [trial.number for trial in study.best_trials]
    assert any(trial.state == "infeasible" for trial in found.trials) == (name == "constraints")


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
