"""scikit-learn's callbacks on three hosts: other hosts cannot reach the sockets of the script's process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpitune.sklearn.test_callbacks import OURS, THEIRS, found_by, job

from .hosts import Hosts, environment
from .mpirun import mpirun


@pytest.mark.parametrize("imports, how, jobs, ranks", [(OURS, (), None, 3), (THEIRS, ("-m", "mpitune"), -1, 1)])
def test_three_hosts_tell_what_one_process_does(
    hosts: Hosts, tmp_path: Path, imports: str, how: tuple[str, ...], jobs: int | None, ranks: int
) -> None:
    command = [sys.executable, job(tmp_path, THEIRS)]
    alone = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    done = hosts[0].run(*mpirun(hosts, sys.executable, *how, job(tmp_path, imports, jobs)))
    assert found_by(done.stdout) == found_by(alone.stdout) * ranks, done.stderr
