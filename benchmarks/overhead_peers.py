"""Trials that sleep, run by another library: `python -P overhead_peers.py LIBRARY TRIALS WORKERS SECONDS NOTES`.

It runs with the Python that has the library and knows nothing of this project: with -P, so that libraries do not import
the files beside it. Each trial adds a line to the file NOTES. The last line of the output is processor seconds of these
trials, without what comes before them. Propulate's processes are ranks of mpirun.
"""

from __future__ import annotations

import importlib.metadata
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


def sleep(seconds: float, notes: str) -> None:
    """Sleep so long, in which this process notes when that began."""
    begun = time.monotonic()
    with open(notes, "a") as file:
        file.write(f"{os.getpid()} {begun}\n")
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def ray(n: int, workers: int, seconds: float, notes: str) -> Callable[[], None]:
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    import ray as library
    from ray import tune

    library.init(num_cpus=workers, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

    def objective(config: dict[str, float]) -> dict[str, float]:
        sleep(seconds, notes)
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


def propulate(n: int, workers: int, seconds: float, notes: str) -> Callable[[], None]:
    from mpi4py import MPI
    from propulate import Propulator
    from propulate.utils import get_default_propagator

    rank = MPI.COMM_WORLD.rank
    rng = random.Random(rank)

    def loss(individual: Any) -> float:
        sleep(seconds, notes)
        return float(individual["x"])

    folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if rank == 0 else None)
    propagator = get_default_propagator(pop_size=max(4, 2 * workers), limits={"x": (0.0, 1.0)}, rng=rng)
    found = Propulator(loss_fn=loss, propagator=propagator, rng=rng, generations=n // workers, checkpoint_path=folder)

    def run() -> None:
        MPI.COMM_WORLD.Barrier()
        found.propulate(logging_interval=n, debug=0)
        MPI.COMM_WORLD.Barrier()

    return run


def deephyper(n: int, workers: int, seconds: float, notes: str) -> Callable[[], None]:
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
    sleep(float(sys.argv[4]), sys.argv[5])
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
    """Of this process and all that have ended of those that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    name, n, workers, seconds, notes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
    library = {"ray": ray, "propulate": propulate, "deephyper": deephyper}[name]
    if n == 0:
        with quiet():
            importlib.import_module(name)  # or this Python lacks a part of it
        print(importlib.metadata.version(name))
        return
    with quiet():
        run = library(n, workers, seconds, notes)
        used = processor_seconds()
        run()
        used = processor_seconds() - used
    if int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) == 0:
        print(used, flush=True)


if __name__ == "__main__":
    main()
