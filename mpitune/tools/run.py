"""python -m mpitune run sweep.yaml: a sweep file of Weights & Biases on all devices, without its server.

mpirun or srun may start it; all ranks read the file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpitune.errors import Caller, Exit, StudyError, StudyInterrupted, UsageError, called_from
from mpitune.optimize.search import search
from mpitune.optimize.search_study import SearchStudy
from mpitune.options import RunOptions, seconds
from mpitune.ranks.launch import launched
from mpitune.settings import program, setting
from mpitune.storage.trials import TrialRecord
from mpitune.sweeps.program import Program
from mpitune.sweeps.reading import read
from mpitune.trial import COMPLETE, FAILED

PROG = "python -m mpitune run"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """The command line. What it says wins over the file."""

    file: Path = setting(help="sweep file, YAML or JSON")
    trials: int | None = setting(None, "the most trials (default: run_cap of the file)", low=1, metavar="N")
    window: int | None = setting(None, "so many trials are open at a time", low=1, metavar="N")
    timeout: float | None = seconds(None, "seconds after which no trial begins any more", low=0.001)
    workers: int | None = setting(None, "CPU workers per node, 0 for none: all in this process", low=0, high=4096)


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    with called_from(Caller.PROGRAM):
        return program(SweepOptions, _run, arguments, prog=PROG, description="Run a sweep file of Weights & Biases.")


def _run(options: SweepOptions) -> Exit:
    try:
        failed = any(trial.state == FAILED for trial in _searched(options).trials)
    except (UsageError, StudyError, StudyInterrupted) as error:
        if launched().rank:
            return Exit.DONE  # rank 0 says it
        print(f"{PROG}: {error}", file=sys.stderr)
        return error.status
    return Exit.FAILED_TRIALS if failed else Exit.DONE


def _searched(options: SweepOptions) -> SearchStudy:
    sweep, space, paths, strategy = read(options.file)
    own_keys, metric = sweep.mpitune, sweep.metric
    folder = options.results or Path("results", options.file.stem)
    sweep_id = os.environ.get("WANDB_SWEEP_ID") or hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:8]
    sign, target = -1 if metric.goal == "maximize" else 1, metric.target

    def reached(study: SearchStudy, trial: TrialRecord) -> bool:
        return target is not None and trial.state == COMPLETE and sign * trial.values[metric.name] <= sign * target

    n_trials = options.trials or own_keys.trials or sweep.run_cap
    if n_trials is None and (method := own_keys.strategy or sweep.method) != "grid":
        raise UsageError(f"{options.file}: {method} has no end: give run_cap, or --trials 50")
    return search(
        Program(sweep, paths, sweep_id), space, strategy=strategy,
        n_trials=n_trials,
        minimize=metric.name if sign > 0 else (), maximize=metric.name if sign < 0 else (),
        seed=own_keys.seed, window=options.window or own_keys.window,
        timeout=options.timeout or own_keys.timeout,
        trial_timeout=options.trial_timeout or own_keys.trial_timeout,
        devices=own_keys.devices, nodes=own_keys.nodes,
        callbacks=[] if target is None else [reached],
        options=replace(options, results=folder, gpu=options.gpu or (None if options.workers is None else "none")),
    )  # fmt: skip
