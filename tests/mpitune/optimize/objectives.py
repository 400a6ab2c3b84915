"""Searches that tests run as a user's script: python -m tests.mpitune.optimize.objectives '{"strategy": ..., ...}'."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from mpitune import Choice, Float, Int, RunOptions, When, search
from mpitune.optimize.search_study import SearchStudy

SPACE = {
    "x": Float(0, 1),
    "n": Int(1, 100, log=True),
    "kind": Choice("a", "b"),
    "y": When(Float(0.01, 1, log=True), kind="b"),
}


def searched(objective: Any, space: Any, **how: Any) -> SearchStudy:
    """A search for the smallest loss in this process, with a quiet engine, unless `how` says otherwise."""
    usual: dict[str, Any] = {"minimize": "loss", "workers": 0, "options": RunOptions(quiet=True)}
    return search(objective, space, **{**usual, **how})


def plain(trial: Any) -> dict[str, float]:
    """Some trials fail, some diverge."""
    params = trial.params
    if params["x"] > 0.9:
        raise ValueError("x is too large")
    loss = float("inf") if params["n"] > 50 else (params["x"] - 0.3) ** 2 + params.get("y", 0.5) / 10
    return {"loss": loss, "cost": float(params["n"]) * params["x"]}


def stepped(trial: Any) -> Iterator[dict[str, float]]:
    """A loss that falls with the steps, towards what `plain` says; its checkpoint is the step."""
    state = trial.folder / "step"
    done = int(state.read_text()) if trial.start and state.exists() else 0
    for step in range(done + 1, 28):
        state.write_text(str(step))
        yield {"step": step, "loss": plain(trial)["loss"] + 1 / step, "begun": float(done)}


def reported(trial: Any) -> None:
    """`stepped` as a function."""
    for said in stepped(trial):
        trial.report(said)


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    strategy: Any = how.pop("strategy")
    objective = {"plain": plain, "stepped": stepped, "reported": reported}[how.pop("objective", "plain")]
    if "(" in strategy:
        import mpitune.optimize.strategies

        strategy = eval(strategy, vars(mpitune.optimize.strategies))
    space = {name: part for name, part in SPACE.items() if name != "y" or not how.get("flat")}
    how.pop("flat", None)
    study = searched(objective, space, **{"strategy": strategy, "workers": None, "window": 4, **how})
    print(json.dumps([[t.number, t.state, dict(t.params), dict(t.values)] for t in study.trials]) + "\n", end="")
