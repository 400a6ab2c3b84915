"""What every door promises, whatever happens: rows are doors, columns are events. A new door is a new row.

A row is a program that people write for this door. It runs once whole, on one worker, and once through the events, one
after the other, until it is complete. Its table, the results in its journal and what it prints must be the same bytes.
One trial of each row fails whenever it is tried, and one kills its worker once. tests/test_contract.py runs the table.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEAD = """
import sys
from mpitune import Float, Int, RunOptions, search
from mpitune.settings import Parser, add_settings, from_namespace
from tests.fate import befalls

def options():
    parser = Parser()
    add_settings(parser, RunOptions)
    return from_namespace(RunOptions, parser.parse_args())
"""
SEARCH = """
def objective(trial):
    befalls(trial.number)
    return (trial.params["x"] - 1) ** 2 + trial.params["n"]

study = search(objective, {"x": Float(0, 4), "n": Int(1, 9, log=True)}, strategy="tpe", n_trials=14, minimize="loss",
    seed=3, window=4, options=options())
print("best", study.best.number, dict(study.best.params), study.best.values)
"""
STAGES = """
from mpitune.strategies import Hyperband

def objective(trial):
    for step in range(1, 10):
        befalls(trial.number)
        yield {"step": step, "loss": (trial.params["x"] - 1) ** 2 + 1 / step}

study = search(objective, {"x": Float(0, 4)}, strategy=Hyperband(max_steps=9, sampler="tpe"), n_trials=14,
    minimize="loss", seed=3, window=4, options=options())
print("best", study.best.number, dict(study.best.params), [trial.state for trial in study.trials])
"""
TOGETHER = """
def objective(trials):
    for trial in trials:
        befalls(trial.number)
    return [place + trial.params["x"] for place, trial in enumerate(trials)]

from collections import Counter
study = search(objective, {"x": Float(0, 4), "n": Int(1, 2)}, strategy="tpe", n_trials=16, minimize="loss", seed=3,
    window=9, together=4, alike=lambda params: params["n"], options=options())
before = Counter()
for trial in study.trials:  # the place of a trial follows from the order of its kind alone
    n = trial.params["n"]
    assert trial.state == "failed" or trial.values["loss"] == before[n] % 4 + trial.params["x"], trial
    before[n] += 1
print("best", study.best.number, [trial.values for trial in study.trials])
"""
OPTUNA = """
import optuna
from tests.fate import befalls

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(study_name="s", sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=4),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=3))

