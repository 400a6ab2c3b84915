"""Which training step to use: "manual", unless "autograd" is asked for.

On a CPU it is faster than what PyTorch offers wherever the search may look (benchmarks/nn_step.py). On a GPU, replayed
from a CUDA graph, it takes 0.56 to 0.78 of the time of the best plain way (benchmarks/results/gpu_h100.md).
"""

import logging
from typing import Any, Protocol

import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps import STEPS, kernels
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.hidden import DenseHidden, Hidden, KernelHidden
from mnist_nn.steps.manual import ManualStep

MOST_THREADS = 3  # with more, PyTorch's products, which use all of them, are faster than kernels on one
_log = logging.getLogger(__name__)


class Step(Protocol):
    """Learns from one batch per call and returns the sum of its losses before the step, without axes."""

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor: ...
    def finish(self) -> net.Weights: ...


def warm_up(image_shape: tuple[int, int], n_classes: int, name: str, batch_size: int) -> None:
    """Have what this step needs compiled for a CPU, by a step of a small network, so that no trial is charged for it.

    Args:
        image_shape: height and width.
        n_classes: outputs of the network.
        name: of the step, or "auto".
        batch_size: what is compiled depends on it.
    """
    if name == "autograd" or batch_size > kernels.LARGEST_BATCH:
        return
    params = dict(n_conv_layer=2, kernel_size=2, n_hidden_layer=17)
    weights = net.initial_weights(params, image_shape, n_classes, seed=1, device=torch.device("cpu"))
    step = make_step("manual", weights, image_shape, batch_size=batch_size, learning_rate=0.1, momentum=0.1)
    step(torch.zeros(batch_size, *image_shape), torch.zeros(batch_size, dtype=torch.int64))


def make_step(
    name: str,
    weights: net.Weights,
    image_shape: tuple[int, int],
    *,
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> Step:
    """The training step of that name for these weights, which it takes over.

    Raises:
        ValueError: the name is not in STEPS.
    """
    if name not in STEPS:
        raise ValueError(f"there is no training step {name!r}; there are {', '.join(STEPS)}")
    if name == "autograd":
        return AutogradStep(weights, learning_rate=learning_rate, momentum=momentum)
    n_units, n_features = weights["hidden.weight"].shape
    _log.info("training step: %d x %d weights, momentum %.2g", n_features, n_units, momentum)
    sgd: dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)
    by_kernels = (
        weights["hidden.weight"].device.type == "cpu"
        and torch.get_num_threads() <= MOST_THREADS
        and batch_size <= kernels.LARGEST_BATCH
    )

    def make_hidden(hidden: Tensor) -> Hidden:
        return (KernelHidden if by_kernels else DenseHidden)(hidden, **sgd)

    return ManualStep(weights, image_shape, make_hidden, **sgd)
