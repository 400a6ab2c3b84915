"""The optimizer with its learning rate in each step, and how a network lies on the processes.

Each process has all weights, and the whole state of the optimizer (ddp) or a shard of it (zero1: stage 1 of ZeRO,
Rajbhandari et al., 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from mnist_nn.parallel.settings import BETAS, EPS


class Rule(NamedTuple):
    """How weights are updated.

    Attributes:
        learning_rate: what the optimizer gets after the warm-up.
        momentum: of sgd.
        weight_decay: of sgd it is a part of the gradient, of adamw it is not (Loshchilov and Hutter, 2019).
        betas, eps: of adamw.
        warmup_steps: in which the learning rate grows, linearly or with the logarithm of the step.
        schedule: constant, or down to zero along a line or half a cosine.
        total_steps: that the schedule takes; None for the length of the training.
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    warmup_steps: int = 0
    schedule: str = "constant"
    betas: tuple[float, float] = BETAS
    eps: float = EPS
    warmup_type: str = "linear"
    total_steps: int | None = None

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, the first of which is 0, of a training of n_steps."""
        if step < self.warmup_steps:
            if self.warmup_type == "log":
                return self.learning_rate * math.log(step + 1) / math.log(max(2, self.warmup_steps))
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        n_steps = self.total_steps or n_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, n_steps - self.warmup_steps))
        return self.learning_rate * (1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


def make_optimizer(weights: Iterable[nn.Parameter], rule: Rule, strategy: str) -> torch.optim.Optimizer:
    """The optimizer of a rule; its operations are fused into one."""
    kind: type[torch.optim.Optimizer] = torch.optim.SGD
    given: dict[str, Any] = {"momentum": rule.momentum}
    if rule.name == "adamw":
        kind, given = torch.optim.AdamW, {"betas": rule.betas, "eps": rule.eps}
    given |= {"lr": rule.learning_rate, "weight_decay": rule.weight_decay, "fused": True}
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(weights, kind, **given)
    return kind(weights, **given)


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
