"""Stochastic gradient descent over the processes of a training on CPUs.

DistributedDataParallel overlaps the exchange of gradients with the backward pass. That pays where the device that
computes is not the one that sends. Here both take the same cores, and what counts is how few bytes move. So the
processes of a host have the weights in memory that they share, and each of them updates one part of the weights (as
ZeRO's first stage, Rajbhandari et al. 2020, does over devices), which adds up the gradients in passing. One process of
each host exchanges sums with the other hosts.

    slots[i]   gradients of process i of the host
    weights    process i updates part i; all parameters are views of it
    velocity   the gradients added up over time, in the same parts
    total      with several hosts: part i is made by process i of all slots, then added up over the hosts by the first
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import functools
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
from torch import Tensor, nn

from mpitune._jit.cache import compiled

CACHE_LINE = 64  # bytes that processors pass around as one: no two processes write to the same
TOKEN = 16
PIECE = 4096  # numbers that the fastest cache holds twice
COMMON = 3  # vectors that a host has once
SPIN_S, SLEEP_S = 1e-3, 1e-4  # seconds


class SharedSGD:
    """SGD as torch.optim.SGD, with the mean of the gradients of `parameters` over all processes of the group.

    velocity: of every parameter, zero at first. param_groups: one, whose "lr" may be set again before each step.
    mean_gradients: of every parameter in the last step, where `keep_gradients` was true.

    Args:
        parameters: float32, on the CPU.
        lr, momentum, weight_decay: as there, without dampening. All processes of the default group must construct this,
            and then call `step`, together. The parameters become those of rank 0, and their gradients are taken away as
            soon as a backward pass has made them.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float = 0.0
    ) -> None:
        self.param_groups = [{"lr": lr, "momentum": momentum, "weight_decay": weight_decay}]
        self.keep_gradients, self.mean_gradients = False, list[Tensor]()
        self._parameters = parameters
        self._host = host = Host(sum(parameter.numel() for parameter in parameters))
        self._share = 1 / dist.get_world_size()
        slots, weights, self.velocity = (_views(v, parameters) for v in (host.slot, host.weights, host.velocity))
        for parameter, slot, weight in zip(parameters, slots, weights, strict=True):
            dist.broadcast(parameter.detach(), src=0)
            weight.copy_(parameter.detach())
            parameter.data = weight
            parameter.register_post_accumulate_grad_hook(functools.partial(_deliver, slot))
        host.barrier()

    def step(self) -> None:
        """Update the weights by the gradients that the last backward pass of every process has made."""
        host = self._host
        added = host.reduce()
        if self.keep_gradients:  # before others write their next ones there
            self.mean_gradients = _views(added.sum(0).mul_(self._share), self._parameters)
        gradients, velocity, weights = added.numpy(), host.velocity.numpy(), host.weights.numpy()
        (group,) = self.param_groups
        constants = (group["momentum"], group["lr"], group["weight_decay"], self._share)
        _update(gradients, velocity, weights, host.part.start, host.part.stop, *map(np.float32, constants))
        host.barrier()


def _deliver(slot: Tensor, parameter: Tensor) -> None:
    """Right after it was made a gradient is in the cache, and its memory serves the rest of the backward pass."""
    assert parameter.grad is not None
    slot.copy_(parameter.grad)
    parameter.grad = None


def _views(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Parts of a vector, one after the other, each with the shape and strides of a parameter."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    return [
        part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
        for part, parameter in zip(parts, parameters, strict=True)
    ]


class Host:
    """The processes of this host, and vectors of n float32 that they share: see above. part: what is this process's."""

    def __init__(self, n: int) -> None:
        hosts = _gathered(socket.gethostname())
        members = [rank for rank, host in enumerate(hosts) if host == hosts[dist.get_rank()]]
        memory = _shared_memory(members, n)
        if memory is None:
            hosts, members = list(map(str, range(len(hosts)))), [dist.get_rank()]
            memory = mmap.mmap(-1, _bytes_needed(1, n))
        self._index, n_members = members.index(dist.get_rank()), len(members)
        self.part = slice(self._index * n // n_members, (self._index + 1) * n // n_members)
        self._turns = np.frombuffer(memory, np.int64, n_members * CACHE_LINE // 8, CACHE_LINE)[:: CACHE_LINE // 8]
        numbers = np.frombuffer(memory, np.float32, (n_members + COMMON) * n, (1 + n_members) * CACHE_LINE)
        vectors = torch.from_numpy(numbers).view(-1, n)
        self._total, self.weights, self.velocity = vectors[:COMMON]
        self._slots = vectors[COMMON:]
        self.slot = self._slots[self._index]
        leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
        self._leaders = dist.new_group(leaders) if len(leaders) > 1 else None
        self._turn = 0

    def reduce(self) -> Tensor:
        """Vectors (k, n) whose sum is that of the gradients of all processes, when all have called this."""
        self.barrier()
        if self._leaders is None:
            return self._slots
        torch.sum(self._slots[:, self.part], 0, out=self._total[self.part])
        self.barrier()
        if self._index == 0:
            dist.all_reduce(self._total, group=self._leaders)
        self.barrier()
        return self._total[None]

    def barrier(self) -> None:
        """Wait for all processes of this host; what they wrote before is then seen here.

        Spinning reacts ten times faster than sleeping. After SPIN_S the process sleeps, so that others can run where
        processes outnumber cores. (sched_yield would not do: a thousand calls of it can cost many time slices.)
        """
        self._turn += 1
        _fence()
        self._turns[self._index] = self._turn
        since = time.perf_counter()
        while self._turns.min() < self._turn:
            if time.perf_counter() - since > SPIN_S:
                time.sleep(SLEEP_S)
        _fence()


def _gathered(thing):
    """The things of all processes, by rank."""
    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


def _bytes_needed(n_members: int, n: int) -> int:
    return (1 + n_members) * CACHE_LINE + (n_members + COMMON) * n * 4


def _shared_memory(members: Sequence[int], n: int) -> mmap.mmap | None:
    """Memory of the processes `members`, all of this host, all zero but for its first bytes.

    The first of them makes it, as a file without a name, which is gone with the last of them, however they end. None,
    in all processes, where one of them does not see another's: containers may have a name in common and nothing else.
    """
    token, made = secrets.token_bytes(TOKEN), None
    if dist.get_rank() == members[0] and hasattr(os, "memfd_create"):
        made = os.memfd_create("training")
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


@compiled
def _update(gradients, velocity, weights, start, stop, momentum, rate, decay, share):
    """velocity = momentum * velocity + gradient; weights -= rate * velocity. Of elements start to stop.

    The gradient is share * sum of gradients + decay * weights.

    gradients: float32 (k, n). velocity, weights: float32 (n,). In one pass: piece by piece the sum stays in the cache.
    """
    total = np.empty(PIECE, np.float32)
    for begin in range(start, stop, PIECE):
        end = min(begin + PIECE, stop)
        g, v, w = total[: end - begin], velocity[begin:end], weights[begin:end]
        g[:] = gradients[0, begin:end]
        for k in range(1, len(gradients)):
            g += gradients[k, begin:end]
        for i in range(len(g)):
            v[i] = momentum * v[i] + (share * g[i] + decay * w[i])
            w[i] -= rate * v[i]


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


def warm_up() -> None:
    """Have both functions compiled, as `SharedSGD` calls them."""
    vector = np.ones(5, np.float32)
    _update(np.ones((2, 5), np.float32), vector, vector.copy(), 0, 5, *map(np.float32, (0.5, 0.1, 0.0, 0.5)))
    _fence()
