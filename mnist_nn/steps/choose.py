"""Which training step to use, by a model of what each costs.

All that differs between the steps is the hidden layer. Each pass over its weights costs the time to move
its bytes or that of its arithmetic, whichever is longer. The rates are constants, not measurements of the
moment: the choice decides the last bits of a result, and so must not depend on what else a node is doing.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.shapes import Params, shapes_of
from mnist_nn.steps import kernels
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.deferred import BLOCK, DeferredHidden, steps_to_settle
from mnist_nn.steps.hidden import DenseHidden, Hidden, KernelHidden, KernelProducts, Products
from mnist_nn.steps.manual import ManualStep
from mnist_nn.trust import trusted_ways

STEPS = ("auto", "autograd", "manual", "deferred", "grouped")
_log = logging.getLogger(__name__)


class Step(Protocol):
    """Learns from one batch per call and returns the sum of its losses before the step, without axes."""

    name: str

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor: ...
    def finish(self) -> net.Weights: ...


@dataclass(frozen=True)
class Machine:
    """How fast something computes.

    Attributes:
        bandwidth: bytes per second, reading weights in order.
        thin: floating point operations per second of a product with a batch.
        square: the same of a product without a thin side.
        overhead: seconds of a block of the deferred window that is no arithmetic.
        one_pass: gradient, velocity and weights are one pass.
        steps: to choose from.
        launching: seconds that it takes to start a step's operations one by one, while earlier ones compute.
        replaying: the same of the step "grouped", which a CUDA graph starts as a whole.
    """

    bandwidth: float
    thin: float
    square: float
    overhead: float
    one_pass: bool
    steps: tuple[str, ...] = ("manual", "deferred")
    launching: float = 0.0
    replaying: float = 0.0


# One core of an AMD EPYC of family 26 (Zen 5) at 40 GB/s; what counts are the ratios, see tests.
KERNELS = Machine(bandwidth=42e9, thin=130e9, square=90e9, overhead=30e-6, one_pass=True)
PRODUCTS = Machine(bandwidth=42e9, thin=42e9, square=90e9, overhead=30e-6, one_pass=False)
# An H200 by its data sheet, four fifths of its bandwidth; some 45 operations of 5 us, or 30 in a graph of 1.5 us.
# No GPU has been measured yet: these rates are guesses, to be replaced by those of benchmarks/nn_step.py.
CUDA = Machine(
    bandwidth=3.8e12,
    thin=20e12,
    square=40e12,
    overhead=30e-6,
    one_pass=True,
    steps=("grouped",),
    launching=225e-6,
    replaying=45e-6,
)


def expected_seconds(
    step: str, n_features: int, n_units: int, *, batch_size: int, momentum: float, machine: Machine
) -> float:
    """Time of the hidden layer's part of one step, "manual", "deferred" or "grouped", in seconds.

    Where starting its operations takes longer than computing them, the time of that.
    """

    def a_pass(n_bytes: float, flops: float) -> float:
        """Seconds per weight."""
        return max(n_bytes / machine.bandwidth, flops / machine.thin)

    product = a_pass(4, 2 * batch_size)
    if step == "deferred":
        fold = 2 * batch_size / machine.square + 8 / BLOCK / machine.bandwidth
        steps_kept = steps_to_settle(momentum) + BLOCK
        window = 2 * product * steps_kept * batch_size / n_units
        overhead = machine.overhead * (1 + steps_kept / BLOCK)
        seconds = n_features * n_units * (2 * product + fold + window) + overhead
    elif machine.one_pass:
        seconds = n_features * n_units * (product + a_pass(16, 4 * batch_size))
    else:
        seconds = n_features * n_units * (2 * product + a_pass(8, 2 * batch_size) + a_pass(12, 2))
    return max(seconds, machine.replaying if step == "grouped" else machine.launching)


def faster_step(n_features: int, n_units: int, *, batch_size: int, momentum: float, machine: Machine) -> str:
    """The one of the machine's steps that is expected to take the least time."""
    seconds = {
        step: expected_seconds(step, n_features, n_units, batch_size=batch_size, momentum=momentum, machine=machine)
        for step in machine.steps
    }
    return min(seconds, key=lambda step: seconds[step])


def machine_of(device: torch.device, batch_size: int) -> Machine:
    """What computes the hidden layer: kernels for a small batch and few threads, else PyTorch's products.

    On a GPU the only step to choose from is the fastest that has proved itself there.
    """
    if device.type != "cpu":
        return replace(CUDA, steps=steps_on_a_gpu(trusted_ways(batch_size)))
    few_threads = torch.get_num_threads() < KERNELS.thin / PRODUCTS.thin  # The kernels use only one.
    return KERNELS if few_threads and batch_size <= kernels.LARGEST_BATCH else PRODUCTS


def steps_on_a_gpu(trusted: Collection[str]) -> tuple[str, ...]:
    """What "auto" chooses from where these ways are trusted: never "deferred", which nobody has timed on one."""
    if "grouped" in trusted:
        return ("grouped",)
    return ("manual",) if "manual" in trusted else ("autograd",)


def chosen_step(
    name: str, n_features: int, n_units: int, *, batch_size: int, momentum: float, device: torch.device
) -> str:
    """The step of that name, or for "auto" the one expected to be faster on this device.

    Raises:
        ValueError: the name is none of STEPS.
    """
    if name not in STEPS:
        raise ValueError(f"there is no training step {name!r}; there are {', '.join(STEPS)}")
    if name != "auto":
        return name
    machine = machine_of(device, batch_size)
    return faster_step(n_features, n_units, batch_size=batch_size, momentum=momentum, machine=machine)


def step_for(
    name: str,
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    batch_size: int,
    device: torch.device,
) -> str:
    """`chosen_step` for the network that these parameters describe."""
    n_units, n_features = shapes_of(params, image_shape, n_classes)["hidden.weight"]
    momentum = float(params["momentum"])
    return chosen_step(name, n_features, n_units, batch_size=batch_size, momentum=momentum, device=device)


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
        ValueError: the name is none of STEPS, or is or means "grouped", which `training.train_together` makes.
    """
    n_units, n_features = weights["hidden.weight"].shape
    device = weights["hidden.weight"].device
    name = chosen_step(name, n_features, n_units, batch_size=batch_size, momentum=momentum, device=device)
    if name == "grouped":
        raise ValueError("the step 'grouped' takes its batches from the device: see training.train_together")
    if name == "autograd":
        return AutogradStep(weights, learning_rate=learning_rate, momentum=momentum)
    _log.info("training step %s: %d x %d weights, momentum %.2g", name, n_features, n_units, momentum)
    machine = machine_of(device, batch_size)
    sgd: dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)

    def make_hidden(hidden: Tensor) -> Hidden:
        if name == "deferred":
            return DeferredHidden(hidden, KernelProducts if machine is KERNELS else Products, **sgd)
        return (KernelHidden if machine is KERNELS else DenseHidden)(hidden, **sgd)

    return ManualStep(name, weights, image_shape, make_hidden, **sgd)
