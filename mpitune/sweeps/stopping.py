"""W&B's early_terminate: at each band a run is stopped that is not among the best 1 / eta.

A trial is compared with those that its strategy was told of before it began. So the window alone decides which trials
are stopped, and not how quickly each of them comes to a band.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mpitune.optimize.strategies.base import Feedback, Problem, Strategy, TrialScheduler
from mpitune.optimize.strategies.plain import Points, WholeTrials
from mpitune.trial import Trial

MOST_BANDS = 100
Positive = Annotated[int, Meta(ge=1)]


class Bands(Struct, forbid_unknown_fields=True):
    """What a sweep file says below early_terminate."""

    type: Literal["hyperband"]
    min_iter: Positive | None = None
    max_iter: Positive | None = None
    s: Positive | None = None
    eta: Annotated[float, Meta(gt=1)] = 3.0
    strict: bool = True  # always

    def upto(self, most: int = 10**9) -> tuple[int, ...]:
        """How many values are logged at each band, `most` at most."""
        bands = list[float]()
        if self.max_iter is not None and self.s is not None:
            while len(bands) < min(self.s, MOST_BANDS) and (band := self.max_iter / self.eta ** (len(bands) + 1)) >= 1:
                bands.append(band)
        elif self.min_iter is not None:
            while len(bands) < MOST_BANDS and (band := self.min_iter * self.eta ** len(bands)) < most + 1:
                bands.append(band)
        return tuple(sorted({int(band) for band in bands if band < most + 1}))

    def of(self, losses: Sequence[float]) -> list[tuple[int, float]]:
        """What is kept of a trial with these losses: that at each band, as finite as JSON is."""
        most = sys.float_info.max
        return [(band, max(-most, min(most, losses[band - 1]))) for band in self.upto(len(losses))]


@dataclass(frozen=True)
class EarlyTerminate(Strategy):
    """Stops whole trials, whose points `sampler` draws, when a band's number of values is logged."""

    sampler: Any
    bands: tuple[int, ...]
    eta: float

    def describe(self, problem: Problem) -> str:
        return f"EarlyTerminate({self.sampler.describe(problem)}, bands={self.bands}, eta={self.eta})"

    def begin(self, problem: Problem) -> TrialScheduler:
        return _Comparing(Points(self.sampler.draws(problem), problem), self.eta)


class _Comparing(WholeTrials):
    def __init__(self, points: Points, eta: float):
        super().__init__(points)
        self._eta = eta
        self._known: dict[int, list[float]] = {}  # losses at each band

    def ask(self, most: int) -> list[Trial]:
        limits = []
        for band, losses in self._known.items():
            if (place := int((len(losses) + 1) / self._eta)) < len(losses):  # 1: the trial's own
                limits.append((band, sorted(losses)[place]))
        segments = ((trial, trial.segment._replace(limits=tuple(sorted(limits)))) for trial in super().ask(most))
        return [Trial(trial.key, trial.params, segment) for trial, segment in segments]

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        for band, loss in feedback.for_door or ():
            self._known.setdefault(band, []).append(loss)
        super().tell(trial, feedback)


def band_behind(losses: Sequence[float], limits: Sequence[tuple[int, float]]) -> int | None:
    """The first band at which a trial with these losses is stopped, None where it goes on."""
    return next((band for band, limit in limits if band <= len(losses) and losses[band - 1] > limit), None)
