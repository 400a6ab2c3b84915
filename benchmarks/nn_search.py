"""A whole search of `mnist_nn`: this project's training against the reference way and plain PyTorch, trial by trial.

    python -m benchmarks.nn_search --data DIR [--trials-sample K] [--epochs N] [--results FILE]

The search is the real one, `Bagging`, evaluated by its own objective in this process on one thread: every fold of
every parameter set, then the refit of each bootstrap sample. Right after each trial the reference way
(`benchmarks.nn_reference`) trains a network of the same parameters on the same images for as many epochs as ours
took, and evaluates it on the same validation or test images. Then the ways of plain PyTorch with images in memory do
as many steps on these images ("autograd", "fused" and "compiled", see `benchmarks.nn_step`). They evaluate
nothing, and their first step, which compiles, is not counted. Times are CPU seconds. With --trials-sample K the other
ways repeat only K trials, evenly spread over the search in the order asked; the ratios are of these.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import circumstances, publish, table
from benchmarks.nn_reference import Reference
from benchmarks.nn_step import BATCH_SIZE, PYTORCH, pytorch
from mnist_nn import training
from mnist_nn.bootstrap import bootstrap_sample
from mnist_nn.experiment import Bagging
from mpitune import RunOptions, run_study
from mpitune.experiment import WorkerContext
from mpitune.trial import Batch, Result, Trial, seed_of


class Timed(NamedTuple):
    """CPU seconds of a trial, ours and by name those of the other ways, and its epochs."""

    ours: float
    others: dict[str, float]
    epochs: int


def other_seconds(experiment: Bagging, data: dict[str, np.ndarray], trial: Trial, epochs: int) -> dict[str, float]:
    """By name of the way: of training as the trial asks; the reference way also evaluates."""
    bootstrap = int(trial.params["bootstrap"])
    images, labels = data["train_images"], data["train_labels"]
    start = time.process_time()
    sample = bootstrap_sample(len(labels), experiment.folds, seed_of(experiment.seed, f"b{bootstrap}"))
    learned, evaluated = sample.indices, (data["test_images"], data["test_labels"])
    if trial.segment.fold is not None:
        fold = sample.folds[trial.segment.fold]
        learned = np.delete(sample.indices, np.arange(fold.start, fold.stop))
        evaluated = images[sample.indices[fold]], labels[sample.indices[fold]]
    way = Reference(trial.params, (images.shape[1], images.shape[2]), experiment.batch_size)
    of_training = _tensors(images[learned], labels[learned])
    for _ in range(epochs):
        for _ in way.epoch(*of_training):
            pass
    way.loss(*_tensors(*evaluated))
    seconds = {"reference": time.process_time() - start}
    for name in PYTORCH:
        steps = pytorch(name, *of_training, trial.params)
        next(steps)
        start = time.process_time()
        deque(islice(steps, epochs * math.ceil(len(learned) / BATCH_SIZE)), maxlen=0)
        seconds[name] = time.process_time() - start
    return seconds


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.tensor(images), torch.tensor(labels).long()


def run(experiment: Bagging, n_sample: int | None) -> list[Timed]:
    """The whole search, batch by batch; every n-th trial by the reference way too."""
    data = experiment.data()
    objective = experiment.objective(WorkerContext("cpu", data))
    n_trials = experiment.n_trials()
    assert n_trials is not None
    every = 1 if n_sample is None else max(1, n_trials // n_sample)
    times = list[Timed]()

    def both(batch: Batch) -> Iterator[Result]:
        for trial in batch:
            if not times:  # the first call compiles the kernels or reads them from the cache, as a worker's first does
                list(objective((trial,)))
            start = time.process_time()
            (result,) = objective((trial,))
            ours, epochs = time.process_time() - start, int(result.value("epochs"))
            repeated = len(times) % every == every // 2
            times.append(Timed(ours, other_seconds(experiment, data, trial, epochs) if repeated else {}, epochs))
            yield result

    object.__setattr__(experiment, "objective", lambda worker: both)
    run_study(experiment, RunOptions(workers=0, quiet=True))
    return times


def _ratio(paired: Sequence[Timed], name: str) -> str:
    """Of all these trainings, and of each: median, least and most."""
    each = [one.others[name] / one.ours for one in paired]
    whole = sum(one.others[name] for one in paired) / sum(one.ours for one in paired)
    return f"{whole:.2f}; {statistics.median(each):.2f} ({min(each):.2f}..{max(each):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of MNIST")
    parser.add_argument("--bootstraps", type=int, default=4, metavar="N")
    parser.add_argument("--tuning", type=int, default=6, metavar="N", help="parameter sets per bootstrap sample")
    parser.add_argument("--images", type=int, default=5000, metavar="N")
    parser.add_argument("--channels", type=int, default=64, metavar="N", help="most channels")
    parser.add_argument("--units", type=int, default=512, metavar="N", help="most hidden units")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="most epochs of a training")
    parser.add_argument("--trials-sample", type=int, metavar="K", help="trials of the other ways; default: all")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training.prepare(torch.device("cpu"))
    experiment = Bagging(
        options.bootstraps,
        options.tuning,
        data_folder=options.data,
        train_size=options.images,
        max_conv_layer=options.channels,
        max_hidden_layer=options.units,
        epochs=options.epochs,
    )
    times = run(experiment, options.trials_sample)
    paired = [one for one in times if one.others]
    ours = sum(one.ours for one in paired)
    totals = {name: sum(one.others[name] for one in paired) for name in ("reference", *PYTORCH)}
    best = min(PYTORCH, key=lambda name: totals[name])
    total = sum(one.ours for one in times)
    row = {
        "trainings": len(times),
        "epochs": sum(one.epochs for one in times),
        "ours, s": f"{total:.0f}",
        "trainings by all ways": len(paired),
        "ours of these, s": f"{ours:.1f}",
        **{f"{name}, s": f"{seconds:.1f}" for name, seconds in totals.items()},
        "reference / ours": _ratio(paired, "reference"),
        "best of PyTorch": best,
        "best of PyTorch / ours": _ratio(paired, best),
    }
    facts = dict(
        threads=1,
        bootstraps=options.bootstraps,
        sets=options.tuning,
        folds=experiment.folds,
        images=options.images,
        channels=f"1..{options.channels}",
        units=f"1..{options.units}",
        epochs=f"at most {options.epochs}",
    )
    publish(circumstances("torch", "torchvision", "numba", **facts) + "\n\n" + table([row]), options.results)


if __name__ == "__main__":
    main()
