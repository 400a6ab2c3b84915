"""When a search has enough: it has had its time, or a function of its results says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mpitune.trial import Result


@dataclass
class SearchLimit:
    """Of one search, as it goes on; see `Port.ended_by`.

    Attributes:
        timeout: seconds since `began`, by the monotonic clock.
        stop_when: a function of the results so far.
        began: when the search did.
        known: these results, see `mpitune.sklearn.search.limit.Scores`; where `stop_when` is None it is not asked.
        reached: what it was that has stopped the search; "" for nothing.
    """

    timeout: float | None = None
    stop_when: Callable[[Any], bool] | None = None
    began: float = field(default_factory=time.monotonic)
    known: Any = None
    reached: str = field(default="", init=False)

    def on_results(self, results: Iterable[Result]) -> None:
        """See `Port.on_results`."""
        if self.stop_when is not None:
            self.known.on_results(results)

    def is_reached(self) -> bool:
        """Asked often: `stop_when` is called where there is news."""
        if not self.reached and self.timeout is not None and time.monotonic() - self.began > self.timeout:
            self.reached = "its time"
        if not self.reached and self.stop_when is not None and self.known.news:
            self.known.news = False
            if self.stop_when(self.known.so_far()):
                self.reached = "stop_when"
        return bool(self.reached)

    def ended_by(self) -> str:
        """See `Port.ended_by`."""
        return self.reached if self.is_reached() else ""
