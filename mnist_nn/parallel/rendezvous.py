"""How the processes of one training find each other.

    our launcher         ->  rank and size           torchrun, a PyTorchJob, mpirun, mpiexec, srun, or a shell
    rank 0               ->  a store at host:port    TCPStore; told by MPI, by MASTER_ADDR, or by Slurm's node list
    all, in the store    ->  who is on which host    and so nodes, local ranks, and how many processes each one is

A launched process that has its host for itself may stand for several processes, one for each GPU: it then starts
them, and does nothing but wait for them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from mpitune.engine.preflight import mixed_versions
from mpitune.errors import UsageError
from mpitune.processes.process import die_with
from mpitune.ranks.launch import Launch, connect, launched
from mpitune.ranks.transport import Transport

JOIN_SECONDS = 600.0  # a PyTorchJob's pods, or the nodes of a cloud, may start minutes apart
LOOPBACK = "127.0.0.1"
FIRST_PORT, N_PORTS = 20_000, 10_000  # below the range from which Linux takes the ports of outgoing connections


class Address(NamedTuple):
    """Address of rank 0's store; for port 0 rank 0 chooses one and tells the others."""

    host: str
    port: int


@dataclass(frozen=True)
class RankInfo:
    """One process of the training, of `size` on `nodes` hosts; `local_rank` of the `local_size` on its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int


@dataclass(frozen=True)
class Rendezvous:
    """The store that all launched processes share, and the transport that told where it is, if one did.

    `store` is kept by its owner until all have left. `run` names this attempt, when torchrun starts processes again.
    """

    launch: Launch
    address: Address
    store: Any
    run: str
    transport: Transport | None


def launch_info(environ: Mapping[str, str] = os.environ) -> Launch:
    """The launcher of this process, by the variables of torchrun and PyTorchJob, then by those of MPI and Slurm."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if rank.isdigit() and size.isdigit() and int(rank) < int(size):
        return Launch("torch", int(size), int(rank))
    return launched(environ)


def known_address(me: Launch, environ: Mapping[str, str] = os.environ) -> Address | None:
    """Address of rank 0's store by the environment; None where only rank 0 can tell it.

    Slurm puts task 0 on the first node of a step, and tells no port: all derive the same one from the number of the
    job and its step.
    """
    if me.size == 1 and "MASTER_ADDR" not in environ:
        return Address(LOOPBACK, 0)
    digits = environ.get("MASTER_PORT", "")
    if "MASTER_ADDR" in environ:
        return Address(environ["MASTER_ADDR"], int(digits) if digits.isdigit() else 29_500)
    if me.launcher == "srun" and (nodes := environ.get("SLURM_STEP_NODELIST")):
        job = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        return Address(first_node(nodes), int(digits) if digits.isdigit() else derived_port(job))
    return None


def first_node(nodes: str) -> str:
    """The first name of Slurm's list of nodes: "node[08-11,13],gpu1" is node08."""
    prefix, _, rest = nodes.partition("[")
    return prefix.split(",")[0] if "," in prefix or not rest else prefix + re.split(r"[-,\]]", rest)[0]


def derived_port(job: str) -> int:
    """The same port for all processes of a job, seldom that of another job."""
    return FIRST_PORT + zlib.crc32(job.encode()) % N_PORTS


def join(environ: Mapping[str, str] = os.environ) -> Rendezvous:
    """Find the others. Raises UsageError where the environment does not tell where rank 0 is."""
    me = launch_info(environ)
    run = "run" + environ.get("TORCHELASTIC_RESTART_COUNT", "")
    address = known_address(me, environ)
    by_mpi = me.launcher in ("mpirun", "prterun", "mpiexec") or "PMIX_RANK" in environ or "PMI_RANK" in environ
    if by_mpi and me.launcher not in ("", "torch") and "MASTER_ADDR" not in environ:
        try:
            transport = connect(launched(environ))
        except UsageError as error:
            if address is None:
                raise UsageError(f"{error}, or set MASTER_ADDR and MASTER_PORT") from error
        else:
            me = Launch(me.launcher, transport.size, transport.rank)
            store, address = _open_store_by_mpi(transport)
            return Rendezvous(me, address, store, run, transport)
    if me.launcher not in ("", "torch"):
        die_with(os.getppid())
    if address is None:
        raise UsageError(f"{me.launcher} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT")
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = open_store(address, is_master=me.rank == 0 and not agent)
    return Rendezvous(me, Address(address.host, store.port), store, run, None)


