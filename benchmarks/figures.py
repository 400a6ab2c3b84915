"""How long the tables and figures of the published grid take: 24 x 24 points, 5 folds, so 25 figures in 50 files.

    python -m benchmarks.figures [--data DIR] [--rounds 3] [--keep FOLDER] [--results FILE]

The errors are those of benchmarks/results/svm_published_ovr.md; a journal is made of them, as if the study had just
been computed. Then the command of the study is given, which finds nothing to compute and reports; and the figures are
drawn by themselves, in a process of their own. Times include the start of Python.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.machine import circumstances, load, publish, table
from mnist_svm.experiment import SvmGrid
from mpitune import evaluate
from mpitune.experiment import per_trial
from mpitune.settings import result_settings
from mpitune.storage.journal import Journal
from mpitune.trial import Evaluation, Trial

PUBLISHED = Path(__file__).parent / "results" / "svm_published_ovr.md"
DRAW = """
import sys
from pathlib import Path
import numpy as np
from mnist_svm.experiment import SvmGrid
from mnist_svm.figures import draw_figures
from mnist_svm.points import best_point
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    errors, grid = np.load(folder / "validation_error.npy"), SvmGrid(24)
    draw_figures(folder, errors, gammas=grid.gammas, penalties=grid.penalties, best=best_point(errors))
"""


def published() -> np.ndarray:
    """Errors float64 (folds, n_gamma, n_C) of the table that is kept."""
    lines = PUBLISHED.read_text().partition("Validation error of each fold")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("| -")]
    return np.array([[float(cell) / 100 for cell in row[2:]] for row in rows]).reshape(24, 5, 24).swapaxes(0, 1)


def write(folder: Path, grid: SvmGrid) -> None:
    """The journal of the study, complete but for its end."""
    errors, data = published(), grid.data()
    predictions = data["test_labels"].astype(np.uint8)
    predictions[:133] = (predictions[:133] + 1) % 10  # as many as were wrong

    def known(trial: Trial) -> Evaluation:
        counts = {"n_support": 20_000.0, "converged": 1.0}
        if "fold" not in trial.params:
            return Evaluation(trial.key, {"test_error": 0.0133, **counts}, {"predictions": predictions})
        g = int(np.argmin(np.abs(np.log(grid.gammas / float(trial.params["gamma"])))))
        c = int(np.argmin(np.abs(np.log(grid.penalties / float(trial.params["C"])))))
        return Evaluation(trial.key, {"error": errors[int(trial.params["fold"]), g, c], **counts})

    settings = {"experiment": "mnist_svm", **result_settings(grid), "data_sha256": grid.digest(data)}
    with closing(Journal(folder, {"settings": settings, "versions": {}, "commit": None, "command": []})) as journal:
        journal.append(evaluate(grid, objective=per_trial(known)))


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Wall and processor seconds of a command with all that it starts."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the figures of the published grid take.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of MNIST")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="leave the study in this folder")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary, "study")
        write(folder, SvmGrid(24, data_folder=arguments.data, multiclass="ovr"))
        study = ["-m", "mnist_svm", "24", "--multiclass", "ovr", "--data", str(arguments.data), "--gpu", "none"]
        commands = {
            "python -m mnist_svm 24, when all trials are known": [*study, "--results", str(folder)],
            "its figures alone": ["-c", DRAW, str(folder)],
        }
        rows = []
        for name, command in commands.items():
            times = [timed([sys.executable, *command]) for _ in range(arguments.rounds)]
            walls, cpus = zip(*times, strict=True)
            rows.append({
                "command": name, "wall, s": f"{median(walls):.2f}", "at most, s": f"{max(walls):.2f}",
                "CPU s": f"{median(cpus):.2f}",
            })  # fmt: skip
        n_files = len([*folder.glob("figures/*"), *folder.glob("heat_map.*")])
    facts = circumstances("numpy", "matplotlib", files=n_files, rounds=arguments.rounds, load=load())
    publish(f"{facts}\n\n{table(rows)}", arguments.results)


if __name__ == "__main__":
    main()
