"""The networks as modules, whose weights carry the names under which `mnist_nn.predict` stores them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnist_nn.net import logits
from mnist_nn.shapes import Params, kubeflow_shapes, shapes_of


class Kubeflow(nn.Module):
    """Two convolutions of 20 and 50 channels, each 5 x 5 and followed by pooling, and 500 hidden units.

    The network of the MNIST example of the Kubeflow training operator: 431,080 weights for images of 28 x 28 pixels.
    `mnist_nn.net.kubeflow_logits` is what it computes.
    """

    def __init__(self, image_shape: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        shapes = kubeflow_shapes(image_shape, n_classes)
        first, _, kernel, _ = shapes["conv1.weight"]
        (second,) = shapes["conv2.bias"]
        units, features = shapes["hidden.weight"]
        self.conv1 = nn.Conv2d(1, first, kernel)
        self.conv2 = nn.Conv2d(first, second, kernel)
        self.hidden = nn.Linear(features, units)
        self.output = nn.Linear(units, n_classes)
        self.seen: dict[str, Tensor] | None = None

    def forward(self, pixels: Tensor) -> Tensor:
        first = _pooled(self.conv1, pixels[:, None])
        second = _pooled(self.conv2, first)
        hidden = self.hidden(second.flatten(1)).relu()
        output: Tensor = self.output(hidden)
        if self.seen is not None:
            self.seen |= {"conv1": first, "conv2": second, "hidden": hidden, "output": output}
        return output


class Searched(nn.Module):
    """The network of the search, with its weights as parameters; `mnist_nn.net.logits` is what it computes."""

    def __init__(self, params: Params, image_shape: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        shapes = shapes_of(params, image_shape, n_classes)
        channels, _, kernel, _ = shapes["conv.weight"]
        units, features = shapes["hidden.weight"]
        self.conv = nn.Conv2d(1, channels, kernel)
        self.hidden = nn.Linear(features, units)
        self.output = nn.Linear(units, n_classes)
        self.seen: dict[str, Tensor] | None = None

    def forward(self, pixels: Tensor) -> Tensor:
        return logits(dict(self.named_parameters()), pixels, self.seen)


def _pooled(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolution, 2 x 2 pooling, ReLU. ReLU is monotonic: after pooling it has a quarter of the work."""
    return F.max_pool2d(layer(x), 2).relu()


def build(params: Params, image_shape: tuple[int, int], n_classes: int, device: str = "cpu") -> nn.Module:
    """The network that `params` describe, with PyTorch's initial weights from its global generator.

    Its `forward` maps normalised pixels (n, h, w) to logits (n, n_classes).

    Args:
        params: of the architecture.
        image_shape: (h, w).
        n_classes: outputs.
        device: where it is made; "meta" only checks and counts.

    Raises:
        ValueError: the images are too small.
    """
    with torch.device(device):
        if params["network"] == "kubeflow":
            return Kubeflow(image_shape, n_classes)
        return Searched(params, image_shape, n_classes)
