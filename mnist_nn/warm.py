"""What numba compiles for networks on a CPU, run once: for the machine code that images carry (`jit.shipped`)."""

from __future__ import annotations

import torch

from mnist_nn.parallel.cpu import sgd
from mnist_nn.parallel.networks import build
from mnist_nn.steps import choose

SHAPE, CLASSES, BATCH_SIZE = (28, 28), 10, 10  # of MNIST, and the default of the search


def warm_up() -> None:
    """A step of the search's training; a pass of the network with two convolutions, and an update of its weights."""
    choose.warm_up(SHAPE, CLASSES, "manual", BATCH_SIZE)
    build({"network": "kubeflow"}, SHAPE, CLASSES)(torch.ones(2, *SHAPE)).sum().backward()
    sgd.warm_up()
