"""The optimizer, its learning rate in each step, and how a network lies on the processes.

Each process has all weights, and the whole state of the optimizer (ddp) or a shard of it (zero1: stage 1 of ZeRO,
Rajbhandari et al., 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mnist_nn.parallel.settings import Settings


def rate_of(settings: Settings, step: int, n_steps: int) -> float:
    """The learning rate of a step, the first of which is 0, of a training of n_steps."""
    full, warmup = settings.lr or 0.0, settings.warmup_steps
    if step < warmup:
        by_log = settings.warmup_type == "log"
        return full * (math.log(step + 1) / math.log(max(2, warmup)) if by_log else (step + 1) / warmup)
    n_steps = settings.total_steps or n_steps
    done = min(1.0, (step - warmup) / max(1, n_steps - warmup))
    left = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return full * left[settings.schedule]


def make_optimizer(weights: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of settings that are complete; its operations are fused into one."""
    kind: type[torch.optim.Optimizer] = torch.optim.SGD
    arguments: dict[str, Any] = {"momentum": settings.momentum}
    if settings.optimizer == "adamw":
        kind, arguments = torch.optim.AdamW, {"betas": settings.betas, "eps": settings.eps}
    arguments |= {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": True}
    if settings.strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(weights, kind, **arguments)
    return kind(weights, **arguments)


def wrap_model(network: nn.Module, device: torch.device) -> nn.Module:
    """The network, which is on the device, whose gradients the processes add up.

    CPUs are faster with the channels last in memory. cuDNN gives gradients in the usual order, which
    DistributedDataParallel then has to copy, with a warning.
    """
    if device.type == "cpu":
        network = network.to(memory_format=torch.channels_last)
        if dist.get_world_size() == 1:
            return network
    devices = None if device.type == "cpu" else [device.index]
    return nn.parallel.DistributedDataParallel(network, device_ids=devices, gradient_as_bucket_view=True)


def whole_state(optimizer: torch.optim.Optimizer, strategy: str) -> dict[str, Any]:
    """The state of the optimizer, of whole weights, in rank 0. All processes must call this."""
    if strategy == "zero1":
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if dist.get_rank() == 0 else {}
    return optimizer.state_dict()
