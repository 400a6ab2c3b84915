"""Gangs: trials that need several slots. Which they get, that nobody waits for ever, and what becomes of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.engine.messages import Drained, Interrupted, Lend, Run
from mpitune.port import Scheduling
from mpitune.trial import Gang, Rounds, Trial
from tests.mpitune.engine.fake_agents import FakeAgents, places


def gang_of(trial: Trial) -> Gang:
    return Gang(int(trial.params.get("devices", 1)), int(trial.params.get("nodes", 0)))


class Ganged(FakeAgents):
    """Trials of equal cost, in the order given: ("a", devices=2), ..."""

    def __init__(self, folder: Path, slots: list[int], *needs: dict[str, int], **options: Any):
        self.lent: list[tuple[int, int]] = []

        def search() -> Rounds:
            yield [(Trial(f"t{n}", {"cost": 1, **need}),) for n, need in enumerate(needs)]

        super().__init__(folder, search(), places(*slots), Scheduling(gang=gang_of), **options)

    def _tell(self, rank: int, message: object) -> None:
        if isinstance(message, Lend):
            self.lent.append((rank, message.slot))
        super()._tell(rank, message)

    def running(self) -> dict[tuple[int, int], str]:
        return {slot: runs[0].batch[0].key for slot, runs in self.given.items() if runs}


ONE: dict[str, int] = {}


def test_a_gang_waits_for_its_devices_while_the_other_slots_go_on(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2, 2], ONE, ONE, ONE, {"devices": 2}, ONE, ONE, ONE)
    assert agents.running() == {(0, 0): "t0", (1, 0): "t1", (0, 1): "t2"}  # (1, 1) is kept until (1, 0) is idle
    agents.answer((0, 0))
    assert agents.running()[0, 0] == "t4"
    agents.answer((1, 0))
    (run,) = agents.given[1, 0]
    assert run.batch[0].key == "t3" and run.beside == (1,) and not run.hosts and agents.lent == [(1, 1)]
    agents.answer((0, 1))
    assert agents.running()[0, 1] == "t5" and (1, 1) not in agents.running()
    agents.answer((1, 0))
    assert sorted(agents.running().values()) == ["t4", "t5", "t6"]
    agents.finish()
    assert agents.study.finished


def test_whole_nodes(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2, 2, 1], {"nodes": 2}, {"nodes": 1}, ONE, {"nodes": 3}, ONE)
    (first,), (second,) = agents.given[0, 0], agents.given[2, 0]
    assert first.hosts == ("host0", "host1") and first.beside == (1,)
    assert second.hosts == ("host2",) and second.batch[0].key == "t1"
    assert agents.running() == {(0, 0): "t0", (2, 0): "t1"} and sorted(agents.lent) == [(0, 1), (1, 0), (1, 1)]
    agents.answer((2, 0))
    assert agents.running() == {(0, 0): "t0", (2, 0): "t2"}
    agents.answer((2, 0))  # t3 needs all nodes and comes before t4
    assert agents.running() == {(0, 0): "t0"}
    agents.answer((0, 0))
    assert agents.running() == {(0, 0): "t3"} and agents.given[0, 0][0].hosts == ("host0", "host1", "host2")
    agents.answer((0, 0))
    assert list(agents.running().values()) == ["t4"]


def test_what_no_layout_here_can_run_is_left_open(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2, 1], {"devices": 3}, {"nodes": 3}, ONE)
    assert list(agents.running().values()) == ["t2"]
    assert agents.coordinator.dispatch.left_open == {
        "t0": "it needs 3 devices of a node, and the largest node has 2",
        "t1": "it needs 3 nodes, and this job has 2",
    }
    agents.answer(next(iter(agents.running())))
    assert agents.coordinator.finished and not agents.study.finished


def test_a_gang_that_fails_is_tried_once_more_and_gives_its_slots_back(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2], {"devices": 2}, ONE, ONE, ONE)
    assert agents.running() == {(0, 0): "t0"}
    agents.die((0, 0))
    assert agents.running() == {(0, 0): "t0"} and agents.given[0, 0][0].beside == (1,)
    agents.answer((0, 0))
    assert sorted(agents.running().values()) == ["t1", "t2"]
    agents.answer((0, 0))
    agents.answer((0, 1))
    agents.answer(next(iter(agents.running())))
    assert agents.coordinator.finished and agents.study.outcomes()[0].result.attempt == 2


def test_a_job_that_is_told_to_stop_begins_no_gang(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2], ONE, ONE, {"devices": 2})
    agents.coordinator.handle(0, Interrupted(15))
    agents.answer((0, 0))
    agents.answer((0, 1))
    for slot in (0, 1):
        agents.coordinator.handle(0, Drained(slot))
    agents.coordinator.step()
    assert agents.coordinator.finished and not agents.running() and agents.study.n_open == 1


def test_nobody_waits_for_ever_and_no_slot_does_two_things(tmp_path: Path) -> None:
    """Many trials of all sizes, of which one of the three that have run longest ends next."""
    rng = np.random.default_rng(0)
    kinds = [ONE, ONE, ONE, {"devices": 2}, {"devices": 3}, {"nodes": 1}, {"nodes": 2}, {"nodes": 4}]
    needs = [kinds[n] for n in rng.integers(len(kinds), size=300)]
    slots = [3, 4, 3, 1]
    agents = Ganged(tmp_path, slots, *needs)
    begun: list[int] = []
    while not agents.study.finished:
        busy: list[tuple[int, int]] = []
        running = {slot: runs[0] for slot, runs in agents.given.items() if runs}
        for (rank, slot), run in running.items():
            assert isinstance(run, Run) and len(agents.given[rank, slot]) == 1
            ranks = [int(host.removeprefix("host")) for host in run.hosts]
            mine = [(rank, n) for n in (slot, *run.beside)]
            mine += [(other, n) for other in ranks if other != rank for n in range(slots[other])]
            need = gang_of(run.batch[0])
            assert len(ranks) == need.nodes and (need.nodes or len(mine) == need.devices)
            busy += mine
            if (number := int(run.batch[0].key[1:])) not in begun:
                begun.append(number)
        assert len(set(busy)) == len(busy), "two trials have the same slot"
        oldest = sorted(running, key=lambda slot: begun.index(int(running[slot].batch[0].key[1:])))[:3]
        agents.answer(oldest[int(rng.integers(len(oldest)))])
    overtaken = [sum(other > number for other in begun[: begun.index(number)]) for number in range(300)]
    assert max(overtaken) <= 4 * sum(slots), "a trial was overtaken by many that came after it"
    assert agents.coordinator.finished


def test_a_gang_that_cannot_finish_in_time_is_not_begun_and_gives_its_slots_back(tmp_path: Path) -> None:
    agents = Ganged(tmp_path, [2], ONE, ONE, {"devices": 2}, ONE, end=time.time() + 100)
    for slot in ((0, 0), (0, 1)):
        agents.answer(slot, seconds=200.0)
    assert agents.running() == {} and agents.coordinator.dispatch.n_too_long == 2
    assert agents.coordinator.finished and not agents.study.finished and agents.study.n_done == 2
