"""Checks for the tests of `mpitune.devices.selfcheck`, each with a fault of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def examine(how: str, folder: str = "") -> Iterator[tuple[str, str]]:
    """Two things are tried; what happens between them is `how`. Each start leaves a line in folder/starts."""
    if folder:
        with open(Path(folder) / "starts", "a") as file:
            file.write(f"{os.getpid()}\n")
    print("words of a library")
    os.write(1, b"words of a C library\n")
    yield "first", ""
    if how == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (Path(folder) / "child").write_text(str(child.pid))
        time.sleep(600)
    elif how == "crash":
        ctypes.string_at(8)
    elif how == "raise":
        raise RuntimeError("an illegal memory access was encountered")
    elif how == "slow":
        time.sleep(1)
    yield "second", "differs by 3e-2" if how == "wrong" else ""
