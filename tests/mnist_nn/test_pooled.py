"""The operations that stand in for PyTorch's on the CPU give what PyTorch's give."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mnist_nn.parallel import networks
from mnist_nn.parallel.cpu.pooled import pooled_convolution

pytestmark = pytest.mark.numerical

N = st.integers(1, 5)
# Sizes of a window, and channels. For each number of vectors and runs something is compiled: two such here (the network
# below has others), all that there are where many examples are asked for.
FEW = st.sampled_from([(1, 1), (3, 6)])
ALL = st.tuples(st.integers(1, 5), st.integers(1, 8))
SIZES = FEW if settings.default is settings.get_profile("quick") else ALL


def reference(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(images, weight, bias), 2).relu()


def gradients(
    function: Callable[..., Tensor], inputs: list[Tensor], direction: Tensor | None = None
) -> tuple[Tensor, list[Tensor | None]]:
    for each in inputs:
        each.grad = None
    value = function(*inputs)
    value.backward(torch.ones_like(value) if direction is None else direction)
    return value.detach(), [each.grad for each in inputs]


def same(one: Tensor | None, other: Tensor | None, terms: float = 0.0) -> None:
    """Compare sums of floats; ``terms`` is no less than the sum of the sizes of their terms, which may cancel."""
    assert one is not None and other is not None and one.shape == other.shape
    rounding = max(2e-5 * float(other.abs().max()), 1e-6 * terms, 1e-30)
    torch.testing.assert_close(one, other, rtol=2e-5, atol=rounding, check_dtype=False)


@example(n=5, sizes=(1, 3), filters=1, height=3, width=2, last=False, needed=False, seed=3)  # its bias cancels
@given(n=N, sizes=SIZES, filters=st.integers(1, 9), height=st.integers(0, 6), width=st.integers(0, 6),
       last=st.booleans(), needed=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
def test_pooled_convolution(
    n: int, sizes: tuple[int, int], filters: int, height: int, width: int, last: bool, needed: bool, seed: int
) -> None:
    kernel, channels = sizes
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(n, channels, height + kernel + 1, width + kernel + 1, generator=random)
    if last:
        images = images.to(memory_format=torch.channels_last)
    weight = torch.randn(filters, channels, kernel, kernel, generator=random).requires_grad_()
    bias = torch.randn(filters, generator=random).requires_grad_()
    inputs = [images.requires_grad_(needed), weight, bias]
    direction = torch.randn(reference(*inputs).shape, generator=random)
    ours, found = gradients(pooled_convolution, inputs, direction)
    theirs, wanted = gradients(reference, inputs, direction)
    torch.testing.assert_close(ours, theirs)
    largest = max(1.0, *(float(each.detach().abs().max()) for each in inputs))
    for one, other in list(zip(found, wanted, strict=True))[not needed :]:
        same(one, other, terms=largest * float(direction.abs().sum()))
    assert needed or found[0] is None


def test_of_equal_numbers_the_first_has_the_gradient() -> None:
    inputs = [torch.ones(1, 1, 5, 5, requires_grad=True), torch.ones(2, 1, 2, 2, requires_grad=True)]
    inputs.append(torch.zeros(2, requires_grad=True))
    for one, other in zip(gradients(pooled_convolution, inputs)[1], gradients(reference, inputs)[1], strict=True):
        same(one, other)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_what_is_not_finite_spreads(broken: float, place: int) -> None:
    images = torch.zeros(1, 1, 2, 2)
    images.view(-1)[place] = broken
    pooled = pooled_convolution(images, torch.ones(3, 1, 1, 1), torch.zeros(3))
    assert not pooled.isfinite().any()


@pytest.mark.parametrize("n", [1, 37])
def test_the_kubeflow_network_is_that_of_pytorch(n: int) -> None:
    """PyTorch's in double precision, with images that keep away from the jumps of the gradient."""
    torch.manual_seed(3)
    network = networks.build({"network": "kubeflow"}, (28, 28), 10)
    exact = copy.deepcopy(network).double()
    labels = torch.randint(10, (n,))
    draws = (torch.randn(n, 28, 28) for _ in range(40))
    pixels = next(each for each in draws if distance_from_jumps(exact, each.double()) > 2e-6)
    ours, found = gradients(lambda *_: F.cross_entropy(network(pixels), labels), list(network.parameters()))
    theirs, wanted = gradients(lambda *_: F.cross_entropy(exact(pixels.double()), labels), list(exact.parameters()))
    same(ours, theirs)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def distance_from_jumps(network: nn.Module, pixels: Tensor) -> float:
    """By how much the largest of four inputs of a pooling leads, and how far it and a hidden unit are from 0.

    Rounding decides which input has the gradient where that is next to nothing.
    """
    found = []
    with torch.no_grad():
        x = pixels[:, None]
        for layer in (network.conv1, network.conv2):
            four = layer(x).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)  # type: ignore[operator]
            first, second = four.topk(2).values.unbind(-1)
            found += [(first - second)[first > 0].min(), first.abs().min()]
            x = first.relu()
        found.append(network.hidden(x.flatten(1)).abs().min())  # type: ignore[operator]
    return float(min(found))
