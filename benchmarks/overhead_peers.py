"""Trials that sleep, run by another library: `python overhead_peers.py LIBRARY TRIALS WORKERS SECONDS`.

It runs with the Python that has the library and knows nothing of this project. The last line of its output is wall and
processor seconds of these trials, without what comes before them. Propulate's processes are ranks of mpirun.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any


def ray(n: int, workers: int, seconds: float) -> Callable[[], None]:
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    import ray as library
    from ray import tune

    library.init(num_cpus=workers, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

    def objective(config: dict[str, float]) -> dict[str, float]:
        time.sleep(seconds)
        return {"v": config["x"]}

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tuner = tune.Tuner(
                objective,
                param_space={"x": tune.uniform(0, 1)},
                tune_config=tune.TuneConfig(
                    metric="v", mode="min", num_samples=n, max_concurrent_trials=workers, reuse_actors=True
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            )
            assert len(tuner.fit()) == n

    return run


def propulate(n: int, workers: int, seconds: float) -> Callable[[], None]:
    from mpi4py import MPI
    from propulate import Propulator
    from propulate.utils import get_default_propagator

    rank = MPI.COMM_WORLD.rank
    rng = random.Random(rank)

    def loss(individual: Any) -> float:
        time.sleep(seconds)
        return float(individual["x"])

    folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if rank == 0 else None)
    propagator = get_default_propagator(pop_size=max(4, 2 * workers), limits={"x": (0.0, 1.0)}, rng=rng)
    found = Propulator(loss_fn=loss, propagator=propagator, rng=rng, generations=n // workers, checkpoint_path=folder)

    def run() -> None:
        MPI.COMM_WORLD.Barrier()
        found.propulate(logging_interval=n, debug=0)
        MPI.COMM_WORLD.Barrier()

    return run


def deephyper(n: int, workers: int, seconds: float) -> Callable[[], None]:
    from deephyper.evaluator import Evaluator
    from deephyper.hpo import HpProblem, RandomSearch

    problem = HpProblem()
    problem.add_hyperparameter((0.0, 1.0), "x")
    evaluator = Evaluator.create(slept, method="process", method_kwargs={"num_workers": workers})

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            found = RandomSearch(problem, random_state=0, log_dir=folder).search(evaluator, n, max_evals_strict=True)
            assert len(found) == n

    return run


def slept(job: Any) -> float:
    """An objective of DeepHyper's, which its processes get by its name."""
    time.sleep(float(sys.argv[4]))
    return -float(job.parameters["x"])


@contextmanager
def quiet() -> Any:
    """What libraries print goes nowhere, also what their processes do."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    name, n, workers, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    library = {"ray": ray, "propulate": propulate, "deephyper": deephyper}[name]
    if n == 0:
        print(importlib.metadata.version(name))
        return
    with quiet():
        run = library(n, workers, seconds)
        start, used = time.perf_counter(), processor_seconds()
        run()
        found = time.perf_counter() - start, processor_seconds() - used
    if int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
