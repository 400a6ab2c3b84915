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
from mpitune.optimize.search_study import SearchStudy
from mpitune.options import RunOptions, seconds
from mpitune.ranks.launch import launched
from mpitune.settings import program, setting
from mpitune.sweeps.agents import searched
from mpitune.sweeps.program import Program
from mpitune.sweeps.reading import read
from mpitune.trial import FAILED

PROG = "python -m mpitune run"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """The command line."""

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
    sweep, _, paths, _ = definition = read(options.file)
    folder = options.results or Path("results", options.file.stem)
    sweep_id = os.environ.get("WANDB_SWEEP_ID") or hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:8]
    n_trials, gpu = options.trials or sweep.run_cap, options.gpu or (None if options.workers is None else "none")
    objective, how = Program(sweep, paths, sweep_id), replace(options, results=folder, gpu=gpu)
    return searched(definition, objective, n_trials, options.window, options.timeout, how)
