"""Points of earlier searches that count in this one, whose space, strategy or goal is another.

A result counts for the same point: the same parameters with the same constants, the same steps. If its objective, in
this stage or one before, read `trial.number` or `trial.seed`, it counts for a trial of that number, and seed, only.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitune.earlier.studies import Earlier
from mpitune.errors import UsageError, or_typed
from mpitune.identity import label_of
from mpitune.port import Matching
from mpitune.storage.files import TRIALS
from mpitune.trial import Outcome, Parameter, Result, Segment, Trial, exact

if TYPE_CHECKING:  # what stands above
    from mpitune.optimize.strategies.base import Problem

RANGE = re.compile(r"(When\()?(Float|Int|Choice|Any|Quantile)\(")  # how a parameter begins, and no constant
READS = ("number", "seed")  # of a trial: its results may depend on them
Own = tuple[int | None, ...]  # what a result depends on: the trial's number, or with the study's seed and the stage
Known = tuple[Mapping[str, Parameter], Result, bool, bool]


def parts_of(space: Any) -> dict[str, str]:
    """The parts of a space by name, as a journal says them."""
    parts = (str(part).partition(": ") for part in (space if isinstance(space, list | tuple) else ()))
    return {name: text for name, colon, text in parts if colon}


def constant_of(text: str) -> Parameter:
    """What a constant is in a point: itself where a journal can hold it, else its text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return label_of(value) if type(value) in (bool, int, float, str) else text


def require_comparable(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise UsageError for the parts of two spaces if no point of one can be a point of the other."""
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, ""), new.get(name, "")
        kinds = [RANGE.match(text) for text in (was, now) if text]
        may_be_absent = kinds[0] is not None and kinds[0][1]  # under a condition
        if not (was == now or any(kinds) if was and now else may_be_absent):
            before, after = (f"{name} = {text}" if text else f"no {name}" for text in (was, now))
            raise UsageError(
                f"the study before has {before}, this one {after}: no result can count, so give another results folder"
                + or_typed("restart", then=" to set the old study aside")
            )


class Carried(Matching):
    """Which results of earlier searches count, and their points in this one's space.

    Args:
        problem: of this search.
        earlier: the studies before, the oldest first.
        uses: False where none counts, as the strategy's trials go on from each other's checkpoints.
        go_on: told of a trial that gets the result of a stage, and the folder from which a later stage goes on.

    Raises:
        UsageError: no result of the last of them could count.
    """

    def __init__(self, problem: Problem, earlier: Sequence[Earlier], uses: bool, go_on: Callable[[Trial, Path], None]):
        self._problem, self._uses, self._go_on = problem, uses, go_on
        spaces = [parts_of(study.settings.get("space")) for study in earlier]
        self._earlier, here = list(earlier), parts_of(problem.space.described())
        require_comparable(spaces[-1], here)
        *self._constants_before, self._constants = [
            {name: constant_of(text) for name, text in parts.items() if not RANGE.match(text)}
            for parts in (*spaces, here)
        ]

    def known(self) -> list[Known]:
        """For a strategy that learns: point and result of the trials that have one, those of the newest study first.

        With each is whether a trial that is asked for at this point has its result, and whether it was stopped early.
        """
        known: dict[Any, tuple[int, Known]] = {}  # by its question, or its study and number if it has stages
        for study in reversed(self._earlier):
            history = study.history
            for key in sorted(key for key, result in history.results.items() if not result.failed):
                outcome = Outcome(history.trials[key], history.results[key])
                answer, segment = self._answer(outcome, study), outcome.trial.segment
                if answer is None:
                    continue
                point, question, own = answer
                stage = segment.stage or 0
                name = question if segment.stage is None else (study.folder, segment.number)
                if name not in known or known[name][0] < stage:
                    known[name] = stage, (point, outcome.result, segment.stage is None and not own, not segment.last)
        return [trial for _, trial in known.values()]

    def answered(self, outcome: Outcome, earlier: Earlier) -> bytes | None:
        return (self._answer(outcome, earlier) or (None, None))[1]

    def _answer(self, outcome: Outcome, earlier: Earlier) -> tuple[Mapping[str, Parameter], bytes, Own] | None:
        """The point of this search that a result is for, the question that it answers, and what else it depends on."""
        (trial, result), segment = outcome, outcome.trial.segment
        if segment.number is None:
            raise ValueError(f"trial {trial.key} has no number")
        left = self._constants_before[self._earlier.index(earlier)] | dict(trial.params)
        valued = self._problem.objectives.keys() <= result.values.keys()
        if not self._uses or segment.parent or not valued or not exact(self._constants) <= exact(left):
            return None
        point = self._problem.space.held({name: value for name, value in left.items() if name not in self._constants})
        if point is None or (segment.until and "folder" in result.read and not _folder(earlier, trial.key).exists()):
            return None  # nothing could go on from there
        before = (f"{trial.key.partition('/')[0]}/{stage}" for stage in range(segment.stage or 0))
        there = [earlier.history.results.get(key) for key in before]  # None of a line that was damaged
        reads = {*result.read}.union(*(READS if of_stage is None else of_stage.read for of_stage in there))
        own = self._own(segment, int(earlier.settings.get("seed", 0)), reads)
        return point, self._question(point, segment, own, earlier.settings.get("together")), own

    def questions(self, trial: Trial) -> Sequence[bytes]:
        kinds = (self._own(trial.segment, self._problem.seed, reads) for reads in ((), ("number",), ("seed",)))
        return [self._question(trial.params, trial.segment, own, self._problem.together) for own in kinds]

    def taken(self, outcome: Outcome, earlier: Earlier, key: str) -> Result:
        """A later stage may go on from the folder of the trial before."""
        segment, old = outcome.trial.segment, _folder(earlier, key)
        if segment.until and not segment.last and old.exists():
            self._go_on(outcome.trial, old)
        return outcome.result

    def _own(self, segment: Segment, seed: int, reads: Container[str]) -> Own:
        """What its result depends on. Global random numbers, which count as the seed, are others in each stage."""
        own = (segment.number,) if "number" in reads else ()
        return (seed, segment.number, segment.stage) if "seed" in reads else own

    def _question(self, point: Mapping[str, Parameter], segment: Segment, own: Own, together: int | None) -> bytes:
        """Also of its place among those that are evaluated together, since bits may depend on it."""
        known = sorted({**self._constants, **point}.items())
        place = () if segment.place is None else (together, segment.place)
        text = repr((known, segment.start, segment.until, own, *place))  # 1, 1.0, True and "1" differ
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _folder(earlier: Earlier, key: str) -> Path:
    """The folder that the trial of a stage has in an earlier study."""
    return earlier.folder / TRIALS / key.partition("/")[0]
