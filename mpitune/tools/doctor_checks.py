"""Checks of `python -m mpitune doctor` beyond those of every start: hosts, GPUs, clocks, MPI, folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpitune.devices.choose import CPU, Device, environment, mps_answers, nvidia_smi
from mpitune.engine import preflight
from mpitune.engine.preflight import Finding, Node
from mpitune.errors import UsageError
from mpitune.locks import NoLocks, try_lock
from mpitune.ranks.launch import Launch
from mpitune.storage.history import read_journal
from mpitune.storage.journal import is_running, no_locks

GIB, MIB = 1 << 30, 1 << 20
WORKER_BYTES = GIB  # a process with PyTorch or cuML, before it has any data
SMALL_DISK = GIB
SKEW_S = 1.0
PROBE_S = 180.0  # libraries on a slow network file system take minutes


@dataclass(frozen=True)
class GpuInfo:
    """A GPU as the driver tells of it; memory in bytes."""

    name: str
    uuid: str
    total: int
    free: int


@dataclass(frozen=True)
class Examined:
    """The findings of one rank: its host, its GPUs by device name, and the problems there."""

    node: Node
    gpus: dict[str, GpuInfo] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)


def check_sharing(host: str, devices: Sequence[Device]) -> Iterator[Finding]:
    """Devices for several workers whose mode admits only one, which may be the server of MPS."""
    listing = nvidia_smi("--query-gpu=uuid,mig.mode.current,compute_mode", "--format=csv,noheader") or ""
    modes = dict(row.split(", ")[::2] for row in listing.splitlines() if row.count(", ") == 2)
    for device, n in Counter(devices).items():
        if n > 1 and modes.get(device.visible) == "Exclusive_Process" and not mps_answers():
            yield Finding(
                f"{host}: {n} workers are to share {device.name}, whose mode is EXCLUSIVE_PROCESS: give it once, "
                "or start MPS by nvidia-cuda-mps-control -d, or nvidia-smi --compute-mode=DEFAULT",
                fatal=True,
            )


def check_ranks(examined: Sequence[Examined]) -> Iterator[Finding]:
    """Problems of each host, from what each rank has found on its host."""
    of_host: dict[str, list[Examined]] = defaultdict(list)
    for seen in examined:
        yield from seen.problems
        of_host[seen.node.host].append(seen)
    for host, there in of_host.items():
        yield from _host_problems(host, [seen.node for seen in there])
        yield from _gpu_problems(host, there)


def _host_problems(host: str, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Problems with cores and memory among the ranks of one host."""
    n_workers = sum(len(node.places) for node in nodes)
    wanted, cores = sum(map(preflight.cores_wanted, nodes)), max(node.cores for node in nodes)
    if wanted > cores and not any(node.pinned for node in nodes):
        yield Finding(
            f"{host}: {n_workers} workers x {nodes[0].threads} threads would wait for each other on {cores} cores: "
            "give fewer --workers or --threads"
        )
    memory = min(node.memory for node in nodes)
    if 0 < memory < n_workers * WORKER_BYTES:
        yield Finding(
            f"{host}: {memory / GIB:.1f} GiB of memory for {n_workers} workers, each of which needs about "
            f"{WORKER_BYTES / GIB:g}: give fewer --workers, or ask the scheduler for more memory"
        )


def _gpu_problems(host: str, there: Sequence[Examined]) -> Iterator[Finding]:
    """GPUs of a host that several ranks use, or whose memory is taken."""
    ranks_of: dict[str, set[int]] = defaultdict(set)
    gpus = {}
    for seen in there:
        for name, gpu in seen.gpus.items():
            ranks_of[gpu.uuid].add(seen.node.places[0].rank)
            gpus[gpu.uuid] = (name, gpu)
    for uuid, (name, gpu) in gpus.items():
        if len(ranks := sorted(ranks_of[uuid])) > 1:
            yield Finding(
                f"{host}: ranks {', '.join(map(str, ranks))} share GPU-{uuid}: start one rank per node, or give each "
                "rank GPUs of its own (srun --gpus-per-task, or CUDA_VISIBLE_DEVICES)"
            )
        if gpu.free < gpu.total / 2:
            taken = f"{(gpu.total - gpu.free) / GIB:.1f} of {gpu.total / GIB:.1f} GiB"
            yield Finding(f"{host}: other processes hold {taken} of {name}: nvidia-smi names them")


