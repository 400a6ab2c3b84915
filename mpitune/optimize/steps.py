"""The steps of a trial: what its objective yields or reports after each, and where its stage ends."""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.experiment import WorkerContext
from mpitune.optimize.values import InvalidReturnValue, NoValue, no_fault_of_the_trial, values_of
from mpitune.storage.files import read_at_most, regular_file
from mpitune.trial import Segment

LOG = "steps.jsonl"  # in a trial's folder: the values of its steps
MOST_OF_LOG = 64 << 20  # bytes of it


class TrialStopped(Exception):
    """Raised by `trial.report`: the stage of the trial is over, and perhaps the trial is pruned. Let it pass."""


def is_stop(error: BaseException | None) -> bool:
    """Whether it is a TrialStopped, perhaps wrapped by a trainer. An error of its own is none."""
    while error is not None and not isinstance(error, TrialStopped):
        error = error.__cause__ or error.__context__
    return error is not None


class Steps:
    """The values of a trial after each of its steps.

    Args:
        names: of the values that it must have.
        log: what an earlier attempt or stage has said.
        user_attrs: of the trial; what the log has is added as far as this attempt goes on from there.
    """

    def __init__(
        self, names: Sequence[str], segment: Segment, log: StepLog, worker: WorkerContext, user_attrs: dict[str, Any]
    ):
        self._names, self._log, self._worker, self._user_attrs = names, log, worker, user_attrs
        self._start, self._until, self._number = segment.start, segment.until, segment.number
        self._before = int(0 in log.steps)  # 1 where steps begin at 0: step n is then the one after n others
        self._values = {n: v for n, v in log.steps.items() if not self._until or n + self._before <= self._until}
        known = max(self._values, default=-1) + self._before
        self._done = known if self._until and known >= self._until else 0
        self._last: int | None = None
        self.refused: InvalidReturnValue | None = None  # why a step was not taken in; a trainer may swallow or wrap it

    @property
    def is_over(self) -> bool:
        """Whether the stage has all its steps."""
        return bool(self._until) and self._done >= self._until

    def add(self, reported: Any, step: Any = None) -> None:
        """Take in the values of a step, which may be among them by that name. Raises InvalidReturnValue."""
        try:
            self._add(reported, step)
        except InvalidReturnValue as error:
            self.refused = error
            raise

    def _add(self, reported: Any, step: Any) -> None:
        values = values_of(reported, self._names)
        if step is not None:
            values["step"] = step
        if "step" not in values and self._log.is_used and self._until:
            raise InvalidReturnValue(
                "it keeps checkpoints, so it must say where it is: yield {'step': ..., ...} or report(..., step=...), "
                "from 0 or 1"
            )
        first, known = self._last is None, self._last or 0
        last = self._last = _step(values.pop("step", known + 1), None if first else known)
        if first:
            self._go_on_after(last - 1)
        self._before = self._before or int(last == 0)
        end_before(self._values, last)
        self._values[last] = values
        self._log.add(last, values, self._user_attrs)
        self._done = last + self._before
        self._worker.report_step(self._done, self._until)

    def _go_on_after(self, step: int) -> None:
        """Take over what was said by `set_user_attr` up to this step; what came later is of an attempt that died."""
        logged = [attrs for n, attrs in self._log.user_attrs.items() if n <= step]
        own = dict(self._user_attrs)
        self._user_attrs.update({**(logged[-1] if logged else {}), **own})

    def values(self, returned: Mapping[str, float] | None = None) -> dict[str, float]:
        """What was returned, else the last values.

        Raises InvalidReturnValue, NoValue.
        """
        log = self._log
        if self.refused is not None:
            raise self.refused
        if self._last is None and not self._done and log.is_used and (log.steps or self._start or self._number):
            raise NoValue("it has no further step: its checkpoint is at its end, where it may have failed before")
        if not self._values:
            raise InvalidReturnValue(
                "it said nothing after its steps: yield its values, or call trial.report({...}, step=...), after each"
            )
        end = max(self._values)
        if self._last is None:
            self._go_on_after(end)
        if end + self._before < self._until:
            fix = f"give max_steps={end + self._before}"
            if self._start and not self._before and end == self._until - 1:
                fix += ", or begin at step 1 (only checkpoints in trial.folder show that steps begin at 0)"
            raise InvalidReturnValue(
                f"it ended after {end + self._before} steps, before the {self._until} of its strategy: {fix}"
            )
        return dict(self._values[end] if returned is None else returned)

    @property
    def of_stage(self) -> dict[int, dict[str, float]]:
        """The values of each step since the start of the stage."""
        return {n: self._values[n] for n in sorted(self._values) if n + self._before > self._start}


def _step(value: Any, last: int | None) -> int:
    """The number of a step, after step `last`. Raises InvalidReturnValue."""
    number = float(value) if isinstance(value, numbers.Real) else -1.0
    if not (number >= 0 and number.is_integer()) or (last is not None and number <= last):
        which = f"{value!r:.40}" if last is None else f"{value!r:.40} after step {last}"
        raise InvalidReturnValue(f"it said step {which}: say whole numbers that begin at 0 or 1 and grow")
    return int(number)


def end_before(steps: dict[int, Any], n: int) -> None:
    """Forget step n and later ones, which are in order: they are of an attempt that died, and another goes on there."""
    while steps and next(reversed(steps)) >= n:
        steps.popitem()


class StepLog:
    """What a trial has said so far, in its folder if it has one."""

    def __init__(self, folder: Path):
        self._path = folder / LOG
        self._unwritten: list[str] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.user_attrs: dict[int, dict[str, Any]] = {}  # all that was said by each step
        if not os.path.lexists(self._path):
            return
        with no_fault_of_the_trial(self._path):
            content = read_at_most(self._path, MOST_OF_LOG)
        for line in content.splitlines():
            try:
                n, values, *more = json.loads(line)
                read = {name: float(value) for name, value in values.items()}
                end_before(self.steps, int(n))
                end_before(self.user_attrs, int(n))
                self.steps[int(n)], self.user_attrs[int(n)] = read, dict(*more)
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                continue  # what a crash left of a line
        if content and not content.endswith(b"\n"):
            self._unwritten.append("\n")

    @property
    def is_used(self) -> bool:
        """Whether the trial has asked for its folder."""
        return self._path.parent.exists()

    def add(self, n: int, values: Mapping[str, float], user_attrs: Mapping[str, Any]) -> None:
        self._unwritten.append(json.dumps([n, values, user_attrs] if user_attrs else [n, values]) + "\n")
        if self.is_used:  # perhaps first asked for in a later step
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with no_fault_of_the_trial(self._path), open(regular_file(self._path, flags), "a") as file:
                file.writelines(self._unwritten)
            self._unwritten.clear()
