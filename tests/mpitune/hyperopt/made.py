"""Random spaces, algorithms and objectives, and all that a call of `fmin` leaves behind, beside hyperopt alone.

python -m tests.mpitune.hyperopt.made 300        # so many seeds
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hyperopt import STATUS_FAIL, STATUS_OK, Trials, anneal, hp, mix, rand, tpe
from hyperopt.early_stop import no_progress_loss
from hyperopt.pyll import scope

from mpitune import RunOptions
from mpitune.hyperopt import fmin
from mpitune.hyperopt.minimizing import hyperopts

HERE = RunOptions(gpu="none", workers=0, quiet=True)


KINDS: list[Callable[[str, float], Any]] = [
    lambda label, low: hp.uniform(label, low, low + 2), lambda label, low: hp.loguniform(label, low, low + 2),
    lambda label, low: hp.quniform(label, 1, 9, 2), lambda label, low: hp.normal(label, low, 1),
    lambda label, low: hp.lognormal(label, 0, 1), lambda label, low: hp.qlognormal(label, 1, 1, 1),
    lambda label, low: hp.randint(label, 7), lambda label, low: hp.randint(label, 3, 9),
    lambda label, low: hp.uniformint(label, 2, 9), lambda label, low: scope.int(hp.quniform(label, 1, 30, 3)),
    lambda label, low: hp.pchoice(label, [(0.2, 1.0), (0.8, 3.0)]),
    lambda label, low: hp.choice(label, ["a", 2, None]),
]  # fmt: skip


def space_of(draw: np.random.Generator, depth: int = 0, name: str = "p") -> dict[str, Any]:
    """A space with parameters of all kinds, and choices in choices."""
    made: dict[str, Any] = {}
    for number in range(int(draw.integers(1, 4))):
        label = f"{name}{number}"
        if depth < 2 and draw.uniform() < 0.35:
            made[label] = hp.choice(label, [space_of(draw, depth + 1, f"{label}_{n}_") for n in range(2)])
        else:
            made[label] = KINDS[int(draw.integers(len(KINDS)))](label, float(draw.uniform(-2, 0.5)))
    return made


def value_of(thing: Any) -> float:
    if isinstance(thing, dict):
        return sum(map(value_of, thing.values()))
    return abs(float(thing) - 1) if isinstance(thing, float | int | np.number) else len(str(thing))


def objective(point: dict[str, Any], kind: int = 0) -> Any:
    """Its loss; kind: what it gives beside that, and how it fails."""
    loss = value_of(point)
    fate = int(loss * 1000) % 7
    if kind == 1 and fate == 0:
        raise ValueError(f"loss {loss}")
    if kind == 2 and fate == 1:
        return {"status": STATUS_FAIL, "why": "on purpose"}
    if kind == 3 and fate == 2:
        loss = float("nan")
    types = sorted(map(str, {type(value) for value in point.values()}))
    said = {"loss_variance": 0.1, "true_loss": np.float32(loss), "types": types}
    attached = {"content": b"\x00a", "n": 1}
    return {"loss": loss, "status": STATUS_OK, **said, "attachments": attached} if kind else loss


def call_of(seed: int) -> dict[str, Any]:
    """The arguments of a call."""
    draw = np.random.default_rng(seed)
    algorithms = [tpe.suggest, partial(tpe.suggest, n_startup_jobs=4), rand.suggest, anneal.suggest]
    algorithms.append(partial(mix.suggest, p_suggest=[(0.5, rand.suggest), (0.5, algorithms[1])]))
    kind = int(draw.integers(4))
    call = {
        "space": space_of(draw), "algo": algorithms[int(draw.integers(len(algorithms)))], "max_evals": 24,
        "rstate": np.random.default_rng(seed), "max_queue_len": int(draw.choice([1, 1, 1, 3])), "verbose": False,
        "fn": partial(objective, kind=kind), "catch_eval_exceptions": bool(draw.uniform() < 0.7),
    }  # fmt: skip
    if draw.uniform() < 0.3 and kind not in (2, 3):
        call["early_stop_fn"] = no_progress_loss(6)
    if draw.uniform() < 0.3:
        call["loss_threshold"] = float(draw.uniform(0, 3))
    return call


def left_by(call: dict[str, Any], how: Any, trials: Trials | None = None) -> tuple[Any, ...]:
    """What a call returns, and leaves in its trials and its random numbers."""
    trials = Trials() if trials is None else trials
    try:
        best = how(**call, trials=trials)
    except Exception as error:
        best = repr(error)
    kept = [
        {name: value for name, value in doc.items() if name not in ("book_time", "refresh_time")}
        for doc in trials._dynamic_trials
    ]
    left = best, kept, sorted(trials._ids), trials.attachments, call["rstate"].bit_generator.state
    return tuple(map(repr, left))


def difference(seed: int) -> str:
    """The first thing that a call with a window of 1 leaves otherwise than hyperopt alone; "" where all is equal."""
    right, found = left_by(call_of(seed), hyperopts), left_by(call_of(seed), partial(fmin, window=1, options=HERE))
    return next((f"seed {seed}: {mine}, right {of}" for mine, of in zip(found, right, strict=True) if mine != of), "")


if __name__ == "__main__":
    wrong = [words for words in map(difference, range(int(sys.argv[1]))) if words]
    print(*wrong, f"{sys.argv[1]} calls, {len(wrong)} differ", sep="\n")
