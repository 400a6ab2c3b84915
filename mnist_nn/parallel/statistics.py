"""How large gradients and activations are, for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Figures = dict[str, dict[str, float]]


def gradient_statistics(weights: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """The Euclidean norm of the gradient of each weight, and of all; of the global batch's mean loss.

    All processes must call this, as with fsdp each has a shard of every gradient.
    """
    norms = {name: _norm(weight.grad) for name, weight in weights.items() if weight.grad is not None}
    return {"all": float(torch.linalg.vector_norm(torch.tensor(list(norms.values()), dtype=torch.float64))), **norms}


@torch.no_grad()
def activation_statistics(network: nn.Module, forward: Any, pixels: Tensor) -> Figures:
    """Mean, standard deviation and the fraction of zeros of what each layer puts out for these images.

    Args:
        network: has `seen`, where its forward puts what its layers put out while that is a dictionary.
        forward: calls the network; all processes must take part.
        pixels: (n, h, w), normalised.
    """
    network.seen = {}
    try:
        forward(pixels)
        return {name: _figures(out.float()) for name, out in network.seen.items()}
    finally:
        network.seen = None


def _norm(gradient: Tensor) -> float:
    norm: Any = torch.linalg.vector_norm(gradient)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _figures(out: Tensor) -> dict[str, float]:
    return {"mean": float(out.mean()), "std": float(out.std()), "zeros": float((out == 0).float().mean())}
