"""Signals that arrive where no trial runs: while data are loaded, and while tables and figures are made."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, begun, journal_lines, wait_until

SCRIPT = """
import atexit, os, sys, time
from dataclasses import dataclass
from pathlib import Path
from mpitune.cli import run
from mpitune.experiment import Experiment, one_round, per_trial
from mpitune.trial import Trial

def lingers(phase, seconds=600):
    if os.environ.get("LINGER") == phase:
        Path(os.environ["MARK"]).touch()
        time.sleep(seconds)

atexit.register(lingers, "exit", 2)

@dataclass(frozen=True)
class Slow(Experiment):
    def data(self):
        lingers("data")
        return {}
    def searches(self):
        yield one_round(Trial(f"t{i}", {}) for i in range(3))
    def objective(self, worker):
        return per_trial(lambda trial: {"loss": 1.0})
    def report(self, *given):
        lingers("report")
        super().report(*given)

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
Path(os.environ["MARK"] + rank).write_text(str(os.getpid()))
if rank == "0":
    while os.environ.get("LINGER") == "connect" and not Path(os.environ["MARK"]).exists():
        time.sleep(0.05)
if "--script" in sys.argv:
    from mpitune import RunOptions, run_study
    run_study(Slow(), RunOptions(gpu="none", workers=1, results=Path(sys.argv[-2])))
else:
    run(Slow)
"""


def lingering(tmp_path: Path, phase: str, *more: str, ranks: int = 0) -> subprocess.Popen[str]:
    """A study that lingers in a phase once it has made `mark`. Its results are in `results`."""
    (tmp_path / "slow.py").write_text(SCRIPT)
    options = ("--gpu", "none", "--workers", "1", "--results", tmp_path / "results", *more)
    return begun(tmp_path / "slow.py", *options, ranks=ranks, env={"MARK": str(tmp_path / "mark"), "LINGER": phase})


def test_a_signal_after_the_last_line_changes_no_status(tmp_path: Path) -> None:
    job = lingering(tmp_path, "exit")
    assert wait_until((tmp_path / "mark").exists)
    job.terminate()
    _, stderr = job.communicate(timeout=PATIENCE)
    assert job.returncode == Exit.DONE and "Traceback" not in stderr


def mpi_is_loaded(pid: str) -> bool:
    return "libmpi" in Path(f"/proc/{pid}/maps").read_text()


def test_a_signal_to_one_rank_ends_all_with_75(tmp_path: Path) -> None:
    """Rank 1 waits for rank 0, in MPI_Init."""
    job, mark, mark1 = lingering(tmp_path, "connect", ranks=2), tmp_path / "mark", tmp_path / "mark1"
    assert wait_until(lambda: mark1.exists() and bool(mark1.read_text()) and mpi_is_loaded(mark1.read_text()))
    time.sleep(0.5)
    os.kill(int(mark1.read_text()), signal.SIGUSR1)
    time.sleep(0.5)
    mark.touch()
    _, stderr = job.communicate(timeout=PATIENCE)
    assert job.returncode == Exit.STOPPED, stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    "phase, number, ranks", [("report", signal.SIGTERM, 0), ("report by a script", signal.SIGUSR1, 2)]
)
def test_a_signal_between_the_trials_ends_with_75(tmp_path: Path, phase: str, number: int, ranks: int) -> None:
    phase, _, by = phase.partition(" by a ")
    more, folder = (["--script"] if by else []), tmp_path / "results"
    job = lingering(tmp_path, phase, *more, ranks=ranks)
    assert wait_until((tmp_path / "mark").exists)
    for _ in range(1 if ranks else 2):  # GNU timeout sends it twice
        job.send_signal(number)
        time.sleep(0.005)
    _, stderr = job.communicate(timeout=PATIENCE)
    assert job.returncode == Exit.STOPPED, stderr
    assert "run the same command to continue" in stderr and "Traceback" not in stderr
    assert not (folder / "status.json").exists()
    assert not (folder / "trials.csv").exists()
    assert lingering(tmp_path, "never", *more).wait(PATIENCE) == 0
    assert len(journal_lines(folder)) == 3
    assert (folder / "trials.csv").exists() and (folder / "report.html").exists()


SEARCH = """
import sys, time
from pathlib import Path
from mpitune import Float, search

def objective(trial):
    Path("mark").touch()
    time.sleep(0.05)
    return trial.params["x"]

try:
    search(objective, {"x": Float(0, 1)}, n_trials=2000, minimize="loss", workers=1, results=RESULTS)
except CAUGHT:
    print("caught")
"""


def searching(folder: Path, results: str, caught: str = "()", seconds: str = "0.05") -> subprocess.Popen[str]:
    """A script that searches, once its first trial has begun, in a process group of its own."""
    script = SEARCH.replace("RESULTS", results).replace("CAUGHT", caught).replace("0.05", seconds)
    (folder / "search.py").write_text(script)
    job = begun("search.py", cwd=folder, stdout=subprocess.PIPE, start_new_session=True)
    assert wait_until((folder / "mark").exists)
    return job


@pytest.mark.parametrize(
    ("results", "caught", "number", "status", "last_line"),
    [
        ("'r'", "()", signal.SIGINT, Exit.STOPPED, "search.py: SIGINT: run the same command to continue"),
        ("None", "()", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_ctrl_c_ends_a_script_in_one_line_where_it_can_go_on(
    tmp_path: Path, results: str, caught: str, number: int, status: int, last_line: str
) -> None:
    """And can be caught like any other. A terminal sends it to all processes of the group: running trials may end."""
    job = searching(tmp_path, results, caught)
    os.killpg(job.pid, number)
    stdout, stderr = job.communicate(timeout=PATIENCE)
    assert "died" not in stderr
    assert job.returncode == status and stderr.splitlines()[-1].endswith(last_line)
    assert ("Traceback" in stderr) == (status < 0) and stdout == ("caught\n" if status == 0 else "")
    if results == "None":
        assert 'nothing is kept without a results folder; with results="folder" the next run could continue' in stderr
        assert "same command" not in stderr


@pytest.mark.parametrize(("pause", "says"), [(0.005, "of 2000 trials done"), (0.4, "may finish within 30 s")])
def test_a_signal_that_is_sent_twice_at_once_is_one(tmp_path: Path, pause: float, says: str) -> None:
    """GNU timeout sends it to the program, and then to the program's process group."""
    job = searching(tmp_path, "'r'", seconds="1.5")
    job.terminate()
    time.sleep(pause)
    job.terminate()
    stderr = job.communicate(timeout=PATIENCE)[1]
    assert job.returncode == Exit.STOPPED and says in stderr.splitlines()[-1]
