"""Searches whose trials need several nodes: python -m tests.mpitune.optimize.gangs function|command."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from mpitune import Command, Int, RunOptions, search

RING = """
import json, sys
from mpi4py import MPI
n = MPI.COMM_WORLD.allreduce(1)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps({"loss": float(sys.argv[1]), "processes": n}))
"""


def objective(trial: Any) -> dict[str, float]:
    begin = time.time()
    time.sleep(0.1)
    return {"loss": float(len(trial.hosts)), "begin": begin, "end": time.time()}


if __name__ == "__main__":
    how: dict[str, Any] = dict(
        strategy="grid", minimize="loss", workers=2, nodes=lambda p: p["nodes"], options=RunOptions(quiet=True)
    )
    if sys.argv[1] == "function":
        study = search(objective, {"nodes": Int(0, 3), "again": Int(0, 2)}, **how)
    else:
        launcher = "mpirun --allow-run-as-root --oversubscribe --bind-to none --host {hosts} -n {nodes}"
        program = RING.replace("{", "{{").replace("}", "}}")
        command = Command([sys.executable, "-c", program, "{nodes}{again}"], launcher=launcher)
        study = search(command, {"nodes": Int(0, 3), "again": Int(0, 1)}, **how)
    trials = [[dict(t.params), dict(t.values), t.error] for t in study.trials]
    print(json.dumps(trials) + "\n", end="")
