"""Checks of every start: each rank surveys its host, rank 0 compares them. They take milliseconds.

`python -m mpitune doctor` looks at more.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpitune.devices.choose import CPU, free_memory, usable_cores
from mpitune.errors import UsageError, or_typed, typed
from mpitune.options import RunOptions
from mpitune.ranks.transport import Transport
from mpitune.trial import Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """A problem and its fix, on one line."""

    text: str
    fatal: bool = False  # the run could not work

    def __str__(self) -> str:
        return f"{'error' if self.fatal else 'warning'}: {self.text}"


@dataclass(frozen=True)
class Node:
    """One rank's host: memory in bytes, 0 if unknown."""

    host: str
    places: tuple[Place, ...]  # of its slots
    threads: int  # of each slot
    cores: int  # that this rank may use
    cores_there: int  # that the machine has
    pinned: bool  # bound to a single core, by a launcher rather than by a container's quota
    memory: int  # available


def agree_on_versions(transport: Transport, host: str, versions: Mapping[str, str]) -> None:
    """Begin a job. Every rank calls it first: ranks of any two versions understand these plain texts.

    Raises:
        UsageError: on all ranks, where `versions`, on which results depend, differ.
    """
    if mixed := transport.broadcast(mixed_versions(transport.gather((host, dict(versions))))):
        raise UsageError(mixed)


def survey(places: Sequence[Place], threads: int) -> Node:
    """The host of this rank, which has slots at these places. Takes about a millisecond."""
    cores_there = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores_there
    return Node(
        host=socket.gethostname(),
        places=tuple(places),
        threads=threads,
        cores=usable_cores(),
        cores_there=cores_there,
        pinned=affinity == 1 < cores_there,
        memory=free_memory(),
    )


def widen_binding(transport: Transport, launcher: str) -> str:
    """Use all cores of the launcher's daemon, if that bound this rank to fewer, and no other rank runs on this host.

    Open MPI binds each rank to one core, for programs that have as many ranks as cores. Its daemon runs on the job's
    part of the host, so no other job's cores are taken. A binding by srun stays: its daemon may use the whole host.

    Returns what was done, "" for nothing. To be called by all ranks, before they look at their cores.
    """
    hosts = transport.broadcast(transport.gather(socket.gethostname()))
    if launcher not in ("mpirun", "prterun", "mpiexec") or hosts.count(socket.gethostname()) > 1:
        return ""
    try:
        own, daemon = os.sched_getaffinity(0), os.sched_getaffinity(os.getppid())
        if not own < daemon:
            return ""
        os.sched_setaffinity(0, daemon)
    except OSError:
        return ""
    return f"{launcher} had bound this rank to {len(own)} of its own {len(daemon)} cores: all are used"


def problems(nodes: Sequence[Node], options: RunOptions, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Problems of the layout of all ranks: shared hosts, unused ones, ranks bound to one core."""
    findings = []
    together: dict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        together[node.host].append(rank)
    for host, ranks in together.items():
        on_gpus = any(place.device != CPU.name for rank in ranks for place in nodes[rank].places)
        if len(ranks) > 1 and on_gpus:
            names = ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
            findings.append(Finding(
                f"ranks {names} are on one host, {host}, and would claim the same GPUs: start one rank per node "
                "(mpirun --map-by ppr:1:node, srun --ntasks-per-node 1)"
                f"{or_typed('gpu', 'none')}",
                fatal=True,
            ))  # fmt: skip
    nodes_of_job = environ.get("SLURM_JOB_NUM_NODES", "")
    n_allocated = int(nodes_of_job) if nodes_of_job.isdigit() else 0
    if n_allocated > len(together):
        job = f"Slurm's job {environ.get('SLURM_JOB_ID', '')}".rstrip()
        findings.append(Finding(
            f"{job} has {n_allocated} nodes, this run uses {len(together)}: start one rank on each with mpirun or srun"
            + (f" ({expect} refuses to run on fewer)" if (expect := typed("expect_nodes", n_allocated)) else "")
        ))  # fmt: skip
    # A rank has a CPU worker for each core that it sees, unless their number was given.
    on_cpu = [node for node in nodes if any(place.device == CPU.name for place in node.places)]
    unlimited = [] if options.workers else on_cpu
    pinned = [node for node in nodes if node.pinned and (cores_wanted(node) > 1 or node in unlimited)]
    if pinned:
        hosts = _a_few([node.host for node in pinned])
        findings.append(Finding(
            f"{hosts}: the rank and all its workers are bound to one of {pinned[0].cores_there} cores: "
            "give mpirun --bind-to none, or srun --cpus-per-task"
        ))  # fmt: skip
    return findings


def check(nodes: Sequence[Node], options: RunOptions) -> None:
    """Log the problems of a run that begins. Raises UsageError for the first that is fatal."""
    for problem in problems(nodes, options):
        if problem.fatal:
            raise UsageError(problem.text)
        log.warning(problem.text)


def cores_wanted(node: Node) -> int:
    """Cores that the slots of a rank would keep busy."""
    return len(node.places) * node.threads


def _a_few(hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def mixed_versions(hosts: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """The versions that differ among hosts, which host has which, and the fix; empty where nothing differs.

    Such as "hosts have different versions: torch 2.9.1 on a, b, 2.10.0 on c; ...".
    """
    different = []
    for name in dict.fromkeys(name for _, versions in hosts for name in versions):
        who: dict[str, list[str]] = defaultdict(list)
        for host, versions in hosts:
            who[versions.get(name, "missing")].append(host)
        if len(who) > 1:
            described = ", ".join(f"{version} on {_a_few(having)}" for version, having in who.items())
            different.append(f"{name} {described}")
    mixed = "; ".join(different)
    return f"hosts have different versions: {mixed}: install the same on all" if mixed else ""
