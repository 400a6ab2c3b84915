"""The network, as plain functions of a dictionary of weights.

    image (1, h, w) -> convolution, n_conv_layer channels, k x k, no padding -> ReLU -> flatten
                    -> hidden layer, n_hidden_layer units -> ReLU -> one logit per class

`logits` is the definition: the step of `mnist_nn.steps` is tested against its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn.shapes import Params, shapes_of

Weights = dict[str, Tensor]
CHUNK = 1 << 22  # numbers drawn at a time for another device


def initial_weights(
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    seed: int,
    device: torch.device,
    hidden: Tensor | None = None,
) -> Weights:
    """Weights and biases drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for both layers.

    They are always drawn on the CPU, since a GPU's own stream depends on the number of its processors. They lie in
    memory with the first axis last, which is how `mnist_nn.steps.manual` wants the largest of them. `hidden`: the
    memory for that one, if there is some already, contiguous (features, units).
    """
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    bound = 0.0
    for name, shape in shapes_of(params, image_shape, n_classes).items():
        if name.endswith("weight"):  # Its bias comes next and has the same bound.
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        own = hidden if name == "hidden.weight" else None
        weights[name] = torch.empty(shape[::-1], device=device) if own is None else own
        _draw(weights[name].view(-1), bound, generator)
        weights[name] = weights[name].permute(*reversed(range(len(shape))))
    return weights


def _draw(numbers: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill a vector on any device from U(-bound, bound), by a generator of the CPU; the chunks make no difference."""
    if numbers.device.type == "cpu":
        numbers.uniform_(-bound, bound, generator=generator)
        return
    for chunk in numbers.split(CHUNK):
        chunk.copy_(torch.empty(len(chunk)).uniform_(-bound, bound, generator=generator))


@dataclass(frozen=True)
class Images:
    """Images on a device: pixels uint8 (n, h, w), or float32 and normalised already; max_pixel is that of full ink."""

    pixels: Tensor
    max_pixel: float = 255

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, which: slice | Tensor) -> Images:
        return replace(self, pixels=self.pixels[which])

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def split(self, size: int) -> Iterator[Images]:
        """Parts of so many images, the last one smaller."""
        return (replace(self, pixels=part) for part in self.pixels.split(size))

    def without(self, part: slice) -> Images:
        """All images but those of one part."""
        return replace(self, pixels=torch.cat([self.pixels[: part.start], self.pixels[part.stop :]]))

    def normalised(self) -> Tensor:
        """uint8 pixels as float32; float32 ones as they are.

        (x - max_pixel / 2) / (max_pixel / sqrt(12)): mean and deviation are those of the uniform distribution on
        0..max_pixel, not of the data, so that nothing of a validation fold enters the training. For 255 this is
        (x - 127.5) / 73.61.
        """
        if self.pixels.is_floating_point():
            return self.pixels
        return (self.pixels - self.max_pixel / 2).mul_(math.sqrt(12) / self.max_pixel)


def logits(weights: Weights, pixels: Tensor) -> Tensor:
    """Network output before the softmax, (n, n_classes), of normalised pixels (n, h, w)."""
    convolved = F.conv2d(pixels[:, None], weights["conv.weight"], weights["conv.bias"]).relu_()
    hidden = F.linear(convolved.flatten(1), weights["hidden.weight"], weights["hidden.bias"]).relu_()
    return F.linear(hidden, weights["output.weight"], weights["output.bias"])
