"""A job that sleeps in a trial, and wakes when another job has taken the trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT, family, journal_lines, wait_until
from tests.mpitune.sweeps.scripts import PLAIN, written

SEARCH = """
import sys
from pathlib import Path
from mpitune import Float, RunOptions, search

if __name__ == "__main__":
    search(
        [sys.executable, "train.py", "--lr={x}", "--units=2"], {"x": Float(0.1, 1)}, n_trials=1, minimize="loss",
        options=RunOptions(results=Path("r"), workers=1, gpu="none", join=True, heartbeat_timeout=1.0),
    )
"""


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sweep", "command"])
def test_a_job_that_wakes_in_a_trial_does_not_read_what_another_writes(kind: str, tmp_path: Path) -> None:
    """It was suspended after the first line, and ends while the other has written a few."""
    written(tmp_path, PLAIN, run_cap=1)
    (tmp_path / "search.py").write_text(SEARCH)
    how = ("--workers", "1", "--results", "r", "--join", "--heartbeat-timeout", "1")
    words = ["-m", "mpitune", "run", "sweep.json", *how] if kind == "sweep" else ["search.py"]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "NAP": "2"}
    output = tmp_path / "r" / "trials" / "t000000" / "output.txt"
    jobs = [subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=around)]
    assert wait_until(lambda: output.exists() and output.read_text().count("\n") == 2)
    send(tree := family(jobs[0].pid), signal.SIGSTOP)
    first = output.resolve()
    jobs.append(subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=around))
    assert wait_until(lambda: output.resolve() != first and output.exists() and output.read_text() != "")
    send(tree, signal.SIGCONT)
    assert [job.wait(PATIENCE) for job in jobs] == [0, 0]
    values = {json.dumps(line["values"]) for line in journal_lines(tmp_path / "r")}
    assert len(values) == 1 and output.read_text().count("\n") == 8, values
