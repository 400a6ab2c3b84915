"""Objectives, samplers and studies made at random; see tests/differential/doors.py."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import optuna

from mpitune import RunOptions

HERE = RunOptions(gpu="none", workers=0, quiet=True)
TWO = RunOptions(gpu="none", workers=2, quiet=True)
CHOICES: tuple[Any, ...] = ("a", "b", None, True, 3, 0.5)


class Made:
    """An objective with conditions, loops, pruning and failures, as its number has it."""

    def __init__(self, number: int):
        draw = random.Random(number)
        self.n_values = draw.choice((1, 1, 1, 2, 3))
        self.block = made_block(draw, "p", draw.choice((0, 0, 3)))
        self.stops = draw.choice((-1, -1, -1, draw.randint(2, 14)))
        self.fails = draw.choice((0.0, 0.1, 0.3))
        self.steps = draw.choice((0, 4, 9)) if self.n_values == 1 else 0
        self.constrained = draw.random() < 0.3 and hasattr(optuna.Trial, "set_constraint")

    def __call__(self, trial: Any) -> Any:
        loss = run_block(self.block, trial, "")
        trial.set_user_attr("loss", loss)
        trial.set_user_attr("seen", [other.value for other in trial.study.trials if other.state.name == "PRUNED"])
        trial.study.set_user_attr("last", trial.number)
        if trial.number == self.stops:
            trial.study.stop()
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


def over(trial: Any) -> list[float]:
    """The constraints of a trial, for samplers."""
    return [trial.user_attrs["loss"] - 2]


def made_sampler(draw: random.Random, number: int, made: Made) -> Any:
    """A sampler with its options, which the objective can have."""
    of, one = optuna.samplers, made.n_values == 1
    crossovers = ("Uniform", "BLXAlpha", "SPX", "SBX", "VSBX", "UNDX")
    begin, constrained = draw.choice((1, 4)), {"constraints_func": over} if draw.random() < 0.3 else {}

    def genetic() -> dict[str, Any]:
        crossover = getattr(of.nsgaii, f"{draw.choice(crossovers)}Crossover")()
        return {"population_size": draw.choice((4, 5)), "crossover": crossover, "swapping_prob": 0.3, **constrained}

    flat = {name: more for kind, name, *more in made.block if kind in ("float", "int", "choice")}
    listed = {name: more[0] if len(more) == 1 else more[:2] for name, more in flat.items()}

    def flag() -> bool:
        return draw.random() < 0.5

    def independent() -> Any:
        return of.TPESampler(seed=number, multivariate=False) if flag() else None

    kinds: dict[str, Callable[[], Any]] = {
        "tpe": lambda: of.TPESampler(
            seed=number, n_startup_trials=begin, multivariate=flag(), constant_liar=flag(), **constrained),
        "group": lambda: of.TPESampler(seed=number, n_startup_trials=begin, multivariate=True, group=True),
        "default": lambda: of.TPESampler(seed=number, n_startup_trials=begin),
        "random": lambda: of.RandomSampler(seed=number),
        "nsga2": lambda: of.NSGAIISampler(seed=number, **genetic()),
        "nsga3": lambda: of.NSGAIIISampler(seed=number, **genetic()),
        "qmc": lambda: of.QMCSampler(
            seed=number, qmc_type=draw.choice(("sobol", "halton")), scramble=flag(), independent_sampler=independent(),
            warn_independent_sampling=False),
        "brute": lambda: of.BruteForceSampler(seed=number),
        "grid": lambda: of.GridSampler(listed, seed=number),
        "fixed": lambda: of.PartialFixedSampler(
            {name: values[0] for name, values in list(listed.items())[:1]}, of.TPESampler(seed=number)),
    }  # fmt: skip
    if one:
        how: dict[str, Any] = draw.choice(({}, {"with_margin": True}, {"lr_adapt": True}, {"use_separable_cma": True}))
        kinds["cma"] = lambda: of.CmaEsSampler(
            seed=number, n_startup_trials=begin, popsize=draw.choice((None, 4)), consider_pruned_trials=flag(),
            independent_sampler=independent(), warn_independent_sampling=False, **how)  # fmt: skip
    if repr(made.block).count("'float'") > repr(made.block).count("'step': 0.25"):
        del kinds["brute"]  # which needs steps
    if one and draw.random() < 0.2:  # which is slow
        kinds = {"gp": lambda: of.GPSampler(seed=number, n_startup_trials=4)}
    return kinds[draw.choice([*kinds, "cma", "cma", "default"] if "cma" in kinds else [*kinds])]()


def made_study(number: int, **more: Any) -> optuna.Study:
    """A study for the objective of this number, with a sampler and a pruner of the same."""
    draw, made = random.Random(-number - 1), Made(number)
    sampler = made_sampler(draw, number, made)
    pruners = (
        optuna.pruners.MedianPruner(n_startup_trials=3),
        optuna.pruners.SuccessiveHalvingPruner(),
        optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9),
        optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(n_startup_trials=2), 1),
        optuna.pruners.PercentilePruner(30, n_startup_trials=2, n_warmup_steps=1),
        optuna.pruners.ThresholdPruner(upper=5),
        optuna.pruners.WilcoxonPruner(n_startup_steps=2),
        optuna.pruners.NopPruner(),
    )
    ways = [draw.choice(("minimize", "maximize")) for _ in range(made.n_values)]
    return optuna.create_study(directions=ways, sampler=sampler, pruner=draw.choice(pruners), **more)


def new(**more: Any) -> optuna.Study:
    """A study in memory of TPE with a seed."""
    return optuna.create_study(**{"sampler": optuna.samplers.TPESampler(seed=1), **more})


def square(trial: Any) -> float:
    """An objective. A worker that needs it imports this file, which is light, and not that of a test."""
    return float(trial.suggest_float("x", -1, 1) ** 2)


def states(study: optuna.Study) -> str:
    """A letter of each trial."""
    return "".join(trial.state.name[0] for trial in study.trials)


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
