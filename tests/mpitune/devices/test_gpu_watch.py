"""What is heard of GPUs while workers use them, and what becomes of the workers. NVML is a stand-in."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices import gpu_watch
from mpitune.devices.devices import Device
from mpitune.devices.gpu_watch import GpuWatch, in_kernel
from mpitune.engine.agent import Agent
from mpitune.engine.messages import Died, Returned, Run
from mpitune.engine.worker import Setup
from mpitune.trial import Place, Trial
from tests.helpers import PATIENCE, ROOT
from tests.stand_ins import SLICES, A, B, Machine
from tests.toys import Toy


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files say what happens, on a machine with a GPU in slices and a whole one."""
    machine = Machine(tmp_path / "machine", gpus={A: SLICES, B: ()})
    for name, value in machine.environ(NVML=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)  # anywhere
    monkeypatch.setattr(gpu_watch, "HANG_S", 0.5)
    return tmp_path


def heard(watch: GpuWatch, now: float, condition: Callable[[], object]) -> None:
    """Hear until a condition holds, at this time of the caller's."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        watch.hear(now)
        time.sleep(0.01)


def test_a_lost_gpu_is_one_of_all_workers_on_it_that_return_nothing_afterwards(
    nvml: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = GpuWatch(["0", SLICES[1], "MIG-unknown"])
    try:
        (nvml / "lost").touch()
        heard(watch, 10.0, lambda: all(f"GPU {entry} is lost" in caplog.text for entry in ("0", SLICES[1])))
        for entry in ("0", SLICES[1]):
            assert watch.fault(os.getpid(), entry, since=5.0, now=10.4) == ""  # it may still end by itself
            assert watch.fault(os.getpid(), f"{B},{entry}", since=5.0, now=10.6).endswith(f"its GPU {entry} was lost")
            assert watch.fault(os.getpid(), entry, since=10.1, now=20.0) == ""  # it has returned something since
        assert watch.fault(os.getpid(), B, since=5.0, now=20.0) == ""
    finally:
        watch.close()


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a worker of the toy `in_kernel` waits for."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    monkeypatch.setenv("TOY_FIFO", str(path))
    yield path
    with suppress(OSError):  # nobody waits
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def test_a_worker_in_the_kernel_is_killed_only_while_its_gpu_does_not_answer(
    nvml: Path, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for may be a file system, which comes back; a GPU that does not answer does not."""
    told: list[Any] = []
    monkeypatch.setattr(gpu_watch, "SILENT_S", 1e9)  # on a busy machine an answer may be late
    setup = Setup(pickle.dumps(Toy(2, at=("t0=in_kernel",))), {}, "cuda", os.getpid(), {})

    def tell(message: Any) -> None:  # of the coordinator's messages those that end a batch
        if isinstance(message, (Died, Returned)):
            told.append(message)

    agent = Agent(tell, setup, [Device(f"cuda:{B}", B)], [Place()])

    def step_until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, told
            agent.step(0.01)

    try:
        agent.handle(Run(0, (Trial("t0", {"x": 0, "offset": 0}),), life=0))
        process = agent.slots[0].process
        assert process is not None
        step_until(lambda: in_kernel(process.pid))
        seen = time.monotonic()
        step_until(lambda: time.monotonic() > seen + 2)  # well over HANG_S
        assert not told and process.killed is None
        step_until(lambda: agent._gpus is not None and agent._gpus._answered)
        (nvml / "hang").touch()
        monkeypatch.setattr(gpu_watch, "SILENT_S", 1.0)
        step_until(lambda: told)
        (died,) = told
        assert isinstance(died, Died) and not died.lost
        assert f"in the kernel (state D) for 0.5 s, while its GPU {B} did not answer, so the worker was" in died.cause
        (nvml / "hang").unlink()
        agent.handle(Run(0, (Trial("t1", {"x": 1, "offset": 0}),), life=1))
        step_until(lambda: isinstance(told[-1], Returned))
    finally:
        agent.close()


def test_without_nvml_nothing_is_said(tmp_path: Path) -> None:
    environ = {**os.environ, **Machine(tmp_path, driver=False).environ()}
    words = [sys.executable, "-m", "mpitune.devices.gpu_watch", str(os.getpid()), A]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
