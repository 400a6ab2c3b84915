"""Trials that need several devices of a node at once: devices=2 joins two GPUs, or two CPU slots, for each trial.

    python examples/gang_trials.py                 # on GPUs: search(..., gpu="all", devices=2)

Each trial has two threads here, which share a sum, as data-parallel training would a gradient. On GPUs
both devices are visible to the trial (CUDA_VISIBLE_DEVICES), so `torchrun --nproc-per-node 2` can be the command.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from common import Float, search


def part(numbers):
    return sum(number**2 for number in numbers)


def objective(trial):
    threads = int(os.environ["OMP_NUM_THREADS"])  # the CPU slots of this trial, 2
    numbers = [trial.params["x"] + i / 100 for i in range(-10, 11)]
    with ThreadPoolExecutor(threads) as pool:
        loss = sum(pool.map(part, (numbers[i::threads] for i in range(threads))))
    return {"loss": loss, "threads": threads}


if __name__ == "__main__":
    study = search(objective, {"x": Float(-1, 1)}, strategy="halton", n_trials=8, minimize="loss", workers=4, devices=2)
    print(study.report())
