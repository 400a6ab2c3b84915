"""Objectives made at random, and a script that runs their studies: `python -m tests.mpitune.optuna.made 0 20`.

It prints the digest of each study. Under `python -m mpitune FILE` and mpirun it is a user's script.
"""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import optuna

CHOICES: tuple[Any, ...] = ("a", "b", None, True, 3, 0.5)


class Made:
    """An objective with conditions, loops, pruning and failures, as its number has it."""

    def __init__(self, number: int):
        draw = random.Random(number)
        self.n_values = draw.choice((1, 1, 1, 2, 3))
        self.block = made_block(draw, "p", 3)
        self.fails = draw.choice((0.0, 0.1, 0.3))
        self.steps = draw.choice((0, 4, 9)) if self.n_values == 1 else 0
        self.constrained = draw.random() < 0.3 and hasattr(optuna.Trial, "set_constraint")

    def __call__(self, trial: Any) -> Any:
        loss = run_block(self.block, trial, "")
        trial.set_user_attr("loss", loss)
        if self.constrained:
            trial.set_constraint("loss", loss - 2)
        for step in range(self.steps):
            trial.report(loss + 3 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned()
        luck = random.Random(loss).random()
        if luck < self.fails:
            if luck < self.fails / 2:
                raise ValueError("bad luck")
            return None if luck < self.fails * 0.75 else float("nan")
        return loss if self.n_values == 1 else [loss + (-1) ** k * k * luck for k in range(self.n_values)]


def made_block(draw: random.Random, name: str, depth: int) -> list[tuple[Any, ...]]:
    """Some statements: of what kind, the parameter's name, and what the kind needs."""
    block: list[tuple[Any, ...]] = []
    for place in range(draw.randint(1, 3)):
        called = f"{name}{place}"
        kind = draw.choice(("float", "int", "choice", "if", "loop") if depth else ("float", "int", "choice"))
        if kind == "float":
            low = draw.choice((1e-3, 0.5))
            how: dict[str, Any] = draw.choice(({}, {"log": True}, {"step": 0.25}))
            block.append((kind, called, low, low + 4, how))
        elif kind == "int":
            block.append((kind, called, 1, 2 * draw.randint(0, 6) + 1, draw.choice(({}, {"log": True}, {"step": 2}))))
        elif kind == "choice":
            block.append((kind, called, draw.sample(CHOICES, draw.randint(2, 5))))
        elif kind == "if":
            block.append((kind, called, [made_block(draw, f"{called}{way}", depth - 1) for way in "xyz"]))
        else:
            block.append((kind, called, draw.randint(1, 3), made_block(draw, f"{called}l", depth - 1)))
    return block


def run_block(block: list[tuple[Any, ...]], trial: Any, suffix: str) -> float:
    """What the block's statements add to the loss."""
    loss = 0.0
    for kind, name, *more in block:
        name += suffix
        if kind == "float":
            low, high, how = more
            loss += (trial.suggest_float(name, low, high, **how) - 1.5) ** 2
        elif kind == "int":
            low, high, how = more
            loss += abs(trial.suggest_int(name, low, high, **how) - 3) / 4
        elif kind == "choice":
            loss += more[0].index(trial.suggest_categorical(name, more[0])) / 2
        elif kind == "if":
            loss += run_block(more[0][trial.suggest_int(name, 0, 2)], trial, suffix)
        else:
            for turn in range(trial.suggest_int(name, 1, more[0])):
                loss += run_block(more[1], trial, f"{suffix}_{turn}")
    return loss


def made_study(number: int, **more: Any) -> optuna.Study:
    """A study for the objective of this number, with a sampler and a pruner of the same."""
    draw = random.Random(-number - 1)
    n_values = Made(number).n_values
    samplers: list[Callable[[], Any]] = [
        lambda: optuna.samplers.TPESampler(seed=number, n_startup_trials=4),
        lambda: optuna.samplers.TPESampler(seed=number, n_startup_trials=4, multivariate=True, group=True),
        lambda: optuna.samplers.TPESampler(seed=number, n_startup_trials=4, constant_liar=True),
        lambda: optuna.samplers.RandomSampler(seed=number),
        lambda: optuna.samplers.NSGAIISampler(seed=number, population_size=5),
        lambda: optuna.samplers.QMCSampler(seed=number),
    ]
    if n_values == 1:
        samplers.append(lambda: optuna.samplers.CmaEsSampler(seed=number, n_startup_trials=3))
    pruners = (
        optuna.pruners.MedianPruner(n_startup_trials=3),
        optuna.pruners.SuccessiveHalvingPruner(),
        optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9),
        optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(n_startup_trials=2), 1),
        optuna.pruners.NopPruner(),
    )
    ways = [draw.choice(("minimize", "maximize")) for _ in range(n_values)]
    return optuna.create_study(directions=ways, sampler=draw.choice(samplers)(), pruner=draw.choice(pruners), **more)


def digest(study: optuna.Study) -> str:
    """Of all that the study knows of its trials, but when they ran."""
    rows = [
        (t.number, t.state.name, t.values, list(t.params.items()), sorted(t.distributions.items()),
         sorted(t.intermediate_values.items()), t.user_attrs, sorted(t.system_attrs.items()))
        for t in study.trials
    ]  # fmt: skip
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:12]


def quiet() -> None:
    """Neither logs nor warnings of Optuna's."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)


if __name__ == "__main__":
    quiet()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        study = made_study(number)
        with suppress(KeyError):  # of Optuna 4.0 itself: a genetic sampler under Hyperband
            study.optimize(Made(number), n_trials=15, catch=ValueError)
        print(number, digest(study), *sorted(trial.state.name[0] for trial in study.trials), flush=True)
