"""Gradients added up over the processes of a training on CPUs, once the backward pass is done.

DistributedDataParallel overlaps the exchange with the backward pass. That pays where the device that computes is not
the one that sends. Here both take the same cores, and what counts is how few bytes move: the processes of a host add
in memory that they share, and one of each host exchanges the sum with the other hosts.

    slots[i]   process i of the host writes its gradients
    total      process i adds up part i of all slots; the first one then adds the other hosts' totals
               the gradients of all parameters are views of it
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import mmap
import os
import secrets
import socket
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numba import types
from numba.extending import intrinsic
from torch import nn

from common.jit import compiled

LINE = 64  # bytes that processors pass around as one: no two processes write to the same
TOKEN = 16
AWAKE, NAP = 1e-3, 1e-4  # seconds


class Exchange:
    """Adds up the gradients of `parameters` (float32, on the CPU) over the processes of the default group.

    All processes must construct it, and then call it, together. Their parameters become those of rank 0.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        for parameter in parameters:
            dist.broadcast(parameter.detach(), src=0)
        sizes = [parameter.numel() for parameter in parameters]
        self._host = Host(sum(sizes))
        self._mine, self._gradients = (
            [
                part.as_strided(weight.shape, weight.stride(), part.storage_offset())
                for part, weight in zip(parts, parameters, strict=True)
            ]
            for parts in (self._host.slot.split(sizes), self._host.total.split(sizes))
        )

    def __call__(self) -> None:
        """Replace every gradient by its sum over the processes."""
        for parameter, mine, gradient in zip(self._parameters, self._mine, self._gradients, strict=True):
            assert parameter.grad is not None
            mine.copy_(parameter.grad)
            parameter.grad = gradient
        self._host.add()


class Host:
    """The processes of this host, and one vector of float32 that they add up with those of other hosts.

    slot: what this process adds, (n,). total: the sum over all processes, (n,); valid from one `add` to the next.
    """

    def __init__(self, n: int) -> None:
        hosts = _gathered(socket.gethostname())
        members = [rank for rank, host in enumerate(hosts) if host == hosts[dist.get_rank()]]
        memory = _shared_memory(members, n)
        if memory is None:
            hosts, members = list(map(str, range(len(hosts)))), [dist.get_rank()]
            memory = mmap.mmap(-1, _bytes_needed(1, n))
        self._index, n_members = members.index(dist.get_rank()), len(members)
        self._turns = np.frombuffer(memory, np.int64, n_members * LINE // 8, LINE)[:: LINE // 8]
        numbers = np.frombuffer(memory, np.float32, (n_members + 1) * n, (1 + n_members) * LINE)
        vectors = torch.from_numpy(numbers).view(n_members + 1, n)
        self._slots, self.total = vectors[:-1], vectors[-1]
        self.slot = self._slots[self._index]
        self._parts = list(zip(self._slots.tensor_split(n_members, 1), self.total.tensor_split(n_members), strict=True))
        leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
        self._leaders = dist.new_group(leaders) if len(leaders) > 1 else None
        self._turn = 0

    def add(self) -> None:
        """Set `total` from all slots."""
        self._meet()
        slots, total = self._parts[self._index]
        total.copy_(slots[0]) if len(slots) == 1 else torch.add(slots[0], slots[1], out=total)
        for slot in slots[2:]:
            total += slot
        self._meet()
        if self._leaders is not None:
            if self._index == 0:
                dist.all_reduce(self.total, group=self._leaders)
            self._meet()

    def _meet(self) -> None:
        """Wait for all processes of this host; what they wrote before is then seen here.

        Asking again and again takes a tenth of the time of being woken up. Who has waited for long sleeps in between,
        for where processes outnumber cores the others need this one. (sched_yield would not do: to give way a
        thousand times can cost many time slices.)
        """
        self._turn += 1
        _fence()
        self._turns[self._index] = self._turn
        since = time.perf_counter()
        while self._turns.min() < self._turn:
            if time.perf_counter() - since > AWAKE:
                time.sleep(NAP)
        _fence()


def _gathered(thing):
    """Of every process what it has, by rank."""
    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


def _bytes_needed(n_members: int, n: int) -> int:
    return (1 + n_members) * LINE + (n_members + 1) * n * 4


def _shared_memory(members: Sequence[int], n: int) -> mmap.mmap | None:
    """Memory of the processes `members`, all of this host, all zero but for its first bytes.

    The first of them makes it, as a file without a name, which is gone with the last of them, however they end. None,
    in all processes, where one of them does not see another's: containers may have a name in common and nothing else.
    """
    token, made = secrets.token_bytes(TOKEN), None
    if dist.get_rank() == members[0] and hasattr(os, "memfd_create"):
        made = os.memfd_create("gradients")
        os.truncate(made, _bytes_needed(len(members), n))
        os.pwrite(made, token, 0)
    process, descriptor, token = _gathered((os.getpid(), made, token))[members[0]]
    memory = None
    try:
        with open(f"/proc/{process}/fd/{descriptor}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    except OSError:
        pass
    there = memory is not None and memory[:TOKEN] == token
    everywhere = all(_gathered(there))
    if made is not None:
        os.close(made)
    return memory if everywhere else None


@intrinsic
def _full_fence(typing_context):
    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


@compiled
def _fence():
    """Keep what is written before from being seen after what is written later."""
    _full_fence()
