"""What numba compiles for networks on a CPU, run once: for the machine code that images carry (`jit.shipped`)."""

from __future__ import annotations

import torch

from mnist_nn import net
from mnist_nn.parallel import warm
from mnist_nn.steps.choose import make_step

SHAPE, CLASSES, BATCH_SIZE = (28, 28), 10, 10  # of MNIST, and the default of the search


def warm_up() -> None:
    """A step of the search's training, and one of data-parallel training."""
    params = dict(n_conv_layer=2, kernel_size=3, n_hidden_layer=17)
    weights = net.initial_weights(params, SHAPE, CLASSES, seed=1, device=torch.device("cpu"))
    step = make_step("manual", weights, SHAPE, batch_size=BATCH_SIZE, learning_rate=0.1, momentum=0.1)
    step(torch.zeros(BATCH_SIZE, *SHAPE), torch.zeros(BATCH_SIZE, dtype=torch.int64))
    warm.warm_up(SHAPE, CLASSES)
