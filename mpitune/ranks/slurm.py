"""When the batch system will end this job."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping


def end_of_job(environ: Mapping[str, str] = os.environ) -> float | None:
    """Unix time at which Slurm will end the job, None outside of one or where it has no limit.

    Slurm sets SLURM_JOB_END_TIME from version 23.02 on; before, squeue is asked.
    """
    if (stated := environ.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(stated)
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    try:
        asked = subprocess.run(["squeue", "-h", "-j", job, "-o", "%e"], capture_output=True, text=True, timeout=10)
        return time.mktime(time.strptime(asked.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
