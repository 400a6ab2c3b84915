"""A coordinator whose agents are acted out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.engine.coordinator import Coordinator
from mpitune.engine.messages import Died, Drain, Returned, Run
from mpitune.engine.slots import Resources, slots_of
from mpitune.engine.study import Study
from mpitune.port import Port, Scheduling
from mpitune.storage.journal import Journal
from mpitune.trial import Place, Result, Rounds
from tests.helpers import HEADER

COSTS = Scheduling(cost=lambda trial: float(trial.params["cost"]))


class FakeAgents:
    """A coordinator, the batches that it has given to each slot, and their answers; `port` has methods of a door."""

    def __init__(
        self,
        folder: Path,
        search: Rounds,
        places: list[list[Place]],
        scheduling: Scheduling = COSTS,
        *,
        known: dict[str, Result] | None = None,
        others: Sequence[Rounds] = (),
        port: Mapping[str, Any] = {},
        **resources: Any,
    ):
        self.now = 0.0  # of the coordinator's clock
        door = Port()
        vars(door).update(port)
        self.study = Study([search, *others], {}, known or {}, port=door)
        self.given: dict[tuple[int, int], list[Run]] = defaultdict(list)
        self.drained: list[int] = []
        self.told: list[tuple[int, bytes]] = []  # news for the workers of a rank
        has = Resources(slots_of(places), self._tell, clock=lambda: self.now, **resources)
        self.coordinator = Coordinator(self.study, Journal(folder, HEADER), scheduling, has)
        self.coordinator.step()

    def _tell(self, rank: int, message: object) -> None:
        if isinstance(message, Run):
            self.given[rank, message.slot].append(message)
            self.told += [(rank, content) for content in message.news]
        elif isinstance(message, Drain):
            self.drained.append(rank)

    def answer(self, slot: tuple[int, int], seconds: float = 9.0, value: float = 1.0, **how: Any) -> None:
        """The slot finishes the first batch that it has; `how`: what else its results say."""
        run = self.given[slot].pop(0)
        results = tuple(Result(trial.key, {"v": value}, seconds=seconds, **how) for trial in run.batch)
        self.coordinator.handle(slot[0], Returned(slot[1], results, 1))
        self.coordinator.step()

    def die(self, slot: tuple[int, int], cause: str = "killed by SIGKILL", building: bool = False, **how: Any) -> None:
        self.given[slot].clear()
        self.coordinator.handle(slot[0], Died(slot[1], cause, building, **how))
        self.coordinator.step()

    def finish(self) -> None:
        """All that slots are given is answered until the study has ended."""
        while not self.coordinator.finished:
            self.answer(next(slot for slot, runs in self.given.items() if runs))

    def keys(self, slot: tuple[int, int]) -> list[list[str]]:
        return [[trial.key for trial in run.batch] for run in self.given[slot]]


def places(*slots: int) -> list[list[Place]]:
    return [[Place(f"host{rank}", rank, slot, "cpu") for slot in range(n)] for rank, n in enumerate(slots)]
