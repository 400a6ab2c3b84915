"""How long training steps take on a device, measured: `python -m mpitune doctor --benchmark`, `benchmarks.nn_step`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnist_nn import net, training
from mnist_nn.memory.estimate import memory_bytes
from mnist_nn.shapes import Params, is_small, weights_of
from mnist_nn.steps.choose import Rates, make_step, step_on_a_gpu
from mnist_nn.steps.grouped import GroupedStep
from mnist_nn.trust import trusted_ways
from mpitune.devices.devices import free_memory
from mpitune.devices.rates import NO_TIME, Budget

SIZES = {"small": (8, 8, 69), "medium": (64, 5, 256), "large": (500, 5, 1000)}  # channels, kernel, units
SHAPE, CLASSES = (28, 28), 10
BATCH_SIZE = 10
FOLDS = 5  # networks that are trained together, below `shapes.SMALL` weights
# Bytes that a step moves for each weight. On a GPU the manual step has no kernel of its own.
BYTES_MOVED = {"cpu": {"autograd": 32, "manual": 20}, "cuda": {"autograd": 32, "manual": 28, "grouped": 20}}
# Of a measurement, of which the fastest round counts: what else the machine does only takes time.
ROUND_S, ROUNDS, ENOUGH_S = 0.3, 5, 3.0
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}


def params_of(size: str, momentum: float = 0.1) -> dict[str, Any]:
    """Parameters of a network of that size."""
    names = ("n_conv_layer", "kernel_size", "n_hidden_layer")
    return dict(zip(names, SIZES[size], strict=True)) | {"learning_rate": 1e-3, "momentum": momentum}


def one_network(name: str, images: Tensor, labels: Tensor, params: Params) -> Iterator[None]:
    """One step each time it is advanced, gathering and normalising included as in `training.train`."""
    shape = (images.shape[1], images.shape[2])
    weights = net.initial_weights(params, shape, CLASSES, seed=1, device=images.device)
    learn = make_step(
        name,
        weights,
        shape,
        batch_size=BATCH_SIZE,
        learning_rate=float(params["learning_rate"]),
        momentum=float(params["momentum"]),
    )
    del weights
    while True:
        for block in torch.randperm(len(images), device=images.device).split(BATCH_SIZE * training.BATCHES_PER_BLOCK):
            pixels = net.normalised(images[block], 255.0)
            for x, y in zip(pixels.split(BATCH_SIZE), labels[block].split(BATCH_SIZE), strict=True):
                learn(x, y)
                yield


def grouped(n_networks: int, images: Tensor, labels: Tensor, params: Params) -> Iterator[None]:
    """One step of all networks each time it is advanced, on a GPU a replayed graph."""
    shape = (images.shape[1], images.shape[2])
    step = GroupedStep(
        (net.initial_weights(params, shape, CLASSES, seed=seed, device=images.device) for seed in range(n_networks)),
        net.Images(images),
        labels,
        n_networks=n_networks,
        n_batches=-(-len(images) // BATCH_SIZE),
        batch_size=BATCH_SIZE,
        learning_rate=float(params["learning_rate"]),
        momentum=float(params["momentum"]),
    )
    learn, random = step.replayed(), np.random.default_rng(1)
    while True:
        step.begin({number: random.permutation(len(images)) for number in range(n_networks)})
        for _ in range(-(-len(images) // BATCH_SIZE)):
            learn()
            yield


def now(device: torch.device) -> float:
    """Seconds: CPU time, or wall time once the GPU has nothing left to do."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def ms_per_step(steps: Iterator[object], n: int, device: torch.device) -> float:
    """Milliseconds of each of the next n."""
    start = now(device)
    for _ in islice(steps, n):
        pass
    return (now(device) - start) / n * 1e3


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of the fastest of several copies of what no cache holds."""
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    copies = (target.copy_(source) for _ in range(12))
    return 2 * COPY_BYTES[device.type] / min(ms_per_step(copies, 2, device) for _ in range(6)) * 1e3


def measured(kind: str, deadline: str = "inf", largest: str = "large") -> Iterator[dict[str, Any]]:
    """Measured rates of a device, for `mpitune.devices.rates`: after each measurement all that is known so far.

    Args:
        kind: "cpu" or "cuda", the device that this process sees.
        deadline: of `mpitune.devices.rates.Budget`; what would take longer is left out, but for the smallest size.
        largest: of SIZES that is measured.
    """
    budget, device = Budget(float(deadline)), device_of(kind)
    training.prepare(device)
    images = torch.randint(256, (2_000, *SHAPE), dtype=torch.uint8).to(device)
    labels = torch.randint(CLASSES, (2_000,)).to(device)
    trusted = trusted_ways(BATCH_SIZE) if kind == "cuda" else ()
    copied = copy_bandwidth(device)
    rows, found = [("a copy", f"{copied / 1e9:.4g} GB/s", "")], dict[int, dict[str, float]]()

    def so_far() -> dict[str, Any]:
        rates = Rates(BATCH_SIZE, {size: times for size, times in found.items() if times})
        return {"rows": rows, "rates": {"copy": copied, **as_json(rates)}}

    yield so_far()
    for size in list(SIZES)[: list(SIZES).index(largest) + 1]:
        params = params_of(size)
        n_weights = weights_of(params, SHAPE, CLASSES)
        times = found[n_weights] = {}
        for step, n_bytes in BYTES_MOVED[kind].items():
            if kind == "cuda" and step not in {"autograd", *trusted}:
                continue
            if len(found) > 1 and not budget.suffices(
                _cost(step, n_weights, found)
            ):  # the first size is always measured
                rows.append((f"{size}, {step}", NO_TIME, ""))
                continue
            if _bytes_of(params, step, device) > _free(device):
                rows.append((f"{size}, {step}", "it does not fit the memory", ""))
                continue
            times[step] = _seconds_of(step, params, images, labels)
            by_bytes = f"{1e3 * n_bytes * n_weights / copied:.3g} ms by {n_bytes} bytes a weight"
            rows.append((f"{size}, {step}", f"{1e3 * times[step]:.3g} ms a step", by_bytes))
            yield so_far()
        if times:
            fastest = min(times, key=lambda step: times[step])
            assumed = step_on_a_gpu(trusted, n_weights, BATCH_SIZE) if kind == "cuda" else "manual"
            rows.append((f"{size}, the fastest", fastest, assumed))
        yield so_far()


def as_json(rates: Rates) -> dict[str, Any]:
    """The rates in the form that `choose.rates_for` reads."""
    return {"batch_size": rates.batch_size, "seconds": {str(n): dict(of) for n, of in rates.seconds.items()}}


def _cost(step: str, n_weights: int, found: Mapping[int, Mapping[str, float]]) -> float:
    """Seconds that it should take to measure a step, by what it took at the largest size so far."""
    longest = 0.0
    if known := [n for n, times in found.items() if step in times]:
        longest = found[max(known)][step] * n_weights / max(known) * (FOLDS if step == "grouped" else 1)
    return max(ROUNDS * ROUND_S, 7 * longest)  # two before the clock starts, one to set the rounds, two rounds; weights


def device_of(kind: str) -> torch.device:
    """PyTorch's device of a kind, "cpu" or "cuda"."""
    return torch.device(kind)


