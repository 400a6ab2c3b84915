"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from common.errors import UsageError

_PR_SET_PDEATHSIG = 1


def require_linux() -> None:
    """Raises UsageError elsewhere: nothing would end with its parent, nor could memory without a name be shared."""
    if sys.platform != "linux":
        raise UsageError(
            f"this runs on Linux (x86-64 or aarch64), not on {sys.platform}: use a container or a virtual machine"
        )


def die_with(parent: int) -> None:
    """Be killed when the thread of process `parent` that started this one ends, for whatever reason.

    The kernel does it, so it also holds while this process is inside a library that never returns.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)
