"""How large gradients and activations are, for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Figures = dict[str, dict[str, float]]


def gradient_statistics(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """The Euclidean norm of the gradient of each weight, and of all; of the global batch's mean loss.

    Args:
        gradients: whole ones, by name.
    """
    norms = {name: float(torch.linalg.vector_norm(gradient)) for name, gradient in gradients.items()}
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


def _figures(out: Tensor) -> dict[str, float]:
    return {"mean": float(out.mean()), "std": float(out.std()), "zeros": float((out == 0).float().mean())}
