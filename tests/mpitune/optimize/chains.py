"""Searches with chains that tests run as a user's script: python -m tests.mpitune.optimize.chains '{...}'."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np

from mpitune import Int, RunOptions, search
from mpitune.optimize import Chain, Link

SPACE = {"penalty": Int(0, 1), "power": Int(1, 2), "degree": Int(1, 3)}
FILE = "CHAIN_FILE"  # variable that names the file with a line for each link that was computed


def noted(name: str) -> None:
    if os.environ.get(FILE):
        with open(os.environ[FILE], "a") as file:
            file.write(f"{name} {os.environ.get('OMPI_COMM_WORLD_RANK', '')}{socket.gethostname()} {os.getppid()}\n")
        time.sleep(0.05)  # long enough that other workers want it meanwhile


def features(trial: Any) -> np.ndarray:
    degree = trial.params["degree"]
    noted(f"features-{degree}")
    if degree == 2:
        raise ValueError("no features of degree 2")
    rng = np.random.default_rng(trial.seed)
    return rng.normal(size=(100, 4)) ** degree


def powers(trial: Any, features: np.ndarray) -> dict[str, Any]:
    noted(f"powers-{trial.params['power']}")
    return {"sums": (features ** trial.params["power"]).sum(0), "names": ["a"]}


def model(trial: Any, features: np.ndarray, powers: dict[str, Any]) -> dict[str, float]:
    assert not features.flags.writeable and not powers["sums"].flags.writeable
    powers["names"].append("b")  # which no other trial sees
    return {"loss": float(powers["sums"].sum()) + trial.params["penalty"], "names": float(len(powers["names"]))}


def stepped(trial: Any, features: np.ndarray) -> Any:
    for step in range(3):
        yield {"step": step + 1, "loss": float(features[step, 0]) + trial.params["penalty"]}


def chain(**how: Any) -> Chain:
    return Chain(Link(features, "degree"), Link(powers, "power"), model, **how)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    how = {name: given.pop(name) for name in ("limit_gb",) if name in given}
    study = search(chain(**how), SPACE, strategy="grid", minimize="loss", options=RunOptions(quiet=True), **given)
    print(json.dumps([[t.number, t.state, dict(t.params), dict(t.values)] for t in study.trials]) + "\n", end="")
