"""Trials that need several devices of a node at once, large ones more than small ones.

    python examples/gang_trials.py                 # on GPUs: search(..., gpu="all", devices=...)

A large trial has two threads here, which share a sum, as data-parallel training would a gradient. On GPUs
both devices are visible to the trial (CUDA_VISIBLE_DEVICES), so `torchrun --nproc-per-node 2` can be the command.
With nodes=2 it would have two whole nodes, and a command would be started there by srun or mpirun.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from mpitune import Choice, Float, search


def part(numbers):
    return sum(number**2 for number in numbers)


def objective(trial):
    threads = int(os.environ["OMP_NUM_THREADS"])  # the CPU slots of this trial, 2 or 1
    numbers = [trial.params["x"] + i / 100 for i in range(-10, 11)]
    with ThreadPoolExecutor(threads) as pool:
        loss = sum(pool.map(part, (numbers[i::threads] for i in range(threads))))
    return {"loss": loss, "threads": threads}


def devices(params):
    return 2 if params["size"] == "large" else 1


if __name__ == "__main__":
    space = {"x": Float(-1, 1), "size": Choice("small", "large")}
    study = search(objective, space, strategy="sobol", n_trials=8, minimize="loss", workers=4, devices=devices)
    print(study.report())
