"""Which training step to use.

On a CPU that is "manual": it is faster than what PyTorch offers wherever the search may look (benchmarks/nn_step.py).
On a GPU it is the fastest of the steps that have proved themselves there: by the rates that the study has of this GPU,
or in the order that is assumed.
"""

import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.shapes import Params, weights_of
from mnist_nn.steps import kernels
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.hidden import DenseHidden, Hidden, KernelHidden
from mnist_nn.steps.manual import ManualStep
from mnist_nn.trust import STEPS, trusted_ways

ASSUMED = ("grouped", "manual", "autograd")  # on a GPU, the fastest first, by the bytes that they move: a guess
MOST_THREADS = 3  # with more, PyTorch's products, which use all of them, are faster than kernels on one
_log = logging.getLogger(__name__)


class Step(Protocol):
    """Learns from one batch per call and returns the sum of its losses before the step, without axes."""

    name: str

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor: ...
    def finish(self) -> net.Weights: ...


@dataclass(frozen=True)
class Rates:
    """How long steps take on one device, as `mnist_nn.rates` measured.

    Attributes:
        batch_size: images of a step.
        seconds: of one step of one network, by the number of its weights and the name of the step.
    """

    batch_size: int
    seconds: Mapping[int, Mapping[str, float]]

    def fastest(self, steps: Collection[str], n_weights: int) -> str | None:
        """The one of the steps that was fastest at the measured size nearest to this one; None where none was timed."""
        sizes = [size for size, seconds in self.seconds.items() if not seconds.keys().isdisjoint(steps)]
        if not sizes:
            return None
        seconds = self.seconds[min(sizes, key=lambda size: max(size / n_weights, n_weights / size))]
        return min(seconds.keys() & set(steps), key=lambda step: (seconds[step], step))


def rates_for(model: str, beginnings: np.ndarray | None) -> Rates | None:
    """The rates of a model of GPU, of those that a study began with.

    Args:
        model: of the GPU.
        beginnings: uint8, what `mnist_nn.rates` measured by the model, as JSON. It comes from a journal, which anyone
            may have written.

    Returns:
        None where there are none, or they make no sense.
    """
    try:
        kept = json.loads(bytes(beginnings if beginnings is not None else b"{}"))[model]
        seconds = {
            int(n): {step: float(s) for step, s in of.items() if step in ASSUMED} for n, of in kept["seconds"].items()
        }
        rates = Rates(int(kept["batch_size"]), seconds)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    sound = all(n > 0 and all(0 < s < math.inf for s in of.values()) for n, of in seconds.items())
    return rates if sound else None


def step_on_a_gpu(trusted: Collection[str], n_weights: int, batch_size: int, rates: Rates | None = None) -> str:
    """The step that "auto" means where these ways are trusted."""
    steps = [step for step in ASSUMED if step in trusted or step == "autograd"]
    measured = rates.fastest(steps, n_weights) if rates is not None and rates.batch_size == batch_size else None
    return measured or steps[0]


def step_for(
    name: str,
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    batch_size: int,
    device: torch.device,
    rates: Rates | None = None,
) -> str:
    """The step of that name, or what "auto" means for the network of these parameters.

    Raises:
        ValueError: the name is not in STEPS.
    """
    if name not in STEPS:
        raise ValueError(f"there is no training step {name!r}; there are {', '.join(STEPS)}")
    if name != "auto":
        return name
    if device.type == "cpu":
        return "manual"
    return step_on_a_gpu(trusted_ways(batch_size), weights_of(params, image_shape, n_classes), batch_size, rates)


def warm_up(image_shape: tuple[int, int], n_classes: int, name: str, batch_size: int) -> None:
    """Have what this step needs compiled for a CPU, by a step of a small network, so that no trial is charged for it.

    Args:
        image_shape: height and width.
        n_classes: outputs of the network.
        name: of the step, or "auto".
        batch_size: what is compiled depends on it.
    """
    if name not in ("auto", "manual") or batch_size > kernels.LARGEST_BATCH:
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
        ValueError: the name is not "autograd" or "manual". `training.train_together` makes "grouped".
    """
    if name == "autograd":
        return AutogradStep(weights, learning_rate=learning_rate, momentum=momentum)
    if name != "manual":
        raise ValueError(f"there is no training step {name!r} to be made; training.train_together makes 'grouped'")
    n_units, n_features = weights["hidden.weight"].shape
    _log.info("training step %s: %d x %d weights, momentum %.2g", name, n_features, n_units, momentum)
    sgd: dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)
    by_kernels = (
        weights["hidden.weight"].device.type == "cpu"
        and torch.get_num_threads() <= MOST_THREADS
        and batch_size <= kernels.LARGEST_BATCH
    )

    def make_hidden(hidden: Tensor) -> Hidden:
        return (KernelHidden if by_kernels else DenseHidden)(hidden, **sgd)

    return ManualStep(name, weights, image_shape, make_hidden, **sgd)
