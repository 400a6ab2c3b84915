"""A study knows when its job will end, and begins nothing that would be cut off."""

import time
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from mpitune.ranks.launch import end_of_job
from tests.helpers import TOYS, journal_lines


def test_slurm_states_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_of_job({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1800000000"}) == 1_800_000_000
    assert end_of_job({}) is None
    monkeypatch.setenv("PATH", "")  # no squeue there
    assert end_of_job({"SLURM_JOB_ID": "7"}) is None


def test_squeue_is_asked_where_slurm_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$*" = "-h -j 7 -o %e" ] && echo 2027-01-15T08:00:00\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert end_of_job({"SLURM_JOB_ID": "7"}) == time.mktime((2027, 1, 15, 8, 0, 0, 0, 0, -1))
    squeue.write_text("#!/bin/sh\necho NONE\n")  # no time limit
    assert end_of_job({"SLURM_JOB_ID": "7"}) is None


@pytest.mark.slow
def test_what_would_not_end_in_time_is_not_begun(program: Any, tmp_path: Path) -> None:
    """Trials of 1 s on one slot; the margin leaves a few seconds of the job."""
    study = (*TOYS, "60", "--seconds", "1", "--gpu", "none", "--workers", "1", "--results", tmp_path)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(time.time()) + 110)}
    done = program(*study, "--walltime-margin", "104", env=job, status=Exit.STOPPED)
    assert "batches were not begun, as the job's time limit is near" in done.stderr
    assert "run the same command to continue" in done.stderr
    assert 0 < len(journal_lines(tmp_path)) < 60
    assert time.time() < float(job["SLURM_JOB_END_TIME"]) - 100
