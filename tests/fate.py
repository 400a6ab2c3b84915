"""What befalls a trial of a program of tests/contract.py. Imports nothing large, as each worker imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FAILS, KILLS = 2, 3  # the number of a trial that always fails, and of one that kills its worker once


def befalls(number: int) -> None:
    """Called by trial `number`. It waits while its number is not below the one that the file "hold" has."""
    fate = Path(os.environ["FATE"])
    while number >= int((fate / "hold").read_text() or 0):
        time.sleep(0.02)
    if number == FAILS:
        raise ValueError("on purpose")
    if number == KILLS:
        try:
            (fate / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
