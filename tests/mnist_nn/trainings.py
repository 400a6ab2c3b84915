"""What tests ask of the folder of a data-parallel training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers import PATIENCE, ROOT, table

DDP = (sys.executable, "-m", "mnist_nn.ddp")

ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # also on a machine with GPUs these train on CPUs


def pods(*options: Any) -> list[subprocess.Popen[str]]:
    """The two ranks of one training, as the pods of a PyTorchJob: nobody ends them from outside."""
    with socket.create_server(("127.0.0.1", 0)) as free:  # a port that nobody uses now
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    around = {**os.environ, **ONE_THREAD, **where, "PYTHONPATH": str(ROOT)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    command = [*DDP, *map(str, options)]
    return [subprocess.Popen(command, env={**around, "RANK": rank}, **quiet) for rank in "01"]


def wait_for_an_epoch(folder: Path, *processes: subprocess.Popen[str]) -> None:
    """Until the training in `folder` by these processes has written its first checkpoint."""
    deadline = time.monotonic() + PATIENCE
    while not (folder / "checkpoint.pt").exists():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.02)


def losses(folder: Path) -> list[float]:
    """All losses in a log: of steps while training, and of epochs."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "train_loss", "test_loss", "accuracy") if name in line]


def rows(folder: Path) -> list[dict[str, str]]:
    return table(folder / "ddp.csv")
