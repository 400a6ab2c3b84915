"""The optimizer, and its learning rate in each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn


class Rule(NamedTuple):
    """How weights are updated.

    Attributes:
        learning_rate: what the optimizer gets after the warm-up.
        momentum: of sgd.
        weight_decay: of sgd it is a part of the gradient, of adamw it is not (Loshchilov and Hutter, 2019).
        warmup_steps: in which the learning rate grows linearly.
        schedule: constant, or half a cosine down to zero.
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    warmup_steps: int = 0
    schedule: str = "constant"

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, the first of which is 0, of a training of n_steps."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup_steps) / max(1, n_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def make_optimizer(weights: Iterable[nn.Parameter], rule: Rule, *, sharded: bool) -> torch.optim.Optimizer:
    """The optimizer of a rule; its operations are fused into one where each weight is whole in every process."""
    fused = None if sharded else True
    if rule.name == "adamw":
        return torch.optim.AdamW(weights, lr=rule.learning_rate, weight_decay=rule.weight_decay, fused=fused)
    return torch.optim.SGD(
        weights, lr=rule.learning_rate, momentum=rule.momentum, weight_decay=rule.weight_decay, fused=fused
    )
