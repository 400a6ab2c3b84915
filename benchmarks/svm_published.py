"""The published grid on all 60,000 images of MNIST: 24 x 24 points, 5 folds. Hours; stop it and run it again at will.

    python -m benchmarks.svm_published --data ../data              # one-vs-one
    python -m benchmarks.svm_published --multiclass ovr --row      # one-vs-rest, 24 C at gamma = 10^-2.6957
    python -m benchmarks.svm_published --multiclass ovr            # one-vs-rest, whole

It is the program `mnist_svm` itself, with the journal in --study; this file adds the tables: errors of every fold, the
best point, its test error, and the seconds that each gamma took.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.machine import circumstances, publish, table
from mnist_svm.experiment import SvmGrid
from mpitune.cli import main as run_study
from mpitune.errors import Exit, duration
from mpitune.storage.history import read_journal

N = 24
ROW = 19  # the gamma nearest to the published best, 10^-2.6957


@dataclass(frozen=True)
class PublishedRow(SvmGrid):
    """All C of one gamma."""

    @property
    def gammas(self) -> np.ndarray:
        return SvmGrid(self.n_tuning).gammas[ROW : ROW + 1]


def report(study: Path, multiclass: str) -> str:
    """Tables of a complete study."""
    history = read_journal(study)
    assert history is not None
    errors = np.load(study / "validation_error.npy")
    best = json.loads((study / "best.json").read_text())
    penalties = sorted({float(trial.params["C"]) for trial in history.trials.values()})
    gammas = sorted({float(trial.params["gamma"]) for trial in history.trials.values()})
    seconds: dict[float, float] = defaultdict(float)
    for key, trial in history.trials.items():
        seconds[float(trial.params["gamma"])] += history.results[key].seconds
    settings = history.header["settings"]
    workers = len(history.runs[-1]["slots"])
    facts = circumstances(
        "numpy", "numba", images=settings["train_size"] or 60000, multiclass=multiclass, folds=settings["folds"],
        workers=workers,
    )  # fmt: skip
    size = {"workers' seconds, all": duration(sum(seconds.values())), "starts": len(history.runs)}
    wall = sum(end["seconds"] for end in history.ends)
    mean = [
        {"log10 gamma": f"{np.log10(gamma):.4f}", "seconds": f"{seconds[gamma]:.0f}"}
        | {f"{np.log10(c):.2f}": f"{100 * errors[:, g, i].mean():.2f}" for i, c in enumerate(penalties)}
        for g, gamma in enumerate(gammas)
    ]
    folds = [
        {"log10 gamma": f"{np.log10(gamma):.4f}", "fold": fold}
        | {f"{np.log10(c):.2f}": f"{100 * errors[fold, g, i]:.2f}" for i, c in enumerate(penalties)}
        for g, gamma in enumerate(gammas)
        for fold in range(len(errors))
    ]
    return "\n\n".join(
        [
            facts,
            table([size | {"wall time of the ended runs": duration(wall)}]),
            table([best]),
            "Mean validation error in per cent, by log10 C:",
            table(mean),
            "Validation error of each fold in per cent:",
            table(folds),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multiclass", choices=("ovo", "ovr"), default="ovo")
    parser.add_argument("--row", action="store_true", help="only gamma = 10^-2.6957")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--train-size", type=int, help="fewer images, to try it out")
    parser.add_argument("--n", type=int, default=N, help="another grid, to try it out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=float, metavar="GB", help="of each worker")
    parser.add_argument("--study", type=Path, help="folder of the journal")
    parser.add_argument("--results", type=Path, help="keep the tables in this file")
    arguments = parser.parse_args()
    name = f"svm_published_{arguments.multiclass}" + "_row" * arguments.row
    study = arguments.study or Path("results") / name
    options = ["--data", arguments.data, "--multiclass", arguments.multiclass, "--solver", "shared", "--gpu", "none"]
    options += ["--workers", arguments.workers, "--results", study]
    if arguments.train_size:
        options += ["--train-size", arguments.train_size]
    if arguments.memory:
        options += ["--memory", arguments.memory]
    status = run_study(PublishedRow if arguments.row else SvmGrid, [*map(str, options), str(arguments.n)])
    if status in (Exit.DONE, Exit.FAILED_TRIALS):
        publish(report(study, arguments.multiclass), arguments.results)
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
