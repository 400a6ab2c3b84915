"""Answers that must end the study."""

from pathlib import Path

import pytest

from mpitune.engine.messages import Returned
from mpitune.errors import UsageError
from mpitune.storage.history import read_study
from mpitune.trial import Result, Rounds, Trial
from tests.mpitune.engine.fake_agents import FakeAgents, places


def trials(n: int) -> Rounds:
    yield [(Trial(f"t{i}", {"cost": i}),) for i in range(n)]


def test_an_answer_that_is_refused_ends_the_study_and_all_others_are_kept(tmp_path: Path) -> None:
    """The first refusal is the one that is said. An answer is compared with one that did not fail."""
    heard: list[tuple[str, str | None]] = []

    def examine(trial: Trial, result: Result, kept: Result | None) -> None:
        heard.append((trial.key, None if kept is None else kept.key))
        if not result.values:
            raise UsageError(f"{trial.key} says nothing")

    agents = FakeAgents(tmp_path, trials(4), places(1, 1), port={"examine": examine})
    agents.answer((0, 0))
    agents.coordinator.handle(1, Returned(0, (Result("t2"),), 1))
    agents.coordinator.handle(0, Returned(0, (Result("t1"),), 1))
    with pytest.raises(UsageError, match="t2 says nothing"):
        agents.coordinator.step()
    history = read_study(tmp_path)
    assert history.results.keys() == {"t3"}
    assert heard == [("t3", None), ("t2", "t3"), ("t1", "t3")]
    known = {"t2": Result("t2", error="no"), "t1": Result("t1", {"v": 1.0})}
    later = FakeAgents(tmp_path / "later", trials(4), places(1), known=known, port={"examine": examine})
    later.answer((0, 0))
    assert heard[3:] == [("t3", "t1")]
