"""Measured rates of devices: `python -m mpitune doctor --benchmark` keeps them, programs choose by them.

There is a file for each model of device in the user's own cache folder, `rates-MODEL.json`, which can be sent in
(docs/gpus.md):

    {"device": MODEL, "kind": "cpu" or "cuda", "time": ..., "versions": {...}, "programs": {PROGRAM: RATES}}

What RATES are is the program's own affair.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpitune._jit.folders import locked, private_folder
from mpitune.storage.files import written_whole
from mpitune.storage.provenance import versions

LIBRARIES = ("numpy", "numba", "torch", "triton")


class Budget:
    """Time to measure in, until a moment of `time.monotonic`, which all processes of a machine share."""

    def __init__(self, deadline: float):
        self._deadline = deadline
        self._begin = time.monotonic(), time.process_time()

    def suffices(self, seconds: float) -> bool:
        """Whether work that takes so long on a core of its own would end in time, beside what else the machine does."""
        now = time.monotonic()
        slowness = (now - self._begin[0]) / max(time.process_time() - self._begin[1], 1e-3)
        return now + seconds * min(max(slowness, 1.0), 10.0) < self._deadline


NO_TIME = "no time was left"  # said in the place of what the budget did not suffice for


def keep(device: str, kind: str, programs: Mapping[str, Any]) -> Path:
    """Keep the rates of this model of device; other programs' rates stay. Raises OSError.

    Args:
        device: the model, as its driver or the kernel says.
        kind: "cpu" or "cuda".
        programs: the rates of each program, as JSON.

    Returns:
        The file.
    """
    path = private_folder() / f"rates-{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-') or 'unknown'}.json"
    with locked(path.with_suffix(".lock")):
        earlier = _read(path).get("programs", {})
        content = {
            "device": device, "kind": kind, "time": time.strftime("%FT%T%z"), "versions": versions(LIBRARIES),
            "programs": {**earlier, **programs},
        }  # fmt: skip
        with written_whole(path, "w") as file:
            json.dump(content, file, indent=2)
    return path


def kept(program: str, kind: str) -> dict[str, Any]:
    """The rates of a program on each model of a kind that was measured, by the model; {} where there is no folder."""
    found = {}
    with suppress(OSError):
        for path in sorted(private_folder().glob("rates-*.json")):
            content = _read(path)
            if content.get("kind") == kind and program in content["programs"]:
                found[content["device"]] = content["programs"][program]
    return found


def _read(path: Path) -> dict[str, Any]:
    """The content of the file; {} where there is none, or it has another form."""
    try:
        content = json.loads(path.read_text())
        if isinstance(content["device"], str) and isinstance(content["programs"], dict):
            return dict(content)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return {}
