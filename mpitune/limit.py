"""When a search has enough: it has had its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class SearchLimit:
    """Seconds that a search may take since it `began`, by the monotonic clock; `reached`: what has stopped it."""

    timeout: float | None = None
    began: float = field(default_factory=time.monotonic)
    reached: str = field(default="", init=False)

    def ended_by(self) -> str:
        """See `Port.on_results`."""
        if not self.reached and self.timeout is not None and time.monotonic() - self.began > self.timeout:
            self.reached = "its time"
        return self.reached
