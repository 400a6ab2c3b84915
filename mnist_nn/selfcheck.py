"""Whether each way to compute a training step gives the right result on a device: see `mpitune.devices.selfcheck`.

autograd    trainings against float64 autograd on the CPU
manual      the same
grouped     the same; a replayed graph and a second run have its bits; a network without images stays as it is, and
so do the neighbours of one with NaN; memory is given back; a second architecture does all this too
fused       the same, and the products of each kernel by themselves
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mnist_nn.small_trainings import IDLE, Case, StepRun, grouped, one_by_one, with_reference
from mnist_nn.steps.grouped_hidden import LARGEST_BATCH, FusedHidden, GroupedHidden
from mnist_nn.training import prepare
from mpitune._jit.compiler import missing_for_triton

ROOM_BYTES = 1 << 30
LARGE_BYTES = 6 << 30  # free for the check of products whose weights are more than 2^31 / 8
LARGEST_CHECKED = 40  # images of a batch
TOLERANCE = 3e-5  # of a loss, and of the largest change of the weights of a kind
OF_LIBRARY = 5  # times that for autograd, as cuDNN may compute a convolution by Winograd's way
# (side of an image, channels, kernel, units), the units no multiple of 16. Small ones for Triton's interpreter.
ARCHITECTURES = {"cuda": ((28, 6, 5, 70), (28, 3, 4, 40)), "cpu": ((10, 3, 4, 70), (6, 1, 3, 5))}
# (networks, features, units, batch): whole tiles, more, fewer; a part of a block of images.
PRODUCTS = ((1, 32, 128, 10), (3, 33, 144, 10), (2, 300, 16, 1), (1, 5, 272, 20))
LARGE_PRODUCT = (1, (1 << 18) + 40, 1040, 10)


class Wrong(Exception):
    """An error of a way of training."""


def examine(kind: str, batch_size: str) -> Iterator[tuple[str, str]]:
    """Check each way to compute a training step; see `mpitune.devices.selfcheck`.

    Args:
        kind: "cuda" or "cpu".
        batch_size: of the study.

    Raises:
        MemoryError: the GPU has too little free memory.
    """
    device = torch.device(kind)
    prepare(device)
    if device.type == "cuda" and (free := torch.cuda.mem_get_info(device)[0]) < ROOM_BYTES:
        raise MemoryError(f"only {free / 1e9:.2g} GB of the GPU's memory are free")
    sizes = dict.fromkeys((min(int(batch_size), LARGEST_CHECKED), 1)) if device.type == "cuda" else (int(batch_size),)
    cases = [with_reference(each, size, kind) for each in ARCHITECTURES[kind] for size in sizes]

    def alone(step: str, tolerance: float) -> None:
        for case, wanted in cases:
            compare(case, one_by_one(case, step, device), wanted, tolerance)

    def together(layer: type[GroupedHidden]) -> None:
        for case, wanted in cases:
            check_group(case, wanted, layer, device)

    def fused() -> None:
        if device.type == "cuda" and (missing := missing_for_triton()):
            raise Wrong(f"Triton needs {missing}")
        if int(batch_size) > LARGEST_BATCH:
            raise Wrong(f"it takes batches of at most {LARGEST_BATCH} images")
        for shape in PRODUCTS:
            check_products(*shape, device=device)
        if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > LARGE_BYTES:
            check_products(*LARGE_PRODUCT, device=device, rows=64)
        together(FusedHidden)

    yield "autograd", _problem(lambda: alone("autograd", OF_LIBRARY * TOLERANCE))
    yield "manual", _problem(lambda: alone("manual", TOLERANCE))
    yield "grouped", _problem(lambda: together(GroupedHidden))
    yield "fused", _problem(fused)


def check_group(case: Case, wanted: StepRun, layer: type[GroupedHidden], device: torch.device) -> None:
    """Raises Wrong."""
    eager = grouped(case, layer, device)
    compare(case, eager, wanted, TOLERANCE)
    initial = case.initial(IDLE)
    if not all(torch.equal(eager.weights[IDLE][name], initial[name]) for name in initial):
        raise Wrong("a network without images has changed")
    if not grouped(case, layer, device, replayed=True).has_bits_of(eager):
        raise Wrong("the replayed graph has other bits than the step")
    before = allocated(device)
    if not grouped(case, layer, device, replayed=True).has_bits_of(eager):
        raise Wrong("a second run has other bits than the first")
    if (kept := allocated(device) - before) > 0:
        raise Wrong(f"{kept} bytes of memory are not given back")
    wild = grouped(case, layer, device, replayed=True, wild=True)
    for number in (0, IDLE):
        if not all(torch.equal(wild.weights[number][name], eager.weights[number][name]) for name in initial):
            raise Wrong("a network that is not a number changes its neighbours")


def compare(case: Case, found: StepRun, wanted: StepRun, tolerance: float) -> None:
    """Raises Wrong where a loss or a weight differs by more than the tolerance, or is not a number."""
    for epoch, losses in enumerate(wanted.losses):
        for number, loss in losses.items():
            differ = abs(found.losses[epoch][number] - loss) / abs(loss)
            if not differ <= tolerance:
                raise Wrong(f"the loss of epoch {epoch + 1} differs by {differ:.1g}")
    for number, weights in wanted.weights.items():
        initial = case.initial(number)
        for name, weight in weights.items():
            change = float((weight - initial[name].double()).abs().max())
            differ = float((found.weights[number][name].double() - weight).abs().max()) / change
            if not differ <= tolerance:
                raise Wrong(f"{name} differs by {differ:.1g} of its change")


def check_products(
    n_networks: int, n_features: int, n_units: int, n_batch: int, *, device: torch.device, rows: int | None = None
) -> None:
    """Compare each kernel with its formulas in float64; a network whose rate is 0 must stay as it is.

    Args:
        n_networks: networks that learn together.
        n_features: features of the hidden layer's input.
        n_units: its units.
        n_batch: images of a batch.
        device: where the kernels run.
        rows: all weights but the last of this many features are 0, and only these are compared.

    Raises:
        Wrong: a kernel differs, or a network has changed that must not.
    """
    from mnist_nn.steps.triton_kernel import forward, learn, parts_of

    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n_networks, *shape, generator=generator).to(device)

    part = slice(n_features - (rows or n_features), n_features)
    weights, velocity = (torch.zeros(n_networks, n_features, n_units, device=device) for _ in range(2))
    features, derivatives = (torch.zeros(n_networks, n_features, n_batch, device=device) for _ in range(2))
    for each in (weights, velocity, features):
        each[:, part] = normal(part.stop - part.start, each.shape[2])
    delta, momentum, minus_rate = normal(n_batch, n_units), normal().abs(), -normal().abs()
    if n_networks > 1:
        momentum[1], minus_rate[1], delta[1] = 1, 0, 0
    w, v, x, d = (each.double() for each in (weights[:, part], velocity[:, part], features[:, part], delta))
    new_v = momentum.double()[:, None, None] * v + x @ d
    new_w = w + minus_rate.double()[:, None, None] * new_v
    n_parts, _ = parts_of(n_features, n_units)
    sums, out = (delta.new_full((*n, *delta.shape), torch.nan) for n in ((n_parts,), ()))
    _close("forward", forward(weights, features, sums, out), x.mT @ w)
    kept = [each[1:2].clone() for each in (weights, velocity)] if n_networks > 1 else []
    learn(weights, velocity, features, delta, derivatives, momentum, minus_rate)
    wanted = w @ d.mT
    wanted[1:2] = 0
    _close("derivatives", derivatives[:, part], wanted)
    _close("velocity", velocity[:, part], new_v)
    _close("weights", weights[:, part], new_w)
    if kept and not (torch.equal(weights[1:2], kept[0]) and torch.equal(velocity[1:2], kept[1])):
        raise Wrong("the kernel changes a network whose rate is 0")


def _close(name: str, found: Tensor, wanted: Tensor) -> None:
    differ = float((found.double() - wanted).abs().max() / wanted.abs().max())
    if not differ <= 1e-5:
        raise Wrong(f"the kernel's {name} of {tuple(found.shape)} differ by {differ:.1g}")


def allocated(device: torch.device) -> int:
    """Bytes of tensors that are there."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    tensors = [each for each in gc.get_objects() if type(each) is Tensor]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def _problem(tried: Callable[[], None]) -> str:
    """What is wrong with it, "" for nothing."""
    try:
        tried()
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:  # of a library that is broken, or of the device
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""