def _n_networks(params: Mapping[str, Any], step: str) -> int:
    return FOLDS if step == "grouped" and is_small(params, SHAPE, CLASSES) else 1


def _bytes_of(params: Mapping[str, Any], step: str, device: torch.device) -> int:
    return memory_bytes(
        params, SHAPE, CLASSES, device=device, batch_size=BATCH_SIZE, step=step, n_networks=_n_networks(params, step)
    )


def _free(device: torch.device) -> float:
    """Bytes, of which something is left to others."""
    if device.type == "cpu":
        return 0.5 * free_memory()
    torch.cuda.empty_cache()
    return 0.9 * torch.cuda.mem_get_info(device)[0]


def _seconds_of(step: str, params: Mapping[str, Any], images: Tensor, labels: Tensor) -> float:
    """Seconds of one step of one network: the fastest of some rounds, after a few steps."""
    n_networks = _n_networks(params, step)
    if step == "grouped":
        steps = grouped(n_networks, images, labels, params)
    else:
        steps = one_network(step, images, labels, params)
    first = ms_per_step(steps, 2, images.device)
    first = min(first, ms_per_step(steps, 1, images.device))
    n = max(1, min(500, round(1e3 * ROUND_S / first)))
    rounds = max(2, min(ROUNDS, round(1e3 * ENOUGH_S / (n * first))))
    return min(ms_per_step(steps, n, images.device) for _ in range(rounds)) / 1e3 / n_networks
