"""Wall time of 40 Hydra jobs of unequal length: this sweeper, and hydra-optuna-sweeper with its joblib launcher.

    python -m benchmarks.hydra_sweeper --theirs OTHER_VENV/bin/python

Each job sleeps 0.2 s times a log-normal number (sigma 1), the same for all. They run in turn, so load meets all.
"""

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.machine import circumstances, publish, table

APP = """
import os, time
import hydra
from hydra.core.hydra_config import HydraConfig
@hydra.main(version_base=None, config_path=None)
def main(config):
    time.sleep(float(os.environ["NAPS"].split()[HydraConfig.get().job.num]))
    return (config.x - 0.3) ** 2
main()
"""
N = 3  # times
SWEEPER, LAUNCHER = "hydra.sweeper.", "hydra.launcher."
COMMON = ("--multirun", "+x=interval(0,1)", "hydra.sweeper.n_trials=40", "hydra/sweeper/sampler=tpe")


def seconds(python: str, naps: list[float], *words: str) -> float:
    """Wall time of one command, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        around = {**os.environ, "NAPS": " ".join(map(str, naps)), "PYTHONPATH": os.getcwd()}
        began = time.monotonic()
        subprocess.run([python, "app.py", *COMMON, *words], cwd=folder, env=around, capture_output=True, check=True)
        return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--theirs", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    naps = (0.2 * np.random.default_rng(0).lognormal(sigma=1, size=40)).tolist()
    rows = []
    for workers in (2, 4):
        ours = (sys.executable, naps, "hydra/sweeper=mpitune", "hydra.sweeper.gpu=none", f"{SWEEPER}workers={workers}")
        theirs = (options.theirs, naps, "hydra/sweeper=optuna", "hydra/launcher=joblib", f"{LAUNCHER}n_jobs={workers}")
        times = [(seconds(*ours), seconds(*theirs, f"{SWEEPER}n_jobs={workers}")) for _ in range(N)]
        free = [0.0] * workers  # the jobs alone, where a free worker takes the next one
        for nap in naps:
            heapq.heapreplace(free, free[0] + nap)
        shown = [f"{median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in zip(*times, strict=True)]
        columns = ("mpitune, s", "hydra-optuna-sweeper, s")
        ratio = f"{median(other / own for own, other in times):.2f}"
        cells = dict(zip(columns, shown, strict=True))
        rows.append({"workers": workers, "jobs alone, s": f"{max(free):.1f}", **cells, "theirs / mpitune": ratio})
    publish(f"{circumstances('hydra-core', 'optuna', n=N)}\n\n{table(rows)}", options.out)


if __name__ == "__main__":
    main()
