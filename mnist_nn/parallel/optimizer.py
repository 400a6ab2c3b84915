"""The optimizer, the moments that it keeps of each weight, and its learning rate in each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")


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


def make_optimizer(
    weights: Mapping[str, nn.Parameter], rule: Rule, *, plain: bool
) -> tuple[torch.optim.Optimizer, dict[str, dict[str, Tensor]]]:
    """The optimizer, and its moments: of each weight, by the name of the moment and of the weight.

    Args:
        weights: the parameters, by name.
        rule: which optimizer, with its rates.
        plain: every weight is whole, in a process of its own.
    """
    parameters, moments = list(weights.values()), dict[str, dict[str, Tensor]]()
    optimizer: torch.optim.Optimizer
    if rule.name == "adamw":
        optimizer = torch.optim.AdamW(
            parameters, lr=rule.learning_rate, weight_decay=rule.weight_decay, fused=plain or None
        )
        for weight in parameters:
            step = torch.zeros((), device=weight.device if plain else "cpu")
            optimizer.state[weight] = {"step": step, **{name: torch.zeros_like(weight) for name in ADAM_MOMENTS}}
        moments = {
            name: {key: optimizer.state[weight][name] for key, weight in weights.items()} for name in ADAM_MOMENTS
        }
        return optimizer, moments
    optimizer = torch.optim.SGD(
        parameters, lr=rule.learning_rate, momentum=rule.momentum, weight_decay=rule.weight_decay, fused=plain or None
    )
    if rule.momentum:
        moments["velocity"] = {key: torch.zeros_like(weight) for key, weight in weights.items()}
        for key, weight in weights.items():
            optimizer.state[weight]["momentum_buffer"] = moments["velocity"][key]
    return optimizer, moments


def updates(optimizer: torch.optim.Optimizer) -> int:
    """How often AdamW has updated the weights, on which its correction of the moments depends; 0 for others."""
    if not isinstance(optimizer, torch.optim.AdamW):
        return 0
    return int(next(iter(optimizer.state.values()))["step"].item())


def set_updates(optimizer: torch.optim.Optimizer, n: int) -> None:
    """Set how often AdamW has updated the weights."""
    if isinstance(optimizer, torch.optim.AdamW):
        for state in optimizer.state.values():
            state["step"].fill_(float(n))
