"""What an objective holds reaches workers, or is told; what it stores and reads is told, too."""

from __future__ import annotations

import io
import logging  # noqa: F401 - of the objectives below
import os
import pickle
import random
import shutil
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
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import Trial

from mpitune import Float, search
from mpitune.errors import UsageError
from mpitune.optimize import door
from mpitune.optimize.kept import kept_by
from mpitune.optuna import optimize
from tests.mpitune.optuna.made import HERE, TWO, new, square, states


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
    modules = (torch, torch.backends.cudnn, torch.backends.cuda.matmul, torch.ops.aten, torch.classes) if torch else ()
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

    optimize(study := new(), objective, 2, options=TWO)
    found = search(objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", options=TWO)
    assert study.best_value == found.best.values["loss"] == 20 and states(study) == "CC"


def held_sources() -> tuple[Any, ...]:
    from sklearn.model_selection import KFold

    sources: list[Any] = [*map(np.random.default_rng, (0, 1)), random.Random(0), np.random.RandomState(0)]
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
    n_sources = len(drawn())

    def objective(trial: Any) -> float:
        trial.set_user_attr("drawn", [*drawn(), drawn()[0], uniform(0, 1), rand()])
        return 0.0

    of_studies, of_searches = list[Any](), list[Any]()
    for options in (HERE, replace(TWO, workers=1), TWO):
        optimize(study := new(), objective, 6, window=2, options=options)
        of_studies.append([trial.user_attrs["drawn"] for trial in study.trials])
        if options.workers:
            found = search(objective, {"x": Float(0, 1)}, n_trials=6, minimize="loss", window=2, options=options)
            of_searches.append([trial.user_attrs["drawn"] for trial in found.trials])
    for runs in (of_studies, of_searches):
        assert all(run == runs[0] for run in runs) and len({*runs[0][0]}) == n_sources + 3
        assert all(len(set(column)) == 6 for column in zip(*runs[0], strict=True))


def made_of(tmp_path: Path) -> dict[str, Any]:
    """Things that objectives of scripts hold and pickle refuses, what each is asked, and what it then says."""
    X, y = np.arange(400.0).reshape(100, 4), np.arange(100) % 2
    made: dict[str, Any] = {
        "lock": (threading.RLock(), lambda lock: lock.acquire() - 1, 0),
        "bytes": (open(Path(__file__), "rb"), lambda file: len(file.read(10)), 10),  # noqa: SIM115 - as in scripts
    }
    if find_spec("tqdm"):
        made["bar"] = (import_module("tqdm").tqdm(total=3, file=io.StringIO()), lambda bar: bar.update(1) or 0, 0)
    if find_spec("xgboost"):
        made["xgboost"] = (import_module("xgboost").DMatrix(X, label=y), lambda data: data.get_label().sum(), 50)
    if find_spec("lightgbm"):
        data = import_module("lightgbm").Dataset(X, label=y, params={"verbosity": -1}).construct()
        made["lightgbm"] = (data, lambda data: data.num_data() + data.get_label().sum(), 150)
    if find_spec("torch") and find_spec("tensorboard"):
        writer = import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "runs"))
        made["events"] = (writer, lambda writer: writer.add_scalar("a", 1.0) or 0, 0)
    return made


@pytest.mark.slow
def test_what_pickle_cannot_send_is_made_again(tmp_path: Path) -> None:
    made = made_of(tmp_path)
    with open(tmp_path / "log.csv", "w") as file:
        file.write("begin\n")

        def objective(trial: Trial) -> float:
            print(trial.number, file=file)
            for name, (thing, ask, _) in made.items():
                trial.set_user_attr(name, float(ask(thing)))
            return square(trial)

        optimize(study := new(), objective, 2, window=1, options=replace(TWO, workers=1))
        file.write("end\n")
    assert study.trials[0].user_attrs == {name: right for name, (*_, right) in made.items()}
    assert (tmp_path / "log.csv").read_text().split() == ["begin", "0", "1", "end"]


class Odd(Exception):
    """It cannot be made again from the arguments that it keeps."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("two")


def odd(trial: Trial) -> float:
    sizes = trial.suggest_categorical("sizes", [(64,), (64, 32)])
    trial.set_user_attr("model", {1: {2}})
    trial.study.set_user_attr("last", trial.number)
    if trial.number == 2:
        raise Odd(1, 2)
    return len(sizes)


def test_what_json_cannot_say_reaches_the_study(tmp_path: Path) -> None:
    optimize(study := new(), odd, 6, catch=(Odd,), window=2, options=TWO)
    assert states(study) == "CCFCCC" and study.user_attrs["last"] == 5
    assert all(trial.params["sizes"] in ((64,), (64, 32)) for trial in study.trials)
    assert all(trial.user_attrs["model"] == {1: {2}} for trial in study.trials)
    in_file, in_folder = new(storage=f"sqlite:///{tmp_path}/s.db"), replace(TWO, results=tmp_path / "r")
    for study, options in ((new(), in_folder), (in_file, TWO)):
        with pytest.raises(UsageError, match="choices of sizes cannot be kept"):
            optimize(study, odd, 6, window=2, options=options)
    listed, own = lambda trial: len(trial.suggest_categorical("sizes", [[64], [32, 9]])), tmp_path / "lists"
    optimize(new(), listed, 4, options=replace(TWO, results=own))
    assert "[64]" in (own / "report.html").read_text()


class Always:
    """It is equal to all."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Label(StrEnum):
    A, B = "a", "b"