def _open_store_by_mpi(transport: Transport) -> tuple[Any, Address]:
    """Rank 0 opens a store on a free port and tells the others its name, its number and the port."""
    host = socket.gethostname()
    others = set(transport.gather(host)) - {host}  # on rank 0
    store = open_store(Address(LOOPBACK, 0), True, anywhere=bool(others)) if transport.rank == 0 else None
    theirs, number, port = transport.broadcast((host, _number(host), store.port if store else 0))
    transport.settle()  # a barrier: MPI sends only while it is called, and rank 0 is about to wait in the store
    address = Address(LOOPBACK if theirs == host else theirs if _number(theirs) else number, port)
    return store or open_store(address), address


def _number(host: str) -> str:
    """The IP address of a host, "" where its name is not known here."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


def open_store(address: Address, is_master: bool = False, anywhere: bool = False) -> Any:
    """A connection of its own to PyTorch's TCPStore, which the master listens for. Raises UsageError.

    Args:
        address: host and port of the master; port 0 is one that is free.
        is_master: whether this process is the master.
        anywhere: other hosts reach a master at LOOPBACK too. Otherwise they do not, since the store asks for no secret.
    """
    from torch.distributed import DistError, TCPStore

    port, listening = address.port, None
    try:
        if is_master and address.host == LOOPBACK and not anywhere:
            server = socket.create_server(address)
            port, listening = server.getsockname()[1], server.detach()
        return TCPStore(
            address.host, port, is_master=is_master, wait_for_workers=False,
            timeout=timedelta(seconds=JOIN_SECONDS), master_listen_fd=listening,
            use_libuv=listening is None,  # which cannot take an open socket in torch 2.7
        )  # fmt: skip
    except (DistError, RuntimeError, OSError) as error:
        why = str(error).splitlines()[0]
        what = "cannot listen" if is_master else "is not reached"
        raise UsageError(f"rank 0 at {address.host}:{address.port} {what} ({why}): set MASTER_PORT") from error


def ranks_here(
    rendezvous: Rendezvous,
    processes: int | None,
    n_gpus: int,
    problem: str,
    versions: Mapping[str, str],
    allow_mixed_versions: bool = False,
) -> list[RankInfo]:
    """The processes of the training that this launched one stands for, after a call of the roll.

    Args:
        rendezvous: how the processes find each other.
        processes: the number for each node; None for one per GPU where the launcher started a single process on the
            host, and else for those that it started.
        n_gpus: GPUs that this process sees and uses.
        problem: why this process cannot take part; "" when it can.
        versions: of all that results depend on, by name.
        allow_mixed_versions: where the versions of two processes differ, rank 0 warns, and the training goes on.

    Raises:
        UsageError: one of these conditions is not met, on any host.
    """
    me, store, key = rendezvous.launch, rendezvous.store, f"{rendezvous.run}/here/"
    store.set(f"{key}{me.rank}", json.dumps([socket.gethostname(), n_gpus, problem, dict(versions)]))
    try:
        roll = [json.loads(store.get(f"{key}{rank}")) for rank in range(me.size)]
    except RuntimeError as error:
        raise UsageError(f"not all {me.size} processes have connected ({str(error).splitlines()[0]})") from error
    for host, _, why, _ in roll:
        if why:
            raise UsageError(f"on {host}: {why}")
    if mixed := mixed_versions([(host, theirs) for host, _, _, theirs in roll]):
        if not allow_mixed_versions:
            raise UsageError(mixed)
        if me.rank == 0:
            print(f"warning: {mixed}", file=sys.stderr)
    hosts = [host for host, *_ in roll]
    complete = os.environ.get("LOCAL_WORLD_SIZE", "").isdigit()  # torchrun was told how many to start on each node
    alone = [hosts.count(host) == 1 and not complete for host in hosts]
    if processes is not None and not all(alone):
        raise UsageError(f"--nproc-per-node {processes}, but {me.launcher} has started the processes: leave it out")
    counts = [processes or max(1, roll[n][1] if alone[n] else 1) for n in range(me.size)]
    first, mine = sum(counts[: me.rank]), [n for n, host in enumerate(hosts) if host == hosts[me.rank]]
    local = sum(counts[n] for n in mine if n < me.rank)
    local_size = sum(counts[n] for n in mine)
    return [
        RankInfo(first + n, sum(counts), local + n, local_size, len(set(hosts))) for n in range(counts[me.rank])
    ]  # fmt: skip
