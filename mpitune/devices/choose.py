"""Which devices this rank's slots use. Nothing here imports a GPU library."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mpitune._jit.limits import cores_allowed
from mpitune._jit.limits import free_memory as free_memory
from mpitune.errors import UsageError, typed
from mpitune.folders import safe_caches
from mpitune.options import of_job
from mpitune.processes.fork_server import THREADS
from mpitune.processes.process import WORKERS_HERE


@dataclass(frozen=True)
class Device:
    """The device of one slot."""

    name: str  # as shown in tables, "cpu" or "cuda:3" or "cuda:GPU-..."
    visible: str  # the value of CUDA_VISIBLE_DEVICES in the slot's worker; "" for a CPU slot

    @property
    def kind(self) -> str:
        """The kind that objectives are told, "cpu" or "cuda"."""
        return "cpu" if self.visible == "" else "cuda"


CPU = Device("cpu", "")
# A worker that imports MPI by accident must not take itself for a rank of this job.
_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "I_MPI_")
DEVICE_FILES = "/dev/nvidia[0-9]*"
ASK_S = 30.0  # within which nvidia-smi must answer
HOSTS = "SEARCH_HOSTS"  # set for each batch: the nodes that it has to itself, with commas between


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = cores_allowed()
    return cores if allowed is None else max(1, min(cores, int(allowed)))


def workers_here() -> int:
    """The number of workers of this node, asked in a worker."""
    return int(os.environ.get(WORKERS_HERE, "1"))


def set_hosts(hosts: Sequence[str]) -> None:
    """Say in the process that evaluates it which nodes the batch that follows has to itself."""
    if hosts:
        os.environ[HOSTS] = ",".join(hosts)
    else:
        os.environ.pop(HOSTS, None)


def hosts_here() -> tuple[str, ...]:
    """The nodes that the trial of this worker has to itself, this one first; none where it has devices of one node."""
    return tuple(filter(None, os.environ.get(HOSTS, "").split(",")))


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that CUDA would show to this process, as entries for CUDA_VISIBLE_DEVICES.

    An entry may be an index, a GPU- or a MIG- name; they are never interpreted. Without the variable nvidia-smi's list
    is taken, by name: its indices are not those of CUDA, which counts the fastest first.
    """
    return _visible(environ)[0]


def why_no_gpu(environ: Mapping[str, str] = os.environ) -> str:
    """Why `visible_gpus` is empty, in brackets, if that is known; "" for a machine without GPUs."""
    why = _visible(environ)[1]
    return f" ({why})" if why else ""


def _visible(environ: Mapping[str, str]) -> tuple[list[str], str]:
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return _listed_gpus()
    entries = [entry.strip() for entry in listed.split(",")]
    for position, entry in enumerate(entries):
        if entry in ("", "-1", "NoDevFiles"):
            entries = entries[:position]  # CUDA ignores what follows an invalid entry
            break
    if not entries:
        return [], f"CUDA_VISIBLE_DEVICES is {listed!r}"
    there, why = _listed_gpus()
    return (entries, "") if there else ([], why or f"CUDA_VISIBLE_DEVICES is {listed!r}, but there is no driver")


def _listed_gpus() -> tuple[list[str], str]:
    """GPUs by name, MIG slices in place of the GPU they are cut from; and why there is none, where that is known."""
    listing = nvidia_smi("-L")
    if listing is None:
        fix = "apptainer needs --nv, docker --gpus all; after an update of the driver restart the machine"
        return [], f"GPUs are in /dev, but nvidia-smi is not here or fails: {fix}" if glob.glob(DEVICE_FILES) else ""
    modes = nvidia_smi("--query-gpu=uuid,mig.mode.current,compute_mode", "--format=csv,noheader") or ""
    unusable = {}
    for row in modes.splitlines():
        uuid, mig, compute, *_ = [*row.split(", "), "", ""]
        if compute == "Prohibited":
            unusable[uuid] = "is in compute mode Prohibited: nvidia-smi --compute-mode=DEFAULT allows programs"
        elif mig == "Enabled":
            unusable[uuid] = "is in MIG mode and has no slice: make some with nvidia-smi mig -cgi, or end that mode"
    gpus: list[str] = []
    why = ""
    for block in re.split(r"^(?=GPU \d+:)", listing, flags=re.MULTILINE):
        slices = re.findall(r"UUID: (MIG-[^)\s]+)", block)
        whole = re.findall(r"UUID: (GPU-[^)\s]+)", block)
        why = next((f"{uuid} {unusable[uuid]}" for uuid in whole if uuid in unusable and not slices), why)
        gpus += slices or [uuid for uuid in whole if uuid not in unusable]
    return gpus, why


