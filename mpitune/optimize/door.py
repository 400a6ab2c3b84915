"""What doors of other tuners share: their experiment, a folder of each study, one line of what is lost."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitune.earlier.code import values_read
from mpitune.errors import UsageError, named, typed
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.optimize.kept import kept_by
from mpitune.optimize.search import known_settings, slots_here
from mpitune.optimize.search_study import SearchStudy
from mpitune.optimize.values import refuse_faults
from mpitune.optimize.window import rounds
from mpitune.options import RunOptions
from mpitune.port import Reporting, Scheduling
from mpitune.ranks import launch
from mpitune.storage.files import make_folder, read_at_most, written_first
from mpitune.storage.history import read_journal
from mpitune.storage.table import last_line
from mpitune.storage.trials import records
from mpitune.studies import join, on_all_ranks
from mpitune.trial import Evaluation, Fault, Outcome, Result, Rounds, Trial


class Led(Experiment):
    """A call of another tuner's, whose trials run on all devices. Its subclass is a frozen dataclass."""

    kind = "search"
    fix = ""  # where an answer cannot be sent

    in_worker: Any  # what evaluates trials, once it has begun with the data
    # A `Source` that is told in the order of numbers; None but on rank 0. It also has `functions` of the user by name,
    # `arrays` that they hold, `n_trials` and `timeout` or None, whether it `is_late`, and `extras` beside answers.
    leader: Any
    objectives: tuple[str, ...]
    window: int

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "leader": None}

    def objective(self, worker: WorkerContext) -> Objective:
        return self.in_worker.begin(worker.data)

    def searches(self) -> Iterable[Rounds]:
        return [rounds(self.leader, self.window)]

    def scheduling(self) -> Scheduling:
        n_trials = None if self.leader is None else self.leader.n_trials
        return Scheduling(n_trials=n_trials, preload=(type(self).__module__,), prints_plainly=True)

    def on_results(self, results: Iterable[Result]) -> str:
        limited = self.leader is not None and self.leader.timeout is not None
        return "its time" if limited and self.leader.is_late else ""

    def data(self) -> Data:
        return {} if self.leader is None else self.leader.arrays

    def on_message(self, content: bytes) -> None:
        name, *extras = pickle.loads(content)
        self.leader.extras[name] = tuple(extras)

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        """What it raises is in its answer: where there is none, that could not be sent, or it has left by sys.exit."""
        refuse_faults(evaluation)
        if isinstance(evaluation, Result) and evaluation.raised and evaluation.ending.fault is not Fault.EXIT:
            raise UsageError(
                f"what the objective has given trial {trial.segment.number} cannot be sent from its worker "
                f"({last_line(evaluation.error or '')}): {self.fix}"
            )

    def called(self) -> dict[str, Any]:
        called = {} if self.leader is None else self.leader.functions
        return called | values_read(called)

    def reporting(self) -> Reporting:
        return Reporting(goal=self.objectives[0] if len(self.objectives) == 1 else "", files=("trials.csv",))

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[Any], data: Data, folder: Path) -> None:
        history = read_journal(folder)  # which has those of earlier calls of the script, too
        last, known = max(outcomes, default=None, key=lambda outcome: outcome.trial.key), list(outcomes)
        if history is not None and last is not None:
            known = [outcome for outcome in history.outcomes if outcome.trial.key <= last.trial.key]
        SearchStudy(records(known), {}, folder).write(folder / "trials.csv")


studies_in: dict[Path, dict[Hashable, int]] = {}  # those of this process that have a results folder
_told_kept: set[str] = set()


def own_folder(options: RunOptions, study: Hashable) -> RunOptions:
    """The first study of a script has the results folder, the others have folders in it.

    study: what only the same study has. Raises UsageError where jobs would join in no folder.
    """
    if options.results is None:
        if options.join:
            raise UsageError(f"jobs join in a folder that all of them see: give {typed('results', 'DIR')}")
        return options
    studies = studies_in.setdefault(Path(options.results).absolute(), {})
    known = len(studies)
    number = studies.setdefault(study, known + 1)
    results = Path(options.results) / f"study-{number}" if number > 1 else options.results
    return replace(options, results=results, restart=options.restart and number > known)


def require_script(options: RunOptions) -> None:
    """Raise UsageError where each rank runs the script, so that each would have a study of its own in memory."""
    if join(options).size > 1 and not launch.others_wait:
        raise UsageError(
            "each rank has a study of its own: start the script as mpirun -n 2 python -m mpitune script.py"
        )


def say_kept(function: Callable[..., Any], fix: str, options: RunOptions) -> None:
    """Say, once, what an objective stores for the script, which does not see it."""
    if (kept := named(kept_by(function), "")) and kept not in _told_kept and not join(options).rank:
        _told_kept.add(kept)
        print(
            f"the objective stores {kept}, which the script does not see, as it runs in a worker: {fix}",
            file=sys.stderr,
        )


def begun(
    options: RunOptions, seed: int | None, window: int | None, alone: str = "", made_up: int | None = None
) -> tuple[int, int]:
    """The seed and the window of a study: these, those of its folder, or what begins here.

    alone: what may need each result before the next trial. Raises UsageError for devices that are not there.
    """
    window = window or known_settings(options).get("window")
    slots, usual = _agreed(options, int.from_bytes(os.urandom(4), "little") if made_up is None else made_up)
    if alone and (n := 2 * slots) > 2 and not window:
        print(f"{alone}: one trial at a time (window={n}, or --window {n}: more)", file=sys.stderr)
    return usual if seed is None else seed, int(window or (1 if alone or slots == 1 else 2 * slots))


@on_all_ranks()
def _agreed(options: RunOptions, seed: int) -> tuple[int, int]:
    """The slots of all ranks, and the seed of rank 0; of jobs that join in one instant those of the first."""
    transport = join(options)
    with transport.refusing_together():
        slots = slots_here(options)
    slots = sum(transport.gather(slots))
    if options.join and not transport.rank:
        place = Path(options.results or "", ".begin")
        with suppress(OSError, ValueError):  # what is wrong with the folder is said later
            make_folder(place.parent)
            written_first(place, b"%d %d" % (slots, seed))
            slots, seed = map(int, read_at_most(place, 99).split())
    slots, seed = transport.broadcast((slots, seed))
    return slots, seed
