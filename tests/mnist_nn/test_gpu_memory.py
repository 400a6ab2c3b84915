"""A training's memory of a GPU, without a GPU: on tensors without content, with PyTorch's allocator acted out.

The rules are those of c10/cuda/CUDACachingAllocator.cpp: the smallest free block that is large enough is taken, and cut
where more than a MiB is left; else CUDA is asked for a segment.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.backends.cuda.is_built():
    pytest.skip("this PyTorch is built for CPUs alone", allow_module_level=True)
pytest.importorskip("triton")
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from mnist_nn import net  # noqa: E402
from mnist_nn.memory.estimate import memory_bytes  # noqa: E402
from mnist_nn.steps import grouped_hidden  # noqa: E402
from mnist_nn.steps.grouped import GroupedStep  # noqa: E402

MIB = 1 << 20
CUDA = torch.device("cuda", 0)
LEARNING = dict(learning_rate=0.01, momentum=0.5)


class Allocator:
    """One pool of segments, each a list of [size, whether it is free]. Small tensors have others and do not matter."""

    def __init__(self, taken: int) -> None:
        self.segments: list[list[list[Any]]] = [[[taken, True]]]

    def reserved(self) -> int:
        return sum(block[0] for segment in self.segments for block in segment)

    def malloc(self, size: int) -> list[Any]:
        size = -(-size // 512) * 512
        fitting = [(block[0], segment, block) for segment in self.segments for block in segment if block[1]]
        fitting = [one for one in fitting if one[0] >= size]
        if not fitting:
            whole = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append([[whole, True]])
            return self.malloc(size)
        _, segment, block = min(fitting, key=lambda one: one[0])
        if block[0] - size > MIB:
            segment.insert(next(i for i, other in enumerate(segment) if other is block) + 1, [block[0] - size, True])
            block[0] = size
        block[1] = False
        return block

    def free(self, block: list[Any]) -> None:
        block[1] = True
        for segment in self.segments:
            i = 1
            while i < len(segment):
                if segment[i - 1][1] and segment[i][1]:
                    segment[i - 1][0] += segment.pop(i)[0]
                else:
                    i += 1


class Watched(TorchDispatchMode):
    """Tells the allocator of every tensor of the device that is made and that is gone."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self.allocator = allocator
        self.there: dict[int, tuple[Any, list[Any]]] = {}
        self.random: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.collect()
        out = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor) and each.device.type == "cuda"]
        if tensors and torch.Tag.nondeterministic_seeded in func.tags:
            self.random.append(str(func))
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.there and storage.nbytes() > MIB:
                self.there[storage._cdata] = (StorageWeakRef(storage), self.allocator.malloc(storage.nbytes()))
        return out

    def collect(self) -> None:
        for name in [name for name, (ref, _) in self.there.items() if ref.expired()]:
            self.allocator.free(self.there.pop(name)[1])


def network(channels: int, kernel: int, units: int) -> dict[str, Any]:
    return dict(n_conv_layer=channels, kernel_size=kernel, n_hidden_layer=units, **LEARNING)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused layer, whose kernels allocate nothing, with kernels that do nothing."""
    from mnist_nn.steps import triton_kernel

    class Layer(grouped_hidden.FusedHidden):
        def __init__(self, weights: Any, batch_size: int) -> None:
            super().__init__(weights, batch_size)
            idle = dict(forward=lambda w, x, sums, out: out, learn=lambda *_: None)
            self._kernel = SimpleNamespace(parts_of=triton_kernel.parts_of, **idle)  # type: ignore[assignment]

    monkeypatch.setattr("mnist_nn.steps.grouped.make_hidden", Layer)


@pytest.mark.parametrize(
    "channels, kernel, units, n_networks",
    [
        (500, 5, 1000, 1),
        (40, 5, 37, 5),
        (2, 3, 8, 5),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((999, 6, 1500, 1), (999, 2, 1999, 1), (300, 5, 1008, 1))
        ),
    ],
)
def test_a_training_takes_no_more_than_it_was_admitted_with(
    kernels: None, channels: int, kernel: int, units: int, n_networks: int
) -> None:
    """Where units are filled up to a multiple of 16, the velocity does not fit where the initial weights were."""
    params = network(channels, kernel, units)
    needed = memory_bytes(params, (28, 28), 10, device=CUDA, step="grouped", n_networks=n_networks)
    allocator = Allocator(needed)
    with FakeTensorMode(allow_non_fake_inputs=True), Watched(allocator) as watched:
        images = torch.zeros(100, 28, 28, dtype=torch.uint8, device=CUDA)
        labels = torch.zeros(100, dtype=torch.int64, device=CUDA)
        initial = (net.initial_weights(params, (28, 28), 10, seed=seed, device=CUDA) for seed in range(n_networks))
        step = GroupedStep(
            initial, net.Images(images), labels, n_networks=n_networks, n_batches=10, batch_size=10, **LEARNING
        )
        step.begin(dict.fromkeys(range(n_networks), np.arange(100)))
        for _ in range(2):
            step()
        watched.collect()
        assert watched.there, "nothing was seen"
    assert allocator.reserved() == needed


def test_no_number_is_drawn_on_a_gpu() -> None:
    """Its stream depends on how many processors it has: the same seed would be another network on another GPU."""
    with FakeTensorMode(), Watched(Allocator(0)) as watched:
        torch.empty(3, device=CUDA).uniform_()
        assert watched.random, "the watch sees it"
        watched.random.clear()
        weights = net.initial_weights(network(20, 5, 100), (28, 28), 10, seed=1, device=CUDA)
    assert {weight.device for weight in weights.values()} == {CUDA} and not watched.random


def test_pieces_have_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is not the CPU, here acted out by tensors that say so."""
    params, cpu = network(7, 3, 33), torch.device("cpu")
    whole = net.initial_weights(params, (12, 12), 10, seed=5, device=cpu)
    monkeypatch.setattr(net, "PIECE", 1000)

    class Elsewhere(torch.Tensor):
        device = CUDA  # type: ignore[assignment]

    made = torch.empty
    monkeypatch.setattr(
        net.torch, "empty", lambda *shape, device=None: made(*shape).as_subclass(Elsewhere if device else torch.Tensor)
    )
    pieces = net.initial_weights(params, (12, 12), 10, seed=5, device=cpu)
    assert all(isinstance(pieces[name], Elsewhere) and torch.equal(pieces[name], whole[name]) for name in whole)
