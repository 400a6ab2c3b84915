"""What other tuners' scripts cost here and by themselves: as whole processes, start of a cluster and end included.

    python -m benchmarks.tuners [--turns 3] [--scripts "Ray Tune" hyperopt Optuna] [--results FILE]

A trial sleeps for 0.1 s. The same script runs by its own tuner and by `python -m mpitune --workers 2`. Ray Tune, which
uses its workers again, and Optuna have two workers by themselves, too; hyperopt has one, as more need Spark or MongoDB.
200 trials less two give what a trial costs a worker beside its sleep; two trials are the start. Ways take turns, and
medians and ranges are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.machine import circumstances, load, publish, table
from benchmarks.start import seconds

TRIALS, FEW, SLEEP = 200, 2, 0.1

RAY = """
import sys, time
import ray
from ray import tune

def train(config):
    time.sleep(0.1)
    tune.report({"loss": config["x"] ** 2})

ray.init(num_cpus=2)
config = tune.TuneConfig(metric="loss", mode="min", num_samples=int(sys.argv[1]), reuse_actors=True)
found = tune.Tuner(train, param_space={"x": tune.uniform(-1, 1)}, tune_config=config).fit()
assert len(found) == int(sys.argv[1]) and not found.errors
"""

HYPEROPT = """
import sys, time
import numpy as np
from hyperopt import Trials, fmin, hp, tpe

def loss(x):
    time.sleep(0.1)
    return x ** 2

n, trials, rstate = int(sys.argv[1]), Trials(), np.random.default_rng(1)
fmin(loss, hp.uniform("x", -1, 1), algo=tpe.suggest, max_evals=n, trials=trials, rstate=rstate)
assert len(trials.losses()) == n
"""

OPTUNA = """
import sys, time
import optuna

def objective(trial):
    time.sleep(0.1)
    return trial.suggest_float("x", -1, 1) ** 2

study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
study.optimize(objective, n_trials=int(sys.argv[1]), n_jobs=2)
assert len(study.trials) == int(sys.argv[1])
"""

SCRIPTS = {"Ray Tune": (RAY, 2), "hyperopt": (HYPEROPT, 1), "Optuna": (OPTUNA, 2)}  # its own workers


def measured(name: str, turns: int, folder: Path) -> list[dict[str, str]]:
    """A row for each way to run this script."""
    code, own = SCRIPTS[name]
    script = folder / "script.py"
    script.write_text(code)
    ways = {"by itself": ([], own), "here": (["-m", "mpitune", "--workers", "2"], 2)}
    took: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for way, (before, _) in ways.items():
            for n in (TRIALS, FEW):
                took.setdefault((way, n), []).append(seconds(*before, str(script), str(n)))
    rows = []
    for way, (_, workers) in ways.items():
        pairs = zip(took[way, TRIALS], took[way, FEW], strict=True)
        costs = [1e3 * ((all_ - few) * workers / (TRIALS - FEW) - SLEEP) for all_, few in pairs]
        rows.append({
            "script": name, "way": way, "workers": str(workers), f"{TRIALS} trials, s": _spread(took[way, TRIALS]),
            f"{FEW} trials, s": _spread(took[way, FEW]), "a trial beside its sleep, ms": _spread(costs),
        })  # fmt: skip
    return rows


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What other tuners' scripts cost here and by themselves.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in arguments.scripts for row in measured(name, arguments.turns, Path(folder))]
    head = circumstances("ray", "hyperopt", "optuna", n=arguments.turns, load=load())
    publish(f"{head}\n\n{table(rows)}", arguments.results)


if __name__ == "__main__":
    main()
