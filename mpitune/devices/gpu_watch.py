"""What the driver says of GPUs while workers use them: whether they answer at all, and are still there.

A process of its own asks NVML, since the kernel never returns to a process that asks a driver that hangs:

    python -m mpitune.devices.gpu_watch PARENT ENTRY...     ENTRY: of CUDA_VISIBLE_DEVICES

prints a line "ENTRY answers" for each GPU every ASK_S seconds, and "ENTRY is lost" if it has fallen off the bus.
Without NVML, or its module `pynvml` (nvidia-ml-py), it ends at once, and no GPU is watched.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpitune.ranks.process import begin_helper

log = logging.getLogger(__name__)

ASK_S = 2.0
SILENT_S = 6.0  # a GPU counts as silent when it has not answered for so long
HANG_S = 30.0  # a worker hangs when it gives no result for so long after its GPU was lost, or while that is silent
ANSWERS, LOST = "answers", "is lost"


class GpuWatch:
    """The process that asks, and what it said. Times are of the caller's clock, in seconds."""

    def __init__(self, entries: Iterable[str]):
        words = [sys.executable, "-m", "mpitune.devices.gpu_watch", str(os.getpid()), *dict.fromkeys(entries)]
        found_here = str(Path(__file__).parents[2])  # this script may have been started from any folder
        environ = {**os.environ, "PYTHONPATH": f"{found_here}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self._process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._partial = ""
        self._answered: dict[str, float] = {}
        self._lost: dict[str, float] = {}  # by entry: when that was heard of
        self._stuck: dict[int, float] = {}  # processes in the kernel, and since when

    def hear(self, now: float) -> None:
        """Read its answers."""
        try:
            text = os.read(self._output.fileno(), 1 << 16).decode()
        except (BlockingIOError, ValueError):  # nothing new; closed
            return
        *lines, self._partial = (self._partial + text).split("\n")
        for entry, _, said in (line.partition(" ") for line in lines):
            if said == ANSWERS:
                self._answered[entry] = now
            else:
                self._lost[entry] = now
                log.warning("GPU %s %s (dmesg tells more)", entry, said)

    def fault(self, pid: int, visible: str, *, since: float, now: float) -> str:
        """Why a worker will never answer; "" if it may.

        `visible`: its CUDA_VISIBLE_DEVICES; `since`: when it began its present work.
        """
        entries = visible.split(",")
        for entry in entries:
            if since < self._lost.get(entry, since) < now - HANG_S:
                return f"no result within {HANG_S:g} s after its GPU {entry} was lost"
        silent = [entry for entry in entries if now - self._answered.get(entry, now) > SILENT_S]
        if not silent or not in_kernel(pid):
            self._stuck.pop(pid, None)
        elif now - self._stuck.setdefault(pid, now) > HANG_S:
            return f"in the kernel (state D) for {HANG_S:g} s, while its GPU {silent[0]} did not answer"
        return ""

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._output.close()
        with suppress(subprocess.TimeoutExpired):  # it may be in the kernel for ever
            self._process.wait(0.2)


def in_kernel(pid: int) -> bool:
    """Whether a thread of a process waits in the kernel, where signals do not reach it (state D)."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(") ")[2].startswith("D"):
                return True
    return False


def main(parent: str, *entries: str) -> None:
    """Watch until the parent ends."""
    begin_helper(int(parent))
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # the module or the library is absent, or does not work
        return
    devices, last = {}, dict[str, str]()
    for entry in entries:
        with suppress(nvml.NVMLError):  # which does not know it
            by = nvml.nvmlDeviceGetHandleByIndex if entry.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
            devices[entry] = by(int(entry) if entry.isdecimal() else entry)
    while devices:
        for entry, device in devices.items():
            said = _asked(nvml, device)
            if said and (said == ANSWERS or last.get(entry) != said):
                print(entry, said, flush=True)
            last[entry] = said
        time.sleep(ASK_S)


def _asked(nvml: Any, device: Any) -> str:
    """The state of a GPU, found by asking for its memory: ANSWERS, LOST, or "" if unknown."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(device)
    except nvml.NVMLError_GpuIsLost:
        return LOST
    except nvml.NVMLError:
        return ""
    return ANSWERS


if __name__ == "__main__":
    main(*sys.argv[1:])
