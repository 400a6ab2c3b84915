"""What numba compiles for networks on a CPU, run once: for the machine code of images (`mpitune._jit.shipped`)."""

from __future__ import annotations

from mnist_nn.steps import choose

SHAPE, CLASSES, BATCH_SIZE = (28, 28), 10, 10  # of MNIST, and the default of the search


def warm_up() -> None:
    """A step of the search's training."""
    choose.warm_up(SHAPE, CLASSES, "manual", BATCH_SIZE)
