"""How the processes of one training find each other.

    launcher    ->  rank and size            torchrun, a PyTorchJob, mpirun, mpiexec, srun, or a shell
    rank 0      ->  PyTorch's store          where MPI, MASTER_ADDR or Slurm's list of nodes says
    the store   ->  who is on which host     and so nodes, local ranks, and how many processes each one is

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

import torch.distributed as dist

from mnist_nn.parallel.settings import Settings, launch_info
from mpitune.engine.preflight import mixed_versions
from mpitune.errors import UsageError
from mpitune.processes.process import die_with
from mpitune.ranks.launch import Launch, connect
from mpitune.ranks.transport import Transport
from mpitune.storage.provenance import code_and_libraries

JOIN_TIME = timedelta(minutes=10)  # a PyTorchJob's pods, or the nodes of a cloud, may start minutes apart
LOOPBACK = "127.0.0.1"
FIRST_PORT, N_PORTS = 20_000, 10_000  # below the range from which Linux takes the ports of outgoing connections


class Address(NamedTuple):
    """Where rank 0's store is; port 0 is one that is free."""

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


class Meeting(NamedTuple):
    """The store that all launched processes share, its address, and the transport that told it, if one did."""

    launch: Launch
    address: Address
    store: Any
    transport: Transport | None = None


def known_address(me: Launch, environ: Mapping[str, str] = os.environ) -> Address | None:
    """Address of rank 0's store by the environment; None where only rank 0 can tell it.

    Slurm puts task 0 on the first node of a step, and tells no port: all derive the same one from the number of the
    job and its step.
    """
    digits, nodes = environ.get("MASTER_PORT", ""), environ.get("SLURM_STEP_NODELIST")
    if "MASTER_ADDR" in environ:
        return Address(environ["MASTER_ADDR"], int(digits) if digits.isdigit() else 29_500)
    if me.size == 1:
        return Address(LOOPBACK, 0)
    if me.launcher == "srun" and nodes:
        prefix, _, rest = nodes.partition("[")  # "node[08-11,13],gpu1" begins with node08
        first = prefix.split(",")[0] if "," in prefix or not rest else prefix + re.split(r"[-,\]]", rest)[0]
        job = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        return Address(first, int(digits) if digits.isdigit() else FIRST_PORT + zlib.crc32(job.encode()) % N_PORTS)
    return None


def join() -> Meeting:
    """Find the others. Raises UsageError where that cannot be."""
    me = launch_info()
    address = known_address(me)
    if me.launcher == "torch" and address is not None:
        try:  # torchrun's own store, or that of rank 0
            store, _, _ = next(dist.rendezvous("env://", timeout=JOIN_TIME))
        except (dist.DistError, RuntimeError) as error:
            raise _unreachable(address, me.rank == 0, error) from error
        # torchrun, when it starts all again, keeps the store with what the processes before have put there.
        return Meeting(me, address, dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), store))
    if address is None:
        return _met_by_mpi(me)
    if me.launcher:
        die_with(os.getppid())
    store = open_store(address, is_master=me.rank == 0)
    return Meeting(me, Address(address.host, store.port), store)


def _met_by_mpi(me: Launch) -> Meeting:
    """Rank 0 opens a store on a free port, and tells the others where."""
    try:
        transport = connect(me)
    except UsageError as error:
        raise UsageError(f"{error}, or set MASTER_ADDR and MASTER_PORT") from error
    me = Launch(me.launcher, transport.size, transport.rank)
    host = socket.gethostname()
    others = set(transport.gather(host)) - {host}  # on rank 0
    store = open_store(Address(LOOPBACK, 0), True, anywhere=bool(others)) if me.rank == 0 else None
    address = transport.broadcast(Address(_name_of(host) if others else LOOPBACK, store.port) if store else None)
    transport.settle()  # a barrier: MPI sends only while it is called, and rank 0 is about to wait in the store
    return Meeting(me, address, store or open_store(address), transport)


def _name_of(host: str) -> str:
    """The IP address of this host, which others reach where they do not know its name; its name where it has none."""
    try:
        number = socket.gethostbyname(host)
    except OSError:
        return host
    return host if number.startswith("127.") else number


def open_store(address: Address, is_master: bool = False, anywhere: bool = False) -> Any:
    """A connection of its own to PyTorch's TCPStore, which the master listens for. Raises UsageError.

    A master at LOOPBACK listens there only, as the store asks for no secret, unless other hosts are to reach it.
    """
    port, listening = address.port, None
    try:
        if is_master and address.host == LOOPBACK and not anywhere:
            server = socket.create_server(address)
            port, listening = server.getsockname()[1], server.detach()
        return dist.TCPStore(
            address.host, port, is_master=is_master, wait_for_workers=False, timeout=JOIN_TIME,
            master_listen_fd=listening, use_libuv=listening is None,  # which cannot take an open socket in torch 2.7
        )  # fmt: skip
    except (dist.DistError, RuntimeError, OSError) as error:
        raise _unreachable(address, is_master, error) from error


def _unreachable(address: Address, is_master: bool, error: Exception) -> UsageError:
    what = "cannot listen" if is_master else "is not reached"
    return UsageError(f"rank 0 at {address.host}:{address.port} {what} ({str(error).splitlines()[0]}): set MASTER_PORT")


def ranks_here(meeting: Meeting, settings: Settings, n_gpus: int, problem: str) -> list[RankInfo]:
    """The processes of the training that this launched one stands for, after a call of the roll.

    `n_gpus` are those that this process uses; `problem` is why it cannot take part, "" when it can. Raises UsageError,
    on all hosts, where one cannot take part or where their versions differ.
    """
    me, store, processes = meeting.launch, meeting.store, settings.nproc_per_node
    here = [socket.gethostname(), n_gpus, problem, code_and_libraries("common", "mnist_nn")]
    store.set(f"here/{me.rank}", json.dumps(here))
    try:
        roll = [json.loads(store.get(f"here/{rank}")) for rank in range(me.size)]
    except RuntimeError as error:
        raise UsageError(f"not all {me.size} processes have connected ({str(error).splitlines()[0]})") from error
    for host, _, why, _ in roll:
        if why:
            raise UsageError(f"on {host}: {why}")
    if mixed := mixed_versions([(host, versions) for host, _, _, versions in roll]):
        if not settings.allow_mixed_versions:
            raise UsageError(mixed)
        if me.rank == 0:
            print(f"warning: {mixed}", file=sys.stderr)
    hosts = [host for host, *_ in roll]
    complete = "LOCAL_WORLD_SIZE" in os.environ  # torchrun was told how many to start on each node
    alone = [hosts.count(host) == 1 and not complete for host in hosts]
    if processes is not None and not all(alone):
        raise UsageError(f"--nproc-per-node {processes}, but {me.launcher} has started the processes: leave it out")
    counts = [processes or max(1, roll[n][1]) if alone[n] else 1 for n in range(me.size)]
    first, on_this_host = sum(counts[: me.rank]), [n for n, host in enumerate(hosts) if host == hosts[me.rank]]
    local = sum(counts[n] for n in on_this_host if n < me.rank)
    local_size = sum(counts[n] for n in on_this_host)
    return [
        RankInfo(first + n, sum(counts), local + n, local_size, len(set(hosts))) for n in range(counts[me.rank])
    ]  # fmt: skip
