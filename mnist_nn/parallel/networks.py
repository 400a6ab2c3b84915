"""The networks as modules, whose weights carry the names under which `mnist_nn.predict` stores them; their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mnist_nn.net import kubeflow_logits, logits
from mnist_nn.shapes import Params, shapes_of


class Network(nn.Module):
    """The network that `params` describe, with PyTorch's initial weights from its global generator.

    Its `forward` maps normalised pixels (n, h, w) to logits (n, n_classes), see `mnist_nn.net`. While `seen` is a
    dictionary, it gets what each layer puts out. Raises ValueError for images that are too small.
    """

    def __init__(self, params: Params, image_shape: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        for name, shape in shapes_of(params, image_shape, n_classes).items():
            if name.endswith(".weight"):
                outputs, inputs, *kernel = shape
                layer = nn.Conv2d(inputs, outputs, kernel[0]) if kernel else nn.Linear(inputs, outputs)
                self.add_module(name.removesuffix(".weight"), layer)
        self._logits = kubeflow_logits if params["network"] == "kubeflow" else logits
        self.seen: dict[str, Tensor] | None = None

    def forward(self, pixels: Tensor) -> Tensor:
        return self._logits(dict(self.named_parameters()), pixels, self.seen)


def gradient_statistics(weights: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """The Euclidean norm of the gradient of each weight, and of all; of the global batch's mean loss."""
    norms = {name: float(weight.grad.norm()) for name, weight in weights.items() if weight.grad is not None}
    return {"all": float(torch.linalg.vector_norm(torch.tensor(list(norms.values()), dtype=torch.float64))), **norms}


@torch.no_grad()
def activation_statistics(network: Network, forward: Any, pixels: Tensor) -> dict[str, dict[str, float]]:
    """Mean, standard deviation, fraction of zeros, least and largest of what each layer puts out.

    pixels: normalised, (n, h, w). `forward` calls the network; all processes must take part.
    """
    network.seen = {}
    try:
        forward(pixels)
        return {name: _figures(out.float()) for name, out in network.seen.items()}
    finally:
        network.seen = None


def _figures(out: Tensor) -> dict[str, float]:
    low, high = out.aminmax()
    zeros = float((out == 0).float().mean())
    return {"mean": float(out.mean()), "std": float(out.std()), "zeros": zeros, "min": float(low), "max": float(high)}
