"""A search of groups that tests run as a user's script: python -m tests.mpitune.optimize.groups '{"strategy": ...}'."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from mpitune import Choice, Float, RunOptions
from tests.mpitune.optimize.objectives import searched

TOGETHER, WRONG = 5, 0.9
SPACE = {"x": Float(0, 1), "units": Choice(16, 32)}


def units(params: Any) -> int:
    return int(params["units"])


def grouped(trials: Sequence[Any]) -> list[float]:
    """Losses that say the place of each trial and how many there are. One trial raises, others diverge.

    A file that is named in the environment gets the numbers of each call.
    """
    if "CALLS" in os.environ:
        with open(os.environ["CALLS"], "a") as file:
            file.write(json.dumps([trial.number for trial in trials]) + "\n")
    assert len({units(trial.params) for trial in trials}) == 1
    if any(trial.params["x"] > WRONG for trial in trials):
        raise ValueError("x is too large")
    return [loss_of(trial.params["x"], place, len(trials)) for place, trial in enumerate(trials)]


def loss_of(x: float, place: int, n: int) -> float:
    return float("inf") if x < 0.1 else x + 10 * place + 1000 * n


if __name__ == "__main__":
    options = RunOptions(quiet=True, heartbeat_timeout=4.0)  # after which a job that has joined is gone
    how: dict[str, Any] = {"options": options, "together": TOGETHER, "alike": units}
    how |= {"n_trials": 28, "window": 10, "workers": 2, **json.loads(sys.argv[1])}
    if how.pop("networks", False):
        from benchmarks.together import SPACE as RATES
        from benchmarks.together import Together

        study = searched(Together(), RATES, **{name: value for name, value in how.items() if name != "alike"})
    else:
        study = searched(grouped, SPACE, **how)
    said = [[dict(trial.params), trial.values.get("loss"), trial.state] for trial in study.trials]
    print("\n" + json.dumps(said) + "\n", end="")
