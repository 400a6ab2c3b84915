"""Which training step to use: "manual", unless "autograd" is asked for.

On a CPU it is faster than what PyTorch offers wherever the search may look (benchmarks/nn_step.py). On a GPU, replayed
from a CUDA graph, it takes 0.56 to 0.78 of the time of the best plain way (benchmarks/results/gpu_h100.md).
"""

import logging
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps import STEPS, kernels
from mnist_nn.steps.manual import DenseHidden, KernelHidden, ManualStep
from mpitune.folders import private_folder
from mpitune.locks import locked

MOST_THREADS = 3  # with more, PyTorch's products, which use all of them, are faster than kernels on one
_log = logging.getLogger(__name__)


class Step(Protocol):
    """Learns from one batch per call and returns the sum of its losses before the step, without axes."""

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor: ...
    def finish(self) -> net.Weights: ...


class AutogradStep:
    """One step of SGD with momentum per call, in plain PyTorch: the reference of all others.

    Args:
        weights: of the network; they are updated in place.
        learning_rate, momentum: as in `torch.optim.SGD`: velocity = momentum * velocity + gradient;
            weight -= learning_rate * velocity.
    """

    def __init__(self, weights: net.Weights, *, learning_rate: float, momentum: float) -> None:
        self.weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=learning_rate, momentum=momentum)

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Learn from normalised pixels (n, h, w) and labels (n,); return the sum of losses before the step."""
        self.optimizer.zero_grad()
        with _without_cudnn(pixels.device):
            loss = F.cross_entropy(net.logits(self.weights, pixels), labels)
            loss.backward()
        self.optimizer.step()
        return loss.detach() * len(pixels)

    def finish(self) -> net.Weights:
        """The weights after the last step."""
        return {name: weight.detach() for name, weight in self.weights.items()}


def _without_cudnn(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU, PyTorch's own convolutions.

    cuDNN's gradient of a convolution's weights either is added up in any order, or (`cudnn.deterministic`, PyTorch 2.11
    on an H100) is wrong by up to 3e-3 of its largest, though TF32 is off: docs/gpu.md.
    """
    if device.type == "cpu":
        return nullcontext()
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False, allow_tf32=False)
    return flags


def warm_up(image_shape: tuple[int, int], n_classes: int, name: str, batch_size: int) -> None:
    """Have what this step needs compiled for a CPU, by a step of a small network: no trial is charged for it.

    Of processes of this node that begin at a time one compiles, the others wait and read.
    """
    if name == "autograd" or batch_size > kernels.LARGEST_BATCH:
        return
    params = dict(n_conv_layer=2, kernel_size=2, n_hidden_layer=17)
    weights = net.initial_weights(params, image_shape, n_classes, seed=1, device=torch.device("cpu"))
    step = make_step("manual", weights, image_shape, batch_size=batch_size, learning_rate=0.1, momentum=0.1)
    with ExitStack() as lock:
        with suppress(OSError):  # no folder for locks can be made
            lock.enter_context(locked(private_folder(local=True) / "warm-up-step.lock"))
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
    return manual_step(weights, image_shape, batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)


def manual_step(
    weights: net.Weights, image_shape: tuple[int, int], *, batch_size: int, learning_rate: float, momentum: float
) -> ManualStep:
    """The step "manual" for these weights, which it takes over."""
    n_units, n_features = weights["hidden.weight"].shape
    _log.info("training step: %d x %d weights, momentum %.2g", n_features, n_units, momentum)
    sgd: dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)
    by_kernels = (
        weights["hidden.weight"].device.type == "cpu"
        and torch.get_num_threads() <= MOST_THREADS
        and batch_size <= kernels.LARGEST_BATCH
    )

    def make_hidden(hidden: Tensor) -> DenseHidden | KernelHidden:
        return (KernelHidden if by_kernels else DenseHidden)(hidden, **sgd)

    return ManualStep(weights, image_shape, make_hidden, **sgd)