def attributes() -> dict[str, Any]:
    frame = import_module("pandas").DataFrame({"a": [1, 2]})
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


def test_attributes_that_are_texts_in_a_folder_are_named_at_the_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def objective(trial: Trial) -> float:
        trial.set_user_attr("best_booster", Always())
        trial.set_user_attr("shape", (1, 2))
        return square(trial)

    for n in (3, 5):
        door.studies_in.clear()  # as in another process
        assert "their attribute" not in capsys.readouterr().err
        optimize(new(study_name="s"), objective, n, window=1, options=replace(HERE, results=tmp_path / "r"))
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


READS: dict[str, tuple[Any, str]] = {
    "global": (lambda n: globals().update(hi=n) or reads_globals, "hi (was 1.0, is 5.0)"),
    "array": (lambda n: globals().update(hi=np.full(3, n)) or reads_globals, "hi"),
    "time": (lambda n: globals().update(hi=n + time.time()) or reads_globals, ""),
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


def closing() -> Callable[[Trial], float]:
    n, seen = 0, list[int]()

    def objective(trial: Trial) -> float:
        nonlocal n
        n += 1
        seen.append(trial.number)
        return square(trial)

    return objective


history: list[float] = []
cache: dict[int, float] = {}
BODIES = {  # of objectives, with what each keeps to itself
    "history.append(value)\nif best > value:\n    best = value": ["best", "history"],
    "if best is None or value < best:\n    best = value": ["best"],
    "best = min(best, value)": ["best"],
    "best = value if value < best else best": ["best"],
    "if loaded is None:\n    loaded = np.arange(3)": [],
    "if trial.number not in cache:\n    cache[trial.number] = value": [],
    "values = []\nvalues.append(value)\nvalues[0] = 2.0": [],
    "model = SimpleNamespace()\nmodel.fitted = True\ntrial.set_user_attr('a', value)": [],
    "logging.getLogger('mine').info('value')\nos.environ['MINE'] = '1'": [],
}


def test_what_an_objective_keeps_to_itself_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few false alarms matter more than what is missed."""
    assert kept_by(Keeping()) == kept_by(Keeping().__call__) == ["self.best_model", "self.n", "self.score"]
    assert kept_by(closing()) == ["n", "seen"]
    named, low = lambda trial: history.append(square(trial)) or square(trial), -1
    assert (kept_by(named), kept_by(lambda trial: square(trial) + low)) == (["history"], [])
    assert not any(map(kept_by, (square, odd, max, partial(square))))
    objectives = []
    for n, (body, names) in enumerate(BODIES.items()):
        text = f"global best, loaded\nvalue = square(trial)\n{body}\nreturn value\n"
        (file := tmp_path / f"{n}.py").write_text("def objective(trial):\n" + indent(text, "    "))
        made = {**globals(), "best": float("inf"), "loaded": None}
        exec(compile(file.read_text(), str(file), "exec"), made)
        assert kept_by(made["objective"]) == names, body
        objectives.append(made["objective"])
    for _ in range(2):
        optimize(new(), objectives[0], 1, options=HERE)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("the objective stores"))
    assert "stores best, history, which" in line


def test_workers_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def begun(**more: Any) -> optuna.Study:
        return new(sampler=optuna.samplers.RandomSampler(seed=1), **more)

    study, how = begun(), replace(TWO, worker_folders="own", results="r")
    optimize(begun(study_name=study.study_name), objective, 3, options=how)
    door.studies_in.clear()  # as in another process
    optimize(study, objective, 8, options=how)
    assert all(trial.value == trial.params["x"] + 0.5 for trial in study.trials)
    assert (tmp_path / "checkpoint").read_text() == "of another run"
    assert len(list((tmp_path / "own").iterdir())) == 2 and (tmp_path / "r" / "trials.csv").exists()


def test_a_workers_copies_are_those_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what a trial has changed, which stays."""
    monkeypatch.chdir(tmp_path)
    place, old, log = Path("scale.txt"), Path("v1.txt"), Path("log.txt")
    old.write_text("7")
    log.touch()
    os.utime(old, (1e9, 1e9))

    def objective(trial: Trial) -> float:
        trial.set_user_attr("own", len(said := log.read_text()))
        log.write_text(f"{said}.")
        return float(place.read_text()) if place.exists() else 0.0

    steps: list[tuple[Callable[[], Any], float]] = [
        (lambda: place.write_text("100"), 100),
        (lambda: None, 100),
        (lambda: shutil.copy2(old, place), 7),
        (lambda: (place.unlink(), place.symlink_to("nowhere")), 0),
        (lambda: (place.unlink(), old.write_text("3"), place.symlink_to(old)), 3),
        (lambda: place.unlink(), 0),
    ]
    for n, (change, right) in enumerate(steps):
        change()
        optimize(study := new(), objective, 1, options=replace(TWO, workers=1, worker_folders="own"))
        assert (study.best_value, study.trials[0].user_attrs["own"]) == (right, n)
