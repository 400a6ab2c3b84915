"""The agent with real workers, and the test in the place of the coordinator."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from common.cluster.devices import CPU
from common.engine.agent import Agent
from common.engine.messages import Died, Returned, Run
from common.engine.worker import Setup
from common.trial import Place, Trial
from tests.toys import Toy


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def agent(told: list[Any]) -> Iterator[Agent]:
    """One slot whose worker dies in the trial t0."""
    agent = Agent(told.append, Setup(Toy(2, at=("t0=c_exit",)), {}, "cpu", Place(), os.getpid(), {}), [CPU])
    yield agent
    agent.close()


def heard(agent: Agent, told: list[Any], kind: type) -> Any:
    """The first message of a kind, waited for."""
    deadline = time.monotonic() + 60
    while not any(isinstance(message, kind) for message in told):
        assert time.monotonic() < deadline, told
        agent.step(agent.waitables())
        time.sleep(0.01)
    return next(message for message in told if isinstance(message, kind))


def test_a_batch_sent_before_the_death_was_heard_of_is_not_evaluated(agent: Agent, told: list[Any]) -> None:
    """The coordinator has it back in its queue: evaluated here as well, it would return twice."""
    batch = (Trial("t1", {"x": 1, "offset": 0}),)
    agent.handle(Run(0, (Trial("t0", {"x": 0, "offset": 0}),), 1, life=0))
    heard(agent, told, Died)
    agent.handle(Run(0, batch, 1, life=0))
    assert agent.slots[0].process is None and not agent.slots[0].waiting
    agent.handle(Run(0, batch, 1, life=1))
    assert heard(agent, told, Returned).results[0].key == "t1"
