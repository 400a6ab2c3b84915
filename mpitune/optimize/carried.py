"""Points of earlier searches that count in this one, whose space, strategy or goal is another.

A result counts for the same point: the same parameters with the same constants, the same steps. If its
objective read `trial.number` or `trial.seed`, it counts for a trial of that number, and of the study's seed, only.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitune.earlier.studies import Earlier
from mpitune.errors import UsageError, or_typed
from mpitune.identity import label_of
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.spaces import Choice, Point
from mpitune.optimize.spaces.parameters import same
from mpitune.optimize.strategies.base import Feedback, KnownTrial, Problem, TrialSegment
from mpitune.optimize.strategies.population import PopulationBased
from mpitune.port import Matching
from mpitune.storage.files import TRIALS
from mpitune.trial import Outcome, Parameter, Result, Trial

RANGE = re.compile(r"(When\()?(Float|Int|Choice|Ordinal|Any|Quantile|Weighted)\(")  # how a parameter begins
READS = ("number", "seed")  # of a trial: its results may depend on them
Kept = Callable[[Outcome], Result]
Own = tuple[int | None, int | None]  # of a result that depends on them: the study's seed, the trial's number


def parts_of(space: Any) -> dict[str, str]:
    """The parts of a space by name, as a journal says them."""
    parts = (str(part).partition(": ") for part in (space if isinstance(space, list | tuple) else ()))
    return {name: text for name, colon, text in parts if colon}


def is_range(text: str) -> bool:
    """Whether the text of a part is that of a parameter, and not of a constant."""
    return RANGE.match(text) is not None


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
        was, now = old.get(name), new.get(name)
        if was and now:
            differ = was != now and not is_range(was) and not is_range(now)
        else:
            there = was or now or ""
            differ = not (there.startswith("When(") and is_range(there))
        if differ:
            before, after = (f"{name} = {text}" if text else f"no {name}" for text in (was, now))
            raise UsageError(
                f"the study before has {before}, this one {after}: no result can count, so give another results folder"
                + or_typed("restart", then=" to set the old study aside")
            )


class Carried(Matching):
    """Which results of earlier searches count, and their points in this one's space.

    Args:
        problem: of this search.
        strategy: its strategy.
        folder: of all its trials' folders.
        job: see `AttemptFolder`.
        earlier: the studies before, the oldest first.
        kept: the result of a trial as this study keeps it.

    Raises:
        UsageError: no result of the last of them could count.
    """

    def __init__(self, problem: Problem, strategy: Any, folder: Path, job: str, earlier: Sequence[Earlier], kept: Kept):
        self._problem, self._folder, self._job, self._kept = problem, folder, job, kept
        self._none = isinstance(strategy, PopulationBased)  # whose members go on from each other's checkpoints
        spaces = [parts_of(study.settings.get("space")) for study in earlier]
        self._earlier, mine = list(earlier), parts_of(problem.space.described())
        require_comparable(spaces[-1], mine)
        *self._constants_before, self._constants = [
            {name: constant_of(text) for name, text in parts.items() if not is_range(text)} for parts in (*spaces, mine)
        ]

    def known(self) -> list[KnownTrial]:
        """The trials that have a result, of the newest study first, for a strategy that learns."""
        known: dict[Any, tuple[int, KnownTrial]] = {}  # by its question, or its study and number if it has stages
        for study in reversed(self._earlier):
            history = study.history
            for key in sorted(history.results):
                trial, result = history.trials[key], history.results[key]
                answer = None if result.failed else self._answer(Outcome(trial, result), study)
                if answer is None:
                    continue
                segment, question, (seed, number) = answer
                stage = segment.stage or 0
                name = question if segment.stage is None else (study.folder, segment.number)
                if name not in known or known[name][0] < stage:
                    again = segment.stage is None and number is None and seed in (None, self._problem.seed)
                    feedback = Feedback.of(result, self._problem)
                    known[name] = stage, KnownTrial(segment.point, feedback, again, not segment.last)
        return [trial for _, trial in known.values()]

    def answered(self, outcome: Outcome, earlier: Earlier) -> bytes | None:
        answer = self._answer(outcome, earlier)
        return None if answer is None else answer[1]

    def _answer(self, outcome: Outcome, earlier: Earlier) -> tuple[TrialSegment, bytes, Own] | None:
        """The segment of this search that a result answers, its question, and what it depends on beside its point."""
        segment, read = TrialSegment.of(outcome.trial), outcome.result.read
        point = self._point(segment.point, self._earlier.index(earlier))
        known = self._problem.objectives.keys() <= outcome.result.values.keys()
        if point is None or self._none or segment.parent or not known:
            return None
        if segment.until and "folder" in read and not _folder(earlier, segment.key).exists():
            return None  # nothing could go on from there
        own = self._own(segment, int(earlier.settings.get("seed", 0)), read)
        segment = replace(segment, point=point)
        return segment, self._question(segment, own, earlier.settings.get("together")), own

    def questions(self, trial: Trial) -> Sequence[bytes]:
        segment, seed = TrialSegment.of(trial), self._problem.seed
        kinds = ((), ("number",), ("seed",))
        together = self._problem.together
        return [self._question(segment, self._own(segment, seed, reads), together) for reads in kinds]

    def taken(self, outcome: Outcome, earlier: Earlier, key: str) -> Result:
        """The trial's folder is copied where a later stage may go on from it."""
        segment = TrialSegment.of(outcome.trial)
        old, new = _folder(earlier, key), self._folder / f"t{segment.number:06}"
        if segment.until and not segment.last and old.exists() and not new.exists():
            AttemptFolder(segment, self._folder, self._job, like=old).finish()
        return self._kept(outcome)

    def _own(self, segment: TrialSegment, seed: int, reads: Sequence[str]) -> Own:
        """The study's seed and the trial's number, as far as its result depends on them."""
        return seed if "seed" in reads else None, segment.number if {*READS} & {*reads} else None

    def _question(self, segment: TrialSegment, own: Own, together: int | None) -> bytes:
        """Also of its place among those that are evaluated together, since bits may depend on it."""
        known = sorted({**self._constants, **segment.point}.items())
        place = () if segment.place is None else (together, segment.place)
        said = repr((known, segment.start, segment.until, own, *place))  # 1, 1.0, True and "1" differ
        return hashlib.blake2b(said.encode("utf-8", "backslashreplace"), digest_size=16).digest()

    def _point(self, point: Point, number: int) -> Point | None:
        """A point of the study of this number as one of this study; None where it is none."""
        space, left = self._problem.space, self._constants_before[number] | point
        made: Point = {}
        for name, constant in self._constants.items():
            if not same(left.pop(name, None), constant):
                return None
        for name, part in space.parts.items():
            if not space.is_active(name, made):
                continue
            value = left.pop(name, None)
            if value is None or not (part.has(value) if isinstance(part, Choice) else part.takes(value)):
                return None
            made[name] = value if isinstance(part, Choice) else part.drawn(value)
            if type(made[name]) is not type(value):
                return None  # as 1 of an Int in a Float
        return made if not left and space.allows(made) else None


def _folder(earlier: Earlier, key: str) -> Path:
    """The folder that the trial of a stage has in an earlier study."""
    return earlier.folder / TRIALS / key.partition("/")[0]
