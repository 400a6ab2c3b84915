"""What numba compiles for data-parallel training on a CPU, run once."""

from __future__ import annotations

import torch

from mnist_nn.parallel.cpu import sgd
from mnist_nn.parallel.networks import build


def warm_up(image_shape: tuple[int, int], n_classes: int) -> None:
    """A pass of the network with two convolutions, and an update."""
    build({"network": "kubeflow"}, image_shape, n_classes)(torch.ones(2, *image_shape)).sum().backward()
    sgd.warm_up()
