"""When a study has enough: it has had its time, or a function of its results says so."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Limit(ABC):
    """Of one study, as it goes on; see `Scheduling.enough` and `Reporting.stopped`.

    Attributes:
        timeout: seconds since `began`, by the monotonic clock.
        stop_when: a function of `so_far`.
        reached: what it was that has stopped the study; "" for nothing.
        news: whether results have come since `stop_when` was asked.
    """

    timeout: float | None = None
    stop_when: Callable[[Any], bool] | None = None
    began: float = field(default_factory=time.monotonic)
    reached: str = field(default="", init=False)
    news: bool = field(default=False, init=False)

    @abstractmethod
    def so_far(self) -> Any:
        """The results, as `stop_when` gets them."""

    def is_reached(self) -> bool:
        """Asked often: `stop_when` is called where there is news."""
        if not self.reached and self.timeout is not None and time.monotonic() - self.began > self.timeout:
            self.reached = "its time"
        if not self.reached and self.stop_when is not None and self.news:
            self.news = False
            if self.stop_when(self.so_far()):
                self.reached = "stop_when"
        return bool(self.reached)
