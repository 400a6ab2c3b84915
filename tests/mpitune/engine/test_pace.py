"""How fast a study goes, as the coordinator concludes it from batches that are done."""

from collections import deque

import pytest

from mpitune.engine.pace import SHORT, Pace
from mpitune.engine.queue import Costs, QueuedBatch
from mpitune.engine.slots import Given, SlotState
from mpitune.trial import Place, Trial


def given(cost: float, begun: float) -> Given:
    trial = Trial(f"t{cost}", {})
    return Given({trial.key: trial}, QueuedBatch(0.0, 0, (trial,), Costs(lambda trial: cost)), begun, begun)


def test_a_slot_has_left_the_rest_of_its_batch_and_all_that_wait_there() -> None:
    pace, state = Pace(end=None), SlotState(Place())
    assert pace.left(state, 14.0) == 0.0
    state.given = deque([given(3.0, 10.0), given(5.0, 10.0), given(7.0, 10.0)])
    assert pace.left(state, 14.0) == 15.0, "nobody knows how long a unit of cost takes"
    pace.add(cost=1.0, seconds=2.0)
    assert pace.left(state, 14.0) == pytest.approx(13.0)
    assert pace.left(state, 99.0) == 12.0, "a batch that takes longer than expected is about to end"


def test_batches_of_the_limit_are_long() -> None:
    pace = Pace(end=None)
    pace.add(cost=1.0, seconds=SHORT)
    assert pace.ahead == 0 and pace.learnt.rate == SHORT
