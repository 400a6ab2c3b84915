"""Problems with the GPUs of a host: how they are shared, and which processes are left on them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpitune.devices.devices import Device, nvidia_smi
from mpitune.engine.preflight import Finding
from mpitune.errors import printable

# Fixes for what a library or the driver says, by words in it.
ADVICE = {
    "busy or unavailable": "another process has it, in EXCLUSIVE_PROCESS mode: end that, or nvidia-smi "
    "--compute-mode=DEFAULT",
    "driver combination": "the driver was updated: restart the machine",
    "version mismatch": "the driver was updated: restart the machine",
    "driver": "install the build that fits the driver",
    "no kernel image": "install a build for this GPU",
    "libnvrtc": "put the folder of NVRTC on LD_LIBRARY_PATH",
    "cannot open shared object": "install the build that fits this CUDA, or put its folder on LD_LIBRARY_PATH",
}


def advice(error: str, otherwise: str) -> str:
    """The fix for an error."""
    return next((fix for words, fix in ADVICE.items() if words in error), otherwise)


def check_sharing(host: str, devices: Sequence[Device]) -> Iterator[Finding]:
    """Devices for several workers whose mode admits only one."""
    listing = nvidia_smi("--query-gpu=uuid,mig.mode.current,compute_mode", "--format=csv,noheader") or ""
    modes = dict(row.split(", ")[::2] for row in listing.splitlines() if row.count(", ") == 2)
    for device, n in Counter(devices).items():
        if n > 1 and modes.get(device.visible) == "Exclusive_Process":
            yield Finding(
                f"{host}: {n} workers are to share {device.name}, whose mode is EXCLUSIVE_PROCESS: give it once, or "
                "nvidia-smi --compute-mode=DEFAULT",
                fatal=True,
            )


def leftovers(host: str) -> Iterator[Finding]:
    """Processes of this user that hold memory of a GPU and have lost the job that they belonged to.

    A worker has a parent as long as its job runs. Nothing is ended here.
    """
    listing = nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_gpu_memory", "--format=csv,noheader,nounits") or ""
    for row in listing.splitlines():
        pid, uuid, mib, *_ = [*row.split(", "), "", ""]
        if pid.isdigit() and _is_orphan(int(pid)):
            yield Finding(
                f"{host}: process {pid} of yours holds {mib} MiB of {uuid} and belongs to no running job (since "
                f"{_started(int(pid))}: {_command(int(pid))}): `kill {pid}` ends it, `kill -9 {pid}` if it does not"
            )


def _is_orphan(pid: int) -> bool:
    """Whether it is this user's, and its parent has gone: the system's first process looks after it."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        name = Path(f"/proc/{parent}/comm").read_text().strip()
    except (OSError, ValueError, IndexError):
        return False  # it has just ended, or is in another namespace
    return name == "systemd" or (parent == 1 and not name.startswith("python"))


def _started(pid: int) -> str:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    return time.strftime("%F %T", time.localtime(booted + ticks / os.sysconf("SC_CLK_TCK")))


def _command(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return printable(" ".join(words.split())[:100])
