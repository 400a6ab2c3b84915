"""Points of earlier searches that count in this one, whose space, strategy or goal is another.

A result counts for the same point: the same parameters with the same constants, the same steps. If its
objective read `trial.number` or `trial.seed`, it counts for a trial of that number, and of the study's seed, only. A
parameter that one of two studies does not have has there the value that the user says: `adapt={"momentum": 0.9}`, or
any, `adapt={"momentum": ...}`, where results do not depend on it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.identity import label_of
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.spaces import Choice, Point
from mpitune.optimize.spaces.parameters import same, shown
from mpitune.optimize.strategies.base import Feedback, KnownTrial, Problem, TrialSegment
from mpitune.optimize.strategies.population import PopulationBased
from mpitune.port import Matching
from mpitune.storage.earlier import Earlier
from mpitune.storage.files import TRIALS
from mpitune.trial import Outcome, Parameter, Trial

RANGE = re.compile(r"(When\()?(Float|Int|Choice|Ordinal|Any|Quantile|Weighted)\(")  # how a parameter begins
READS = ("number", "seed")  # of a trial: its results may depend on them
IGNORED = tuple(f"trial.{name}" for name in (*READS, "place"))
Adapt = Mapping[str, Any]  # what the user says: values by name, ... for any
Hears = Callable[[Outcome], None]
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


def adapted(problem: Problem, theirs: Mapping[str, Any], adapt: Adapt) -> dict[str, Parameter | None]:
    """What the journal keeps of `adapt`: labels by name, None for any value.

    Raises:
        UsageError: no result of a study of these settings could count, or `adapt` names what it need not.
    """
    old, new = parts_of(theirs.get("space")), parts_of(problem.space.described())
    said: dict[str, Parameter | None] = {}
    names = list(dict.fromkeys([*old, *new]))
    for name, value in adapt.items():
        if name not in (*names, *IGNORED):
            raise UsageError(f"adapt has {name}, which neither study has: they have {named(names)}")
        part = problem.space.parts.get(name)
        if value is ...:
            said[name] = None
        elif (name in old and name in new) or name in IGNORED:
            raise UsageError(f"adapt has {name} = {shown(value)}, but both studies say it: leave it out")
        elif part is not None and not part.takes(value):
            raise UsageError(f"adapt has {name} = {shown(value)}, which is not in {part}: no result could count")
        else:
            said[name] = label_of(value) if part is None else part.drawn(value)
    for name in names:
        mine, other = new.get(name), old.get(name)
        either = f"say the value that it had, adapt={{{name!r}: VALUE}}, or adapt={{{name!r}: ...}} if results do not"
        if name in said:
            constant = None if mine is None or is_range(mine) else constant_of(mine)
            if other is None and not (said[name] is None or constant is None or _equal(said[name], constant)):
                raise UsageError(f"adapt has {name} = {shown(adapt[name])}, but the space has {mine}: give one value")
        elif other is None and mine and not (mine.startswith("When(") and is_range(mine)):
            raise UsageError(f"the study before has no {name}: {either} depend on it")
        elif mine is None and other and not (other.startswith("When(") and is_range(other)):
            fix = either.replace("it had", "it has now")
            raise UsageError(f"the study before has {name} = {other}, this one has no {name}: {fix} depend on it")
        elif mine and other and mine != other and not is_range(mine) and not is_range(other):
            raise UsageError(
                f"the study before has {name} = {other}, this one {mine}: no result can count, unless none depends on "
                f"it; then say adapt={{{name!r}: ...}}"
            )
    return said


class Carried(Matching):
    """Which results of earlier searches count, and their points in this one's space.

    Args:
        problem: of this search.
        strategy: its strategy.
        folder: of all its trials' folders.
        job: see `AttemptFolder`.
        earlier: the studies before, the oldest first.
        hears: of each trial that gets a result, before it is kept.
    """

    def __init__(
        self, problem: Problem, strategy: Any, folder: Path, job: str, earlier: Sequence[Earlier], hears: Hears
    ):
        self._problem, self._folder, self._job, self._hears = problem, folder, job, hears
        self._none = isinstance(strategy, PopulationBased)  # whose members go on from each other's checkpoints
        spaces = [parts_of(study.settings.get("space")) for study in earlier]
        self._spaces = [*spaces, parts_of(problem.space.described())]
        self._earlier = list(earlier)
        self._any = {name for study in earlier for name, label in study.adapt.items() if label is None}
        self._constants = {n: constant_of(text) for n, text in self._spaces[-1].items() if not is_range(text)}

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
                    made = KnownTrial(
                        segment.point, feedback, again and self._is_whole(segment.point), not segment.last
                    )
                    known[name] = stage, made
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

    def taken(self, outcome: Outcome, earlier: Earlier, key: str) -> None:
        """The trial's folder is copied where a later stage may go on from it."""
        segment = TrialSegment.of(outcome.trial)
        old, new = _folder(earlier, key), self._folder / f"t{segment.number:06}"
        if segment.until and not segment.last and old.exists() and not new.exists():
            AttemptFolder(segment, self._folder, self._job, like=old).finish()
        self._hears(outcome)

    def _own(self, segment: TrialSegment, seed: int, reads: Sequence[str]) -> Own:
        """The study's seed and the trial's number, as far as its result depends on them."""
        reads = [name for name in reads if f"trial.{name}" not in self._any]
        return seed if "seed" in reads else None, segment.number if {*READS} & {*reads} else None

    def _question(self, segment: TrialSegment, own: Own, together: int | None) -> bytes:
        """Also of its place among those that are evaluated together, since bits may depend on it."""
        whole = {**self._constants, **segment.point}
        known = sorted((name, value) for name, value in whole.items() if name not in self._any)
        place = () if segment.place < 0 or "trial.place" in self._any else (together, segment.place)
        said = repr((known, segment.start, segment.until, own, *place))  # 1, 1.0, True and "1" differ
        return hashlib.blake2b(said.encode("utf-8", "backslashreplace"), digest_size=16).digest()

    def _point(self, point: Point, number: int) -> Point | None:
        """A point of the study of this number as one of this study; None where it is none."""
        whole = {n: constant_of(text) for n, text in self._spaces[number].items() if not is_range(text)} | point
        filled: set[str] = set()
        for study, space in zip(self._earlier[number:], self._spaces[number + 1 :], strict=True):
            for name, label in study.adapt.items():
                if name in space and name not in whole and label is not None:
                    whole[name] = label if is_range(space[name]) else constant_of(space[name])
                    filled.add(name)
                elif name not in space and (label is None or _equal(whole.get(name), label)):
                    whole.pop(name, None)
        return self._in_space(whole, filled)

    def _in_space(self, whole: Point, filled: set[str]) -> Point | None:
        """The parameters of this study in a point; None where it has others, or values that the space does not have."""
        space, left = self._problem.space, dict(whole)
        made: Point = {}
        for name, constant in self._constants.items():
            if not same(left.pop(name, None), constant) and name not in self._any:
                return None
        for name, part in space.parts.items():
            if not space.is_active(name, made):
                if name in filled:
                    left.pop(name, None)
                continue
            value = left.pop(name, None)
            if value is None and name in self._any:
                continue
            if value is None or not (part.has(value) if isinstance(part, Choice) else part.takes(value)):
                return None
            made[name] = value if isinstance(part, Choice) else part.drawn(value)
            if type(made[name]) is not type(value):
                return None  # as 1 of an Int in a Float
        return made if not left and (not self._is_whole(made) or space.allows(made)) else None

    def _is_whole(self, point: Point) -> bool:
        """Whether it has all parameters, also those without effect."""
        space = self._problem.space
        return all(name in point for name in space.parts if space.is_active(name, point))


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are the same, or numbers that are equal: 1.0 is 1, and True is not."""
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return same(value, other) or (numbers and bool not in (type(value), type(other)) and value == other)


def _folder(earlier: Earlier, key: str) -> Path:
    """The folder that the trial of a stage has in an earlier study."""
    return earlier.folder / TRIALS / key.partition("/")[0]
