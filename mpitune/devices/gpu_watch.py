"""What the driver says of GPUs while workers use them: its errors (Xid), and whether it answers at all.

A process of its own asks NVML, since the kernel never returns to a process that asks a driver that hangs:

    python -m mpitune.devices.gpu_watch PARENT ENTRY...     ENTRY: of CUDA_VISIBLE_DEVICES

prints a line "ENTRY answers" for each GPU every ASK_S seconds, and "ENTRY Xid NUMBER" or "ENTRY is lost" if that
happens. Without NVML it ends at once, and no GPU is watched.
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

from mpitune.ranks.process import begin_helper

log = logging.getLogger(__name__)

ASK_S = 2.0
SILENT_S = 6.0  # a GPU counts as silent when it has not answered for so long
HANG_S = 30.0  # a worker hangs when it gives no result for so long after an error of its GPU, or while that is silent
# Errors of programs, which CUDA tells to the worker itself (NVIDIA's device plugin for Kubernetes passes over the same
# ones), and the records of memory errors that were corrected.
NO_FAULTS = {13, 31, 43, 45, 68, 109} | {63, 92}
ANSWERS = "answers"
_XID_EVENT, _TIMEOUT, _LOST = 0x8, 10, 15  # as in nvml.h


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


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Nvml:
    """NVIDIA's management library, by ctypes. Raises OSError where it is absent or does not work."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._events = ctypes.c_void_p()
        if self._library.nvmlInit_v2() or self._library.nvmlEventSetCreate(ctypes.byref(self._events)):
            raise OSError("NVML does not start")

    def device(self, entry: str) -> ctypes.c_void_p | None:
        """The handle of an entry of CUDA_VISIBLE_DEVICES; None where NVML does not know it."""
        device = ctypes.c_void_p()
        if entry.isdecimal():
            code = self._library.nvmlDeviceGetHandleByIndex_v2(int(entry), ctypes.byref(device))
        else:
            code = self._library.nvmlDeviceGetHandleByUUID(entry.encode(), ctypes.byref(device))
        return None if code else device

    def listen(self, device: ctypes.c_void_p) -> int | None:
        """Ask to be told of its errors, for a slice those of its GPU. Returns the handle that its events will have."""
        whole = ctypes.c_void_p()
        if self._library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, ctypes.byref(whole)):
            whole = device  # it is no slice
        self._library.nvmlDeviceRegisterEvents(whole, ctypes.c_ulonglong(_XID_EVENT), self._events)
        return whole.value

    def heard(self, seconds: float) -> tuple[int | None, int] | None:
        """Handle and number of the next error; None where there was none in that time."""
        event = _Event()
        code = self._library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), ctypes.c_uint(int(1e3 * seconds)))
        if code == 0:
            return (event.device, event.data) if event.kind == _XID_EVENT else None
        if code != _TIMEOUT:
            time.sleep(seconds)
        return None

    def asked(self, device: ctypes.c_void_p) -> str:
        """The state of a GPU, found by asking for its memory: ANSWERS, "is lost", or "" if unknown."""
        code = self._library.nvmlDeviceGetMemoryInfo(device, (ctypes.c_ulonglong * 3)())
        return {0: ANSWERS, _LOST: "is lost"}.get(code, "")


def main(parent: str, *entries: str) -> None:
    """Watch until the parent ends."""
    begin_helper(int(parent))
    try:
        nvml = _Nvml()
    except OSError:
        return
    devices = {entry: device for entry in entries if (device := nvml.device(entry)) is not None}
    handles = {entry: nvml.listen(device) for entry, device in devices.items()}
    last: dict[str, str] = {}
    while devices:
        for entry, device in devices.items():
            said = nvml.asked(device)
            if said and (said == ANSWERS or last.get(entry) != said):
                print(entry, said, flush=True)
            last[entry] = said
        if (event := nvml.heard(ASK_S)) is not None:
            for entry in (entry for entry, handle in handles.items() if handle == event[0]):
                print(entry, "Xid", event[1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