def check_clocks(hosts: Sequence[str], clocks: Sequence[float], *, before: float, after: float) -> Iterator[Finding]:
    """Clocks that are wrong. All hosts read theirs, in seconds, while rank 0's clock went from `before` to `after`."""
    for host, clock in dict(zip(hosts, clocks, strict=True)).items():
        skew = clock - min(max(clock, before), after)
        if abs(skew) > SKEW_S:
            yield Finding(
                f"{host}: its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} rank 0's, so its logs "
                "mislead: let chrony or ntpd set it"
            )


def check_mpi(launch: Launch, environ: Mapping[str, str]) -> tuple[str, list[Finding]]:
    """Which MPI library mpi4py found, and whether the launcher on PATH belongs to it."""
    with environment(CPU, 1):
        done = subprocess.run(
            [sys.executable, "-m", "mpitune.ranks.mpi"], capture_output=True, text=True, timeout=PROBE_S
        )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        text = f"MPI cannot be used ({reason}), so only one process can run: install mpi4py, and the MPI of this site"
        return "none", [Finding(text)]
    library = " ".join(done.stdout.split())
    described = f"{library}, {launch.size} rank{'s' * (launch.size > 1)} started by {launch.launcher or 'a shell'}"
    launcher = shutil.which("mpirun", path=environ.get("PATH"))
    if launcher is None or launch.launcher:
        return described, []  # where ranks were started they have found each other
    said = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=PROBE_S).stdout
    numbers = [re.search(r"\d+\.\d+(\.\d+)*", text) for text in (library, said)]
    if numbers[0] and numbers[1] and numbers[0][0] != numbers[1][0]:
        text = f"mpi4py uses {library}, but {launcher} is of version {numbers[1][0]}: put the mpirun of that MPI first"
        return described, [Finding(f"{text} on PATH")]
    return described, []


def check_results(folder: Path, joins: bool = False) -> tuple[str, list[Finding]]:
    """The file system of the results folder, and whether it can keep a journal. Leaves nothing behind.

    joins: whether the study is one that jobs join, which needs no locks.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"a line of a journal\n")
            file.flush()
            os.fsync(file.fileno())
            if not joins:
                try_lock(file.fileno())
        status = os.statvfs(there)
    except OSError as error:
        text = f"results folder {folder} cannot be written ({error.strerror}): give another one with --results"
        if isinstance(error, NoLocks):
            text = no_locks(folder, error)
        return str(folder), [Finding(text, fatal=True)]
    kind, free = file_system(there), status.f_bavail * status.f_frsize
    problems = []
    if kind.startswith("nfs"):
        text = f"results folder {folder} is on {kind}, which each result is sent to: for trials of milliseconds a "
        problems.append(Finding(text + "--results folder on a local disk is faster"))
    if kind in ("tmpfs", "ramfs"):
        text = f"results folder {folder} is in memory ({kind}) and lost with the machine: give one on a disk"
        problems.append(Finding(text))
    if free < SMALL_DISK:
        text = f"results folder {folder} has {free / MIB:.0f} MiB left: free some, or give another one with --results"
        problems.append(Finding(text))
    described = f"{folder} ({kind}, {free / GIB:.0f} GiB free)"
    try:
        if (history := read_journal(folder)) is not None:
            described += f", a study of {history.header['settings']['experiment']}: {len(history.results)} trials known"
            if is_running(folder) and not (joins and history.jobs):
                text = f"another job is writing to {folder}: wait for it, or give another --results folder"
                problems.append(Finding(text, fatal=True))
    except UsageError as error:
        problems.append(Finding(str(error), fatal=True))
    return described, problems


def file_system(path: Path) -> str:
    """The kind of file system that `path` is on, such as tmpfs or nfs, by coreutils' name for it."""
    return (
        subprocess.run(["stat", "-f", "-c", "%T", "--", path], capture_output=True, text=True).stdout.strip()
        or "unknown"
    )
