"""The agent with real workers, and the test in the place of the coordinator."""

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitune.devices.choose import CPU
from mpitune.engine import agent as module
from mpitune.engine.agent import Agent
from mpitune.engine.messages import Died, Returned, Run
from mpitune.engine.worker import COPIES, LENGTH, Setup, enter, write
from mpitune.engine.worker_process import WorkerProcess
from mpitune.errors import UsageError
from mpitune.options import RunOptions
from mpitune.trial import Place, Trial
from tests.helpers import PATIENCE
from tests.toys import Toy


@pytest.fixture
def sent() -> list[Any]:
    return []


def at_work(sent: list[Any], toy: Toy, trial_timeout: float | None = None) -> tuple[Agent, WorkerProcess]:
    """One slot, whose worker is given the trial t0."""
    setup = Setup(pickle.dumps(toy), {}, "cpu", os.getpid())
    agent = Agent(sent.append, setup, [CPU], [Place()], RunOptions(trial_timeout=trial_timeout))
    agent.handle(Run(0, (Trial("t0", {"x": 0, "offset": 0}),), life=0))
    assert agent.slots[0].process is not None
    return agent, agent.slots[0].process


def heard(agent: Agent, sent: list[Any], kind: type) -> Any:
    """The first message of a kind, waited for."""
    deadline = time.monotonic() + PATIENCE
    while not any(isinstance(message, kind) for message in sent):
        assert time.monotonic() < deadline, sent
        agent.step(0.01)
    return next(message for message in sent if isinstance(message, kind))


def test_a_batch_sent_before_the_death_was_heard_of_is_not_evaluated(sent: list[Any]) -> None:
    """The coordinator has it back in its queue: evaluated here as well, it would return twice."""
    batch = (Trial("t1", {"x": 1, "offset": 0}),)
    agent, _ = at_work(sent, Toy(2, at=("t0=c_exit",)))
    heard(agent, sent, Died)
    agent.handle(Run(0, batch, life=0))
    assert agent.slots[0].process is None and not agent.slots[0].waiting
    agent.handle(Run(0, batch, life=1))
    assert heard(agent, sent, Returned).results[0].key == "t1"
    agent.close()


def test_half_a_message_is_not_waited_for() -> None:
    """Its worker may have been suspended while it sent a large array."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = WorkerProcess(multiprocessing.current_process(), ours, ours, ours, CPU)
    pickled = pickle.dumps("result")
    framed = len(pickled).to_bytes(LENGTH, "big") + pickled
    write(theirs.fileno(), framed[: LENGTH + 1])
    assert not list(process.messages())
    write(theirs.fileno(), framed[LENGTH + 1 :] + framed + framed[:3])
    assert list(process.messages()) == ["result", "result"]
    theirs.close()
    assert not list(process.messages()) and process.ended


def test_a_worker_that_cannot_be_killed_costs_its_slot_only(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in the kernel, which waits for a GPU that has gone: signals do not reach it."""
    monkeypatch.setattr(module, "REAP_SECONDS", 0.5)
    agent, process = at_work(sent, Toy(2, at=("t0=hang",)), 0.5)
    kill, pid = process.kill, process.handle.pid
    monkeypatch.setattr(process, "kill", lambda: None)
    try:
        died = heard(agent, sent, Died)
        assert died.lost and "so the worker was killed; it did not end within 0.5 s" in died.cause.splitlines()[-1]
        agent.close()
        assert os.path.exists(f"/proc/{pid}") and process.handle not in multiprocessing.active_children()
    finally:
        kill()
        os.waitid(os.P_PID, pid, os.WEXITED)


def test_a_worker_whose_keeper_was_suspended_is_ended(sent: list[Any]) -> None:
    agent, process = at_work(sent, Toy(2, at=("t0=hang",)), 0.5)
    while not process.built:
        agent.step(0.01)
    os.kill(process.handle.pid, signal.SIGSTOP)
    assert not heard(agent, sent, Died).lost
    agent.close()


def test_time_for_which_a_node_was_suspended_is_not_a_trial_s(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank and worker sleep for longer than the deadline, by the clock: the trial goes on where it was."""
    asleep = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + asleep))
    agent, process = at_work(sent, Toy(2, seconds=0.8), 100.0)
    while not process.built:
        assert agent.slots[0].process is process, sent
        agent.step(0.01)
    os.kill(process.pid, signal.SIGSTOP)
    asleep = 1000.0  # in which this process takes no step, as it slept too
    agent.step(0.3)
    os.kill(process.pid, signal.SIGCONT)
    assert heard(agent, sent, Returned).results[0].key == "t0"
    assert not any(isinstance(message, Died) for message in sent)
    agent.close()


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("../theirs"), lambda path: path.touch()])
def test_a_workers_folder_keeps_files_of_others(put: Callable[[Path], Any], tmp_path: Path, monkeypatch: Any) -> None:
    (folder := tmp_path / "w").mkdir()
    for path in (tmp_path / "theirs", folder / "mine"):
        path.write_text(path.name)
    (tmp_path / "mine").write_text("of the working folder")
    put(folder / COPIES)
    monkeypatch.chdir(tmp_path)
    enter(folder)
    assert (folder / "mine").read_text() == "mine" and (tmp_path / "theirs").read_text() == "theirs"
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UsageError, match="is a link"):
        enter(tmp_path / "link")
