"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when the thread of process `parent` that started this one ends, for whatever reason (Linux).

    The kernel does it, so it also holds while this process is inside a library that never returns.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)
