"""A training on one host is reached from this host only: PyTorch's store and gloo ask for no secret."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import ROOT, family, listeners, mpirun_command
from tests.mnist_nn.scaled_digits import write_as_mnist

LOOPBACK = "tcp 0100007F:"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_training_on_one_host_listens_on_the_loopback_only(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("torch")
    write_as_mnist(tmp_path / "data", 300, 50)
    options = ("--data", str(tmp_path / "data"), "--no-cuda", "--epochs", "20", "--batch-size", "50")
    start = (*mpirun_command(ranks), sys.executable) if ranks else (sys.executable,)
    command = [*start, "-m", "mnist_nn.ddp", *options, "--results", str(tmp_path / "r")]
    command += [] if ranks else ["--nproc-per-node", "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen: set[str] = set()
    while job.poll() is None:
        for pid in family(job.pid) - ({job.pid} if ranks else set()):  # mpirun itself listens, for its daemons
            try:
                seen.update(listeners(pid))
            except FileNotFoundError:
                continue  # it has ended
        time.sleep(0.2)
    said, _ = job.communicate()
    assert job.returncode == Exit.DONE, said
    assert len(seen) >= 3, "the store and gloo of each process"
    assert all(socket.startswith(LOOPBACK) for socket in seen), seen
