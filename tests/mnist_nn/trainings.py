"""What tests ask of the folder of a data-parallel training."""

from __future__ import annotations

import csv
import json
import socket
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # also on a machine with GPUs these train on CPUs


def free_port() -> str:
    """A port of this host that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def losses(folder: Path) -> list[float]:
    """All losses in a log: of steps while training, and of epochs."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "train_loss", "test_loss", "accuracy") if name in line]


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "ddp.csv", newline="") as file:
        return list(csv.DictReader(file))
