"""What the driver says of GPUs while workers use them: its errors (Xid), and whether it answers at all.

A process of its own asks NVML, since the kernel never returns to a process that asks a driver that hangs:

    python -m mpitune.devices.gpu_watch PARENT ENTRY...     ENTRY: of CUDA_VISIBLE_DEVICES

prints a line "ENTRY answers" for each GPU every ASK_S seconds, and "ENTRY Xid NUMBER" or "ENTRY is lost" if that
happens. Without NVML, or its module `pynvml` (nvidia-ml-py), it ends at once, and no GPU is watched.
"""

from __future__ import annotations

import ctypes
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
HANG_S = 30.0  # a worker hangs when it gives no result for so long after an error of its GPU, or while that is silent
# Errors of programs, which CUDA tells to the worker itself (NVIDIA's device plugin for Kubernetes passes over the same
# ones), and the records of memory errors that were corrected.
NO_FAULTS = {13, 31, 43, 45, 68, 109} | {63, 92}
ANSWERS = "answers"


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
        self._errors: dict[str, tuple[str, float]] = {}  # by entry: the last one, and when it was heard of
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
                continue
            log.warning("GPU %s: %s (dmesg tells more)", entry, said)
            if said.removeprefix("Xid ") not in map(str, NO_FAULTS):
                self._errors[entry] = (said, now)

    def fault(self, pid: int, visible: str, *, since: float, now: float) -> str:
        """Why a worker will never answer; "" if it may.

        Args:
            pid: of the worker.
            visible: its CUDA_VISIBLE_DEVICES.
            since: when it began its present work.
            now: as in `hear`.
        """
        entries = visible.split(",")
        for entry in entries:
            said, heard = self._errors.get(entry, ("", 0.0))
            if said and heard > since and now - heard > HANG_S:
                return f"no result within {HANG_S:g} s after its GPU {entry} reported: {said}"
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
        events = nvml.nvmlEventSetCreate()
    except Exception:  # the module or the library is absent, or does not work
        return
    devices, numbers, last = {}, {}, dict[str, str]()
    for entry in entries:
        with suppress(nvml.NVMLError):  # which does not know it
            by = nvml.nvmlDeviceGetHandleByIndex if entry.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
            devices[entry] = by(int(entry) if entry.isdecimal() else entry)
            numbers[entry] = _listen(nvml, devices[entry], events)
    while devices:
        for entry, device in devices.items():
            said = _asked(nvml, device)
            if said and (said == ANSWERS or last.get(entry) != said):
                print(entry, said, flush=True)
            last[entry] = said
        try:
            event = nvml.nvmlEventSetWait_v2(events, int(1e3 * ASK_S))
        except nvml.NVMLError_Timeout:
            continue
        except nvml.NVMLError:
            time.sleep(ASK_S)
            continue
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            for entry in (entry for entry, number in numbers.items() if number == _number(event.device)):
                print(entry, "Xid", event.eventData, flush=True)


def _listen(nvml: Any, device: Any, events: Any) -> int | None:
    """Ask to be told of a GPU's errors, for a slice those of its GPU. Returns the number that its events will have."""
    with suppress(nvml.NVMLError):  # it is no slice
        device = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    with suppress(nvml.NVMLError):
        nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
    return _number(device)


def _number(device: Any) -> int | None:
    """Of a handle, which is a pointer, and so does not equal another one to the same GPU."""
    return ctypes.cast(device, ctypes.c_void_p).value


def _asked(nvml: Any, device: Any) -> str:
    """The state of a GPU, found by asking for its memory: ANSWERS, "is lost", or "" if unknown."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(device)
    except nvml.NVMLError_GpuIsLost:
        return "is lost"
    except nvml.NVMLError:
        return ""
    return ANSWERS


if __name__ == "__main__":
    main(*sys.argv[1:])
