"""What a trial starts hears the usual signals, and ends with its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune import Float, RunOptions, search
from mpitune.processes.process import start_resource_tracker
from tests.helpers import PATIENCE, alive, is_server

QUIET = RunOptions(quiet=True)
MARK = "TEST_OF_WHAT_IS_LEFT"  # a variable that all that a test starts inherits


def marked(folder: Path) -> dict[int, str]:
    """Other processes that a test has started, with their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}\0".encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    ours = {pid for pid in found if pid != os.getpid() and not is_server(pid)}  # which stays for the next search
    return {pid: found[pid] for pid in alive(ours)}


def daemonize(*command: str) -> None:
    """Run a command in the way of daemons: in a session of its own, and orphaned."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp(command[0], command)
        os._exit(0)


def nameless(folder: Path) -> bytes:
    """Daemons that a test has started without the mark."""
    return subprocess.run(["pgrep", "-f", f"{folder}/nameless"], capture_output=True).stdout


def leaving(folder: Path, stubborn: bool, then: Callable[[], object]) -> Callable[[Any], float]:
    """An objective that leaves a program, a fork and two daemons, one of which catches SIGTERM, or all ignore it."""

    def objective(trial: Any) -> float:
        if trial.number == 0:
            how = 'trap "" TERM' if stubborn else f"trap 'echo heard >> {folder}/heard; exit' TERM"
            daemonize("sh", "-c", f"{how}; echo > {folder}/ready; while :; do sleep 0.05; done")
            daemonize("env", "-i", "sh", "-c", f"sleep 1111; : {folder}/nameless")
            subprocess.Popen(["sleep", "1111"], start_new_session=True)
            if os.fork() == 0:
                time.sleep(1111)
                os._exit(0)
            while not (folder / "ready").exists():
                time.sleep(0.01)
            then()
        return float(trial.params["x"])

    return objective


def hang() -> None:
    time.sleep(1111)


def crash() -> None:
    os._exit(3)


def go_on() -> None:
    pass


@pytest.mark.parametrize(("then", "stubborn"), [(crash, False), (go_on, True)])
def test_nothing_of_a_trial_stays(
    then: Callable[[], None], stubborn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_resource_tracker()  # which is this process's
    monkeypatch.setenv(MARK, str(tmp_path))
    begin = time.monotonic()
    study = search(
        leaving(tmp_path, stubborn, then), {"x": Float(0, 1)}, n_trials=3, minimize="loss", workers=1, options=QUIET,
    )  # fmt: skip
    assert [t.state for t in study.trials] == ["complete" if then is go_on else "failed", "complete", "complete"]
    assert not marked(tmp_path)
    assert not nameless(tmp_path)
    assert (tmp_path / "heard").exists() != stubborn
    assert time.monotonic() - begin < PATIENCE  # they keep the worker's pipes open, which nobody waits for


def test_a_worker_ends_with_its_keeper() -> None:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            os.kill(os.getppid(), signal.SIGKILL)
            hang()
        return float(trial.params["x"])

    study = search(objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", workers=1, options=QUIET)
    assert [t.state for t in study.trials] == ["failed", "complete"]
    assert "killed by SIGKILL" in (study.trials[0].error or "")


def test_signals_to_stop_reach_what_a_trial_starts_but_not_its_worker(tmp_path: Path) -> None:
    def objective(trial: Any) -> float:
        import multiprocessing

        ignored = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True)
        stops = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
        assert not int(ignored.stdout.split()[1], 16) & stops
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            os.kill(os.getppid(), number)
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1111,))
        forked.start()
        forked.terminate()
        forked.join(60)
        assert forked.exitcode == -signal.SIGTERM
        return 1.0

    study = search(objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", workers=1, options=QUIET)
    assert [t.state for t in study.trials] == ["complete"] * 2, study.trials[0].error


def test_a_fork_that_returns_from_the_objective_is_not_the_worker(tmp_path: Path) -> None:
    """Both would answer, and both would take the next trial."""

    def objective(trial: Any) -> float:
        if trial.number in (1, 2):
            inside = os.fork() == 0
            if inside and trial.number == 2:
                raise ValueError("in the fork")
        return float(trial.params["x"])

    study = search(objective, {"x": Float(0, 1)}, n_trials=6, minimize="loss", workers=1, options=QUIET)
    assert [t.state for t in study.trials] == ["complete"] * 6
