"""The circumstances of a measurement, and a table to print: what every benchmark begins and ends with."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import OPENBLAS
from mpitune.devices.choose import usable_cores
from mpitune.storage.provenance import versions


def circumstances(*libraries: str, **facts: Any) -> str:
    """Lines that say where, with what and of how many a measurement was made."""
    git = ["git", "-C", Path(__file__).parent, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return "\n".join(
        [
            f"{time.strftime('%F')}, {processor()}, {usable_cores()} cores, commit {commit}",
            ", ".join(f"{name} {version}" for name, version in versions(libraries).items()),
            ", ".join(f"{name} = {value}" for name, value in facts.items()),
            ", ".join(f"{name} {os.environ.get(name, 'unset')}" for name in OPENBLAS),
        ]
    )


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load() -> float:
    """Processes that wanted a core, on average over the last minute: what else ran."""
    return round(os.getloadavg()[0], 1)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same columns as a Markdown table."""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of the table in a file that `publish` wrote."""
    lines = [line.strip("| ").split("|") for line in path.read_text().splitlines() if line.startswith("| ")]
    names, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


def publish(text: str, results: Path | None) -> None:
    """Print the text, and keep it in a file where one is named."""
    print(text)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(text + "\n")