def nvidia_smi(*arguments: str) -> str | None:
    """The output of nvidia-smi; None where it is absent or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], input="", capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def choose(
    gpu: str | None, workers: int | None, threads: int, list_gpus: Callable[[], list[str]] = visible_gpus
) -> tuple[list[Device], str]:
    """The devices of this rank's slots, one for each, and a line to tell the user ("" for nothing).

    See `RunOptions` for what `gpu`, `workers` and `threads` mean.

    Raises:
        UsageError: a GPU that was asked for is not there.
    """
    job = of_job()
    if gpu is None and (workers is None or job.get("gpu") == "none"):
        gpu, workers = job.get("gpu"), workers or job.get("workers")
    cpus = [CPU] * (workers or max(1, usable_cores() // threads))
    if gpu == "none":
        return cpus, ""
    if workers is not None:
        fix = f"add {typed('gpu', 'none')} (two workers on a GPU: {typed('gpu', '0,0')})"
        raise UsageError(f"{typed('workers', workers)} is the number of CPU workers: {fix}")
    gpus = list_gpus()
    if gpu is None:
        if not gpus:
            workers_ = f"{len(cpus)} CPU worker{'s' * (len(cpus) > 1)}"
            return cpus, f"no GPU is visible{why_no_gpu()}: using {workers_} ({typed('gpu', 'none')} hides this line)"
        return [_device(gpus[0])], ""
    if gpu == "all":
        if not gpus:
            raise _no_gpu("all")
        return [_device(entry) for entry in gpus], ""
    return [_device(_entry(part.strip(), gpus)) for part in gpu.split(",")], ""


def joined(devices: Sequence[Device]) -> Device:
    """Several devices of a node as one, for a worker that uses all of them."""
    if len(devices) == 1:
        return devices[0]
    visible = ",".join(filter(None, (device.visible for device in devices)))
    return Device("+".join(device.name for device in devices), visible)


def _entry(part: str, gpus: list[str]) -> str:
    if part.isascii() and part.isdigit():
        if int(part) < len(gpus):
            return gpus[int(part)]
        if not gpus:
            raise _no_gpu(part)
        fix = f"give positions from 0 to {len(gpus) - 1}"
        raise UsageError(f"{typed('gpu', part)}, but {len(gpus)} are visible: {fix}")
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", part):
        return part
    raise UsageError(f"{typed('gpu', part)}: give positions such as 0,1, names such as GPU-..., all, or none")


def _no_gpu(gpu: str) -> UsageError:
    fix = f"give {typed('gpu', 'none')}, or check CUDA_VISIBLE_DEVICES"
    return UsageError(f"{typed('gpu', gpu)}, but no GPU is visible{why_no_gpu()}: {fix}")


def _device(entry: str) -> Device:
    return Device(f"cuda:{entry}", entry)


_environ = threading.RLock()  # held while it is that of a worker: searches of several threads start workers


@contextmanager
def environment(device: Device, threads: int, workers: int = 1) -> Iterator[None]:
    """The environment of a worker: its device, its threads, the number of workers here, safe caches, no launcher."""
    with _environ, safe_caches():  # restores all
        os.environ["CUDA_VISIBLE_DEVICES"] = device.visible
        os.environ[WORKERS_HERE] = str(workers)
        os.environ.update(dict.fromkeys(THREADS.values(), str(threads)))
        # PyTorch's large tensors on huge pages: a step that allocates them takes a third less time.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        for name in list(os.environ):
            if name.startswith(_LAUNCHER_PREFIXES):
                del os.environ[name]
        yield