def objective(trial):
    x = trial.suggest_float("x", -1, 1)
    y = trial.suggest_int("y", 1, 5) if x < 0.5 else 1
    for step in range(3):
        befalls(trial.number)
        trial.report(x**2 + y / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return x**2 + y

study.optimize(objective, n_trials=14, catch=ValueError)
rows = [(trial.state.name, trial.params, trial.values, trial.intermediate_values) for trial in study.trials]
print("best", study.best_trial.number, rows)
"""
HYPEROPT = """
import functools
import numpy as np
from hyperopt import Trials, fmin, fmin_pass_expr_memo_ctrl, hp, pyll, tpe
from tests.fate import befalls

@fmin_pass_expr_memo_ctrl
def objective(expr, memo, ctrl):
    befalls(ctrl.current_trial["tid"])
    point = pyll.rec_eval(expr, memo=memo)
    return {"loss": point["x"] ** 2 + len(point["c"]), "status": "ok", "attachments": {"content": b"\\x00"}}

space = {"x": hp.uniform("x", -1, 1), "c": hp.choice("c", ["a", {"y": hp.lognormal("y", 0, 1)}])}
trials = Trials()
fmin(objective, space, functools.partial(tpe.suggest, n_startup_jobs=4), 14, trials=trials, catch_eval_exceptions=True,
    rstate=np.random.default_rng(1), verbose=False)
rows = [(doc["state"], doc["misc"]["vals"], doc["result"], doc["misc"].get("error")) for doc in trials._dynamic_trials]
print("best", trials.argmin, rows, trials.attachments)
"""
RAY = """
import os
import numpy
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from tests.fate import befalls

def objective(config):
    for step in range(1, 5):
        befalls(int(tune.get_context().get_trial_id()))
        tune.report({"loss": (config["x"] - 1) ** 2 + config["n"] / step})

numpy.random.seed(3)
tuner = tune.Tuner(objective, param_space={"x": tune.uniform(0, 4), "n": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(num_samples=7, metric="loss", mode="min", scheduler=ASHAScheduler(max_t=4)),
    run_config=tune.RunConfig(name="s", storage_path=os.path.abspath("storage"), verbose=0))
rows = [(trial.config, trial.metrics.get("loss"), trial.error is None) for trial in tuner.fit()]
print("best", rows)
"""
RACE = """
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.model_selection import RepeatedStratifiedKFold
from mpitune.sklearn import GridSearchCV

X, Y = (array[::3] for array in load_iris(return_X_y=True))

class Guesses(ClassifierMixin, BaseEstimator):
    def __init__(self, number=0):
        self.number = number
    def fit(self, x, y):
        befalls(self.number)
        self.classes_ = np.unique(y)
        return self
    def predict(self, x):
        luck = [np.random.default_rng([self.number, *row.view(np.uint8)]).uniform() for row in x]
        right = np.array([row.tobytes() for row in X])
        truth = np.array([Y[np.flatnonzero(right == row.tobytes())[0]] for row in x])
        return np.where(np.array(luck) < 0.05 + 0.03 * (self.number % 7), (truth + 1) % 3, truth)

how = options()
search = GridSearchCV(Guesses(), {"number": list(range(10))}, cv=RepeatedStratifiedKFold(n_splits=4, n_repeats=2,
    random_state=0), race=0.95, workers=how.workers, results=how.results).fit(X, Y)
columns = {name: np.ma.filled(np.ma.asarray(column, object), "masked").tolist()
    for name, column in search.cv_results_.items() if "time" not in name}
print("best", search.best_index_, columns)
"""
JOBLIB = """
from joblib import Parallel, delayed
from tests.fate import FAILS, befalls

def call(number):
    befalls(number)
    return number**2

print("best", Parallel(n_jobs=-1)(delayed(call)(number) for number in range(12) if number != FAILS))
try:
    Parallel(n_jobs=-1)(delayed(call)(number) for number in range(FAILS + 1))
except ValueError as error:
    print("best", error)
"""
SWEEP = """
import argparse, json
from tests.fate import befalls

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--n", type=int)
given = parser.parse_args()
for epoch in range(1, 5):
    befalls(given.n)
    print(json.dumps({"loss": abs(given.lr - 0.1) * given.n + 1 / epoch}), flush=True)
"""
SWEEP_FILE = {
    "program": "script.py", "method": "grid", "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {"n": {"values": list(range(7))}, "lr": {"values": [0.1, 0.3]}},
    "early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2},
}  # fmt: skip
AGENT = """
import wandb
from tests.fate import befalls

def train():
    with wandb.init() as run:
        for epoch in range(1, 5):
            befalls(wandb.config.n)
            run.log({"loss": abs(wandb.config.lr - 0.1) * wandb.config.n + 1 / epoch})

wandb.agent(wandb.sweep({
    "method": "grid", "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {"n": {"values": list(range(7))}, "lr": {"values": [0.1, 0.3]}},
    "early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2},
}), train)
"""
HYDRA = """
import hydra
from mpitune import current_trial
from tests.fate import befalls

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    for epoch in range(1, 4):
        befalls(config.hydra_number)
        loss = (config.lr - 0.01) ** 2 + 1 / config.units + 1 / epoch
        current_trial().report({"loss": loss}, step=epoch)
    return loss

main()
"""
HYDRA_FILE = "{lr: 0.1, units: 8, hydra_number: '${hydra:job.num}', hydra: {sweep: {dir: out}, sweeper: {gpu: none}}}"


def of_hydra(options: list[str]) -> list[str]:
    """Options of a command line as Hydra has them."""
    words, left = list[str](), list(options)
    while left:
        name = left.pop(0).removeprefix("--").replace("-", "_")
        value = left.pop(0) if left and not left[0].startswith("--") else "true"
        words += [f"hydra.sweeper.{name}={value}"] * (name in ("workers", "results", "join"))
    return words


@dataclass(frozen=True)
class Door:
    """A row.

    Attributes:
        files: of its folder, by name.
        words: what follows `python`, from the options of a run; "script.py" is in its folder.
        status: of a complete study, of which one trial has failed.
        joins: whether several jobs can work on it.  keeps: whether it has a folder of results.
        writes: whether its trials write files themselves, so that a full disk is their own failure.
        signal: that tells it to stop.  needs: a package.  prints: how the lines begin that must be the same.
        timed: whether values are times, too, which no two runs have in common.
        grace: how it is told to give running trials little time; without that they must end.
        holds: the numbers of trials from which on all wait until the program is killed, and until it is told to stop.
    """

    files: dict[str, str]
    words: Callable[[list[str]], list[str]] = lambda options: ["script.py", "--gpu", "none", *options]
    status: int = 0
    joins: bool = True
    keeps: bool = True
    writes: bool = False
    signal: signal.Signals = signal.SIGUSR1
    needs: str = "numpy"
    prints: str | None = "best"
    timed: bool = False
    grace: tuple[str, ...] = ("--grace", "0.5")
    holds: tuple[int, int] = (6, 9)

    def written(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)


def script(text: str, **how: object) -> Door:
    """A program that takes the options of a run."""
    return Door({"script.py": HEAD + text}, **how)  # type: ignore[arg-type]


def unchanged(text: str, **how: object) -> Door:
    """A script of another tuner."""
    words = ["-m", "mpitune", "--gpu", "none", "--window", "4"]
    return Door({"script.py": text}, lambda options: [*words, *options, "script.py"], grace=(), **how)  # type: ignore[arg-type]


DOORS = {
    "toys": Door(
        {},
        lambda options: [
            "-m", "tests.toys", "10", "--rounds", "2", "--batch-trials", "2", "--array-size", "5",
            "--data-size", "1000", "--gpu", "none", *options,
        ],
        status=3, signal=signal.SIGTERM, prints=None, holds=(6, 8),
    ),
    "search": script(SEARCH, signal=signal.SIGTERM, needs="optuna"),
    "a strategy with stages": script(STAGES, needs="optuna"),
    "together": script(TOGETHER, signal=signal.SIGINT, needs="optuna", holds=(9, 12)),
    "a race of GridSearchCV": script(RACE, joins=False, timed=True, grace=()),
    "an Optuna script": unchanged(OPTUNA, joins=False, needs="optuna"),
    "a hyperopt script": unchanged(HYPEROPT, needs="hyperopt"),
    "W&B's agent": unchanged(AGENT, prints=None, needs="wandb"),
    "a Ray Tune script": unchanged(RAY, needs="ray.tune"),
    "a sweep file": Door(
        {"script.py": SWEEP, "sweep.json": json.dumps(SWEEP_FILE)},
        lambda options: ["-m", "mpitune", "run", "sweep.json", "--gpu", "none", "--window", "4", *options],
        status=3, prints=None, writes=True,
    ),
    "Hydra": Door(
        {"script.py": HYDRA, "conf/config.yaml": HYDRA_FILE},
        lambda options: [
            "script.py", "--multirun", "hydra/sweeper=mpitune", "lr=interval(0.001,0.1)", "units=8,64",
            "hydra.sweeper.n_trials=14", "hydra.sweeper.seed=3", "hydra.sweeper.n_jobs=4",
            "hydra.sweeper.max_failure_rate=0.5", *of_hydra(options),
        ],
        grace=(), prints=None, writes=True, needs="hydra",
    ),
    "joblib": Door(  # with one worker joblib calls in the script
        {"script.py": JOBLIB}, lambda _: ["-m", "mpitune", "--gpu", "none", "script.py"], joins=False, keeps=False,
    ),
}  # fmt: skip
