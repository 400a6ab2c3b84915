"""Small trainings whose result is known, for the check of the training steps (`mnist_nn.selfcheck`).

Images, weights and orders are drawn on the CPU, so they are the same for all devices. They are chosen so that no unit
comes close to the kink of a ReLU, where rounding could change its sign. Rounding to float32 then makes a difference of
2e-6 of what a weight has changed by, and TF32 one of more than 2e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.choose import make_step
from mnist_nn.steps.grouped import GroupedStep
from mnist_nn.steps.grouped_hidden import GroupedHidden

EPOCHS, RATE, MOMENTUM, MAX_PIXEL, CLASSES = 2, 0.05, 0.9, 255.0, 10
MARGIN = 2e-7  # the least distance from a kink, relative to the largest of the layer; rounding makes 3e-8
TRIES = 20
LEARNING = dict(learning_rate=RATE, momentum=MOMENTUM)
IMAGES = {"cuda": 80, "cpu": 20}  # at least two batches of them, the last one not full
N_NETWORKS, ABSENT, IDLE = 4, 3, 2  # a place without a network, a network without images


class Case(NamedTuple):
    """A small training whose result is known.

    Attributes:
        params: of the networks.
        batch_size: images of a step.
        images: uint8 (n, h, w) on the CPU; no network learns from the last `batch_size` ones.
        labels: int64 (n,) on the CPU.
        orders: of the images of each network, for each epoch.
    """

    params: dict[str, Any]
    batch_size: int
    images: Tensor
    labels: Tensor
    orders: list[dict[int, np.ndarray]]

    def initial(self, number: int) -> net.Weights:
        """The same numbers on any device and in any precision."""
        return net.initial_weights(self.params, self.shape, CLASSES, seed=number, device=torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]


class StepRun(NamedTuple):
    """What a training of a `Case` gave.

    Attributes:
        losses: of each epoch, by network.
        weights: on the CPU, by network.
    """

    losses: list[dict[int, float]]
    weights: dict[int, net.Weights]

    def has_bits_of(self, other: StepRun) -> bool:
        return self.losses == other.losses and all(
            torch.equal(weight, other.weights[number][name])
            for number in self.weights
            for name, weight in self.weights[number].items()
        )


def with_reference(architecture: tuple[int, int, int, int], batch_size: int, kind: str) -> tuple[Case, StepRun]:
    """A case, and the run of it by autograd in double precision on the CPU."""
    n_batches = min(8, max(2, IMAGES[kind] // batch_size))
    found = []
    for seed in range(TRIES):
        case, margins = case_of(architecture, batch_size, n_batches, seed), [1.0]

        def make(weights: net.Weights, margins: list[float] = margins) -> Any:
            step = AutogradStep({name: weight.double() for name, weight in weights.items()}, **LEARNING)

            def learn(pixels: Tensor, labels: Tensor) -> Tensor:
                margins.append(_margin(step.weights, pixels))
                return step(pixels, labels)

            return SimpleNamespace(learn=learn, finish=step.finish)

        wanted = _alone(case, torch.device("cpu"), make, torch.float64)
        found.append((min(margins), case, wanted))
        if min(margins) > MARGIN:
            break
    _, case, wanted = max(found, key=lambda one: one[0])
    return case, wanted


@torch.inference_mode()
def _margin(weights: net.Weights, pixels: Tensor) -> float:
    """How close a unit comes to its kink, relative to the largest of its layer."""
    channels = F.conv2d(pixels[:, None], weights["conv.weight"], weights["conv.bias"])
    units = F.linear(channels.relu().flatten(1), weights["hidden.weight"], weights["hidden.bias"])
    return min(float(layer.abs().min() / layer.abs().max()) for layer in (channels, units))


def case_of(architecture: tuple[int, int, int, int], batch_size: int, n_batches: int, seed: int) -> Case:
    """Whole batches and one that is not full; a network with fewer images, one with none."""
    random = np.random.default_rng((batch_size, seed))
    n = n_batches * batch_size - batch_size // 4
    names = ("n_conv_layer", "kernel_size", "n_hidden_layer")
    params, side = dict(zip(names, architecture[1:], strict=True)) | LEARNING, architecture[0]
    images = torch.from_numpy(random.integers(0, 256, (n + batch_size, side, side), np.uint8))
    labels = torch.from_numpy(random.integers(0, CLASSES, n + batch_size))
    orders = [{0: random.permutation(n), 1: random.permutation(n)[batch_size // 2 + 1 :]} for _ in range(EPOCHS)]
    return Case(params, batch_size, images, labels, orders)


def one_by_one(case: Case, step: str, device: torch.device) -> StepRun:
    """The networks of a case by the step of that name."""

    def make(weights: net.Weights) -> Any:
        there = {name: _strided(weight, device) for name, weight in weights.items()}
        step_there = make_step(step, there, case.shape, batch_size=case.batch_size, **LEARNING)
        return SimpleNamespace(learn=step_there, finish=step_there.finish)

    return _alone(case, device, make, torch.float32)


def _alone(case: Case, device: torch.device, make: Callable[[net.Weights], Any], dtype: torch.dtype) -> StepRun:
    pixels = net.normalised(case.images.to(device), MAX_PIXEL).to(dtype)
    labels, losses, weights = case.labels.to(device), [dict[int, float]() for _ in case.orders], {}
    for number in case.orders[0]:
        step = make(case.initial(number))
        for epoch, orders in enumerate(case.orders):
            batches = torch.from_numpy(orders[number]).to(device).split(case.batch_size)
            losses[epoch][number] = float(sum(step.learn(pixels[batch], labels[batch]) for batch in batches))
        weights[number] = _on_cpu(step.finish())
    return StepRun(losses, weights)


def grouped(
    case: Case, layer: type[GroupedHidden], device: torch.device, *, replayed: bool = False, wild: bool = False
) -> StepRun:
    """Train the networks of a case together.

    Args:
        case: networks, images and orders.
        layer: how the hidden layer is computed.
        device: where.
        replayed: replay a captured CUDA graph, where the device has such.
        wild: one of the networks learns from images that are not numbers.
    """
    images = case.images.to(device)
    if wild:
        images = net.normalised(images, MAX_PIXEL)
        images[-case.batch_size :] = torch.nan
    initial = (
        {name: _strided(weight, device) for name, weight in case.initial(number).items()} if number != ABSENT else None
        for number in range(N_NETWORKS)
    )
    step = GroupedStep(
        initial, net.Images(images), case.labels.to(device), n_networks=N_NETWORKS, batch_size=case.batch_size,
        n_batches=-(-len(images) // case.batch_size), layer=layer, **LEARNING,
    )  # fmt: skip
    learn = step.replayed() if replayed else step
    losses = []
    for orders in case.orders:
        if wild:
            orders = {**orders, 1: np.arange(len(images) - case.batch_size, len(images))}
        step.begin(orders)
        for _ in range(-(-max(map(len, orders.values())) // case.batch_size)):
            learn()
        sums = step.losses()
        losses.append({number: sums[number] for number in orders})
    return StepRun(losses, {number: _on_cpu(step.finish(number)) for number in range(N_NETWORKS) if number != ABSENT})


def _strided(weight: Tensor, device: torch.device) -> Tensor:
    """A copy on a device, in the same order in memory."""
    return torch.empty_strided(weight.shape, weight.stride(), device=device).copy_(weight)


def _on_cpu(weights: Mapping[str, Tensor]) -> net.Weights:
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}
