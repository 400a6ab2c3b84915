"""Workers that share a device wait for its memory: real processes, locks and kills; only the memory is of files."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mpitune.devices import memory_lock
from mpitune.devices.memory_lock import device_name
from tests.helpers import PATIENCE
from tests.mpitune.devices.ledger import TOTAL, Ledger

WORKER = """
import logging, os, sys, time
from pathlib import Path
from mpitune.devices import memory_lock
from tests.mpitune.devices.ledger import Ledger
folder, name, wishes, seconds = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), float(sys.argv[4])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
memory_lock.POLL_S, memory_lock.GRACE_S, memory_lock.LOG_S = 0.01, 0.3, 0.1
mine = memory_lock.MemoryLock(Ledger(folder, os.getpid()), "toy", folder)
for wish in wishes:
    print(name, "asks", wish, flush=True)
    with mine.reserved(int(wish)) as granted:
        word = "has" if granted >= int(wish) else f"refused {granted}"
        with open(folder / "log", "a") as log:
            print(name, word, wish, file=log)
        print(name, word, wish, flush=True)
        if granted >= int(wish):
            time.sleep(seconds)
"""


@pytest.fixture
def start(tmp_path):
    """start(name, wishes, seconds) starts a worker that says what it asks for and what it has."""
    started = []

    def start(name, *wishes, seconds=60.0):
        command = [sys.executable, "-c", WORKER, str(tmp_path), name, ",".join(map(str, wishes)), str(seconds)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def hears(process, words):
    """Reads on until that line."""
    for line in process.stdout:
        if line.strip() == words:
            return
    raise AssertionError(f"{words!r} was not said")


def log(folder):
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_however_many_there_are_no_more_is_taken_than_there_is(start, tmp_path):
    wishes = [4 * each for each in ((2, 7, 3), (5, 4, 10), (6, 1, 6), (3, 3, 9), (8, 2, 5))]
    workers = [start(f"w{n}", *wish, seconds=0.03) for n, wish in enumerate(wishes)]
    assert [worker.wait(PATIENCE) for worker in workers] == [0] * len(workers)
    assert sorted(log(tmp_path)) == sorted(f"w{n} has {wish}" for n, each in enumerate(wishes) for wish in each)
    assert not (tmp_path / "overdrawn").exists()


def test_two_that_fit_go_on_at_once(start):
    first, second = start("first", 4), start("second", 6)
    hears(first, "first has 4")
    hears(second, "second has 6")


def test_a_waiting_worker_goes_on_when_another_is_killed_and_small_ones_wait_behind_it(start, tmp_path):
    first = start("first", 8)
    hears(first, "first has 8")
    second = start("second", 5)
    hears(second, "waiting for 5e-09 GB of memory, of which 2e-09 GB are free")
    third = start("third", 1)
    hears(third, "third asks 1")
    time.sleep(0.3)
    assert log(tmp_path) == ["first has 8"]
    first.send_signal(signal.SIGKILL)
    first.wait()
    hears(second, "second has 5")
    hears(third, "third has 1")
    assert sorted(log(tmp_path)[1:]) == ["second has 5", "third has 1"], "either may write first what it has"


def test_the_next_worker_takes_the_place_of_one_that_is_killed_while_it_waits(start):
    first = start("first", 8)
    hears(first, "first has 8")
    second = start("second", 5)
    hears(second, "waiting for 5e-09 GB of memory, of which 2e-09 GB are free")
    second.kill()
    third = start("third", 2)
    hears(third, "third has 2")


def test_more_than_the_device_has_is_refused_at_once_though_others_are_busy(start):
    first = start("first", 8)
    hears(first, "first has 8")
    second = start("second", 11, 1)
    hears(second, f"second refused {TOTAL} 11")
    hears(second, "second has 1")


def test_with_nobody_to_wait_for_what_is_missing_is_refused(start, tmp_path):
    """Memory that someone else has taken, who is no worker."""
    (tmp_path / "stranger.taken").write_text("7")
    worker = start("worker", 4, 3, seconds=0.0)
    hears(worker, "worker refused 3 4")
    hears(worker, "worker has 3")


def test_both_programs_name_a_device_alike(monkeypatch):
    uuid = "5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
    for visible in ("0", "GPU-5c89852c", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert device_name(uuid) == device_name("GPU-" + uuid) == device_name(uuid.upper()) == uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-12/3/0")
    assert device_name(uuid) == "MIG-GPU-12-3-0"


def test_free_memory_in_pieces_that_are_too_small_is_not_enough(monkeypatch, tmp_path):
    """Enough is free, but no block of that size can be taken: the worker hears of fewer bytes than it asked for."""
    monkeypatch.setattr(memory_lock, "GRACE_S", 0.1)
    memory = Ledger(tmp_path, os.getpid())
    monkeypatch.setattr(memory, "take", lambda n_bytes: False)
    with memory_lock.MemoryLock(memory, "toy", tmp_path).reserved(4) as granted:
        assert granted == 3
