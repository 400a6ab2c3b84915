"""Time of one training step: the reference way, autograd on resident data, and this project's steps.

    python -m benchmarks.nn_step [--sizes small medium large] [--rounds N] [--results FILE]
    python -m benchmarks.nn_step --results FILE --figure FOLDER      draw a table that was kept; nothing is measured

The reference way is a DataLoader over a data set of PIL images with torchvision's transforms, autograd, and
torch.optim.SGD, one network at a time. The others are the best that PyTorch offers for images that stay on the device:

    autograd    plain autograd and SGD
    fused       autograd, fused SGD
    compiled    loss and gradient compiled by torch.compile, fused SGD
    whole       loss, gradient and the arithmetic of SGD compiled as one function

`vmap` is for many networks at once, and one step is that of one. Compiling is not in the time.

All ways train in one process on one thread with the same batch size; they alternate round by round. What is shown is
the median round's CPU time per step, and the median over rounds of the ratios: the reference's time to ours, and the
best time of plain PyTorch to ours.
The pixels are random, which changes no time.

Where there is a GPU it is measured (--device cpu: the CPU all the same), by wall time with the device idle before
and after. There "manual" is replayed from a CUDA graph, as in a training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import circumstances, publish, read_table, table
from benchmarks.nn_reference import Reference
from mnist_nn import net, training
from mnist_nn.shapes import Params, weights_of
from mnist_nn.steps.graphed import Graphed, Prepared
from mnist_nn.steps.manual import ManualStep, make_step

SIZES = {"small": (8, 8, 69), "medium": (64, 5, 256), "large": (500, 5, 1000)}  # channels, kernel, units
BATCH_SIZE, CLASSES = 10, 10
BYTES = 20  # that the manual step moves on a CPU for each weight
CORE = 42e9  # bytes per second that one core of an AMD EPYC of family 26 (Zen 5) reads weights in order
WAYS = ("reference", "autograd", "manual")
# Images on the device, and nothing but PyTorch.
PYTORCH = ("autograd", "fused", "compiled", "whole")


def params_of(size: str, momentum: float = 0.1) -> dict[str, Any]:
    """Parameters of a network of that size."""
    names = ("n_conv_layer", "kernel_size", "n_hidden_layer")
    return dict(zip(names, SIZES[size], strict=True)) | {"learning_rate": 1e-3, "momentum": momentum}


def manual(images: Tensor, labels: Tensor, params: Params) -> Iterator[None]:
    """One step each time it is advanced, gathering and normalising included as in `training.train`."""
    shape = (images.shape[1], images.shape[2])
    drawn: dict[str, Any] = dict(seed=1, device=images.device)
    sgd: dict[str, Any] = dict(batch_size=BATCH_SIZE) | {rate: params[rate] for rate in ("learning_rate", "momentum")}
    learn: ManualStep | Graphed
    if images.device.type == "cuda":
        learn = Prepared().step(params, shape, CLASSES, **drawn, **sgd)
    else:
        learn = make_step(net.initial_weights(params, shape, CLASSES, **drawn), shape, **sgd)
    while True:
        for block in torch.randperm(len(images), device=images.device).split(BATCH_SIZE * training.BATCHES_PER_BLOCK):
            pixels = net.Images(images[block]).normalised()
            for x, y in zip(pixels.split(BATCH_SIZE), labels[block].split(BATCH_SIZE), strict=True):
                learn(x, y)
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


def reference(images: Tensor, labels: Tensor, params: Params) -> Iterator[None]:
    """One step each time it is advanced."""
    way = Reference(params, (images.shape[1], images.shape[2]), BATCH_SIZE, images.device)
    images, labels = images.cpu(), labels.cpu()
    while True:
        yield from way.epoch(images, labels)


def pytorch(name: str, images: Tensor, labels: Tensor, params: Params) -> Iterator[None]:
    """One step of PyTorch each time it is advanced. name: of `PYTORCH`."""
    weights = net.initial_weights(params, (images.shape[1], images.shape[2]), 10, seed=1, device=images.device)
    step = _whole(weights, params) if name == "whole" else _with_optimizer(name, weights, params)
    total = torch.zeros((), device=images.device)
    while True:
        for block in torch.randperm(len(images), device=images.device).split(BATCH_SIZE * training.BATCHES_PER_BLOCK):
            pixels = net.Images(images[block]).normalised()
            for x, y in zip(pixels.split(BATCH_SIZE), labels[block].split(BATCH_SIZE), strict=True):
                total += step(x, y)
                yield


def _with_optimizer(name: str, weights: dict[str, Tensor], params: Params) -> Callable[[Tensor, Tensor], Tensor]:
    """A step that autograd and torch.optim.SGD take; it returns the loss."""
    leaves = {key: weight.requires_grad_() for key, weight in weights.items()}
    optimizer = torch.optim.SGD(
        leaves.values(), lr=float(params["learning_rate"]), momentum=float(params["momentum"]),
        fused=name != "autograd" or None,
    )  # fmt: skip

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net.logits(leaves, x), y)

    loss = torch.compile(loss_of) if name == "compiled" else loss_of

    def step(x: Tensor, y: Tensor) -> Tensor:
        value = loss(x, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def _whole(weights: dict[str, Tensor], params: Params) -> Callable[[Tensor, Tensor], Tensor]:
    """A step that is compiled as one function, with what SGD does; it returns the loss."""
    rate, momentum = float(params["learning_rate"]), float(params["momentum"])
    speeds = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.compile
    def step(weights: dict[str, Tensor], speeds: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        learn = torch.func.grad_and_value(lambda these: F.cross_entropy(net.logits(these, x), y))
        gradients, value = learn(weights)
        for name, gradient in gradients.items():
            speeds[name].mul_(momentum).add_(gradient)
            weights[name].sub_(speeds[name], alpha=rate)
        return value

    return lambda x, y: step(weights, speeds, x, y)


def measure(size: str, images: Tensor, labels: Tensor, rounds: int, momentum: float) -> dict[str, Any]:
    """A row of the table."""
    params = params_of(size, momentum)
    device = images.device
    ways = {"reference": reference(images, labels, params), "manual": manual(images, labels, params)}
    ways |= {name: pytorch(name, images, labels, params) for name in PYTORCH}
    # Warm up, beyond the capture of a graph; then rounds of about a second, at least one step.
    per_step = {name: ms_per_step(way, 2 if device.type == "cpu" else 6, device) for name, way in ways.items()}
    n_steps = {name: max(1, min(500, round(1e3 / ms))) for name, ms in per_step.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name, _ in islice(cycle(ways.items()), rounds * len(ways)):
        times[name].append(ms_per_step(ways[name], n_steps[name], device))

    n_weights = weights_of(params, (28, 28), 10)
    row: dict[str, Any] = {"size": size, "weights": f"{n_weights / 1e6:.2f} M"}
    row |= {f"{name}, ms": f"{statistics.median(each):.4g}" for name, each in times.items()}
    best = min(PYTORCH, key=lambda name: statistics.median(times[name]))
    row["best of PyTorch"] = best
    row["reference / manual"] = _ratio(times["reference"], times["manual"])
    row["best of PyTorch / manual"] = _ratio(times[best], times["manual"])
    return row


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(slow, fast, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def draw(rows: Sequence[Mapping[str, str]], folder: Path) -> None:
    """nn_step: time per step against the number of weights, a line for each way, and what memory allows."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    from mpitune.figures.plotting import BLUE, GREY, ORANGE, RED, save, styled, subplots

    weights = [1e6 * float(row["weights"].split()[0]) for row in rows]
    with styled():
        figure, axis = subplots(size=(6.4, 4.2))
        axis.set(
            xscale="log", yscale="log", xlabel="weights of the network", ylabel="CPU ms per step, batch 10, one core"
        )
        for way, colour, mark in zip(WAYS, (RED, ORANGE, BLUE), "osD", strict=True):
            axis.plot(weights, [float(row[f"{way}, ms"]) for row in rows], color=colour, marker=mark, label=way)
        limit = [1e3 * BYTES * n / CORE for n in weights]
        text = f"{BYTES} bytes per weight at {CORE / 1e9:.0f} GB/s"
        axis.plot(weights, limit, color=GREY, linestyle="--", linewidth=1, label=text)
        axis.xaxis.set_major_locator(FixedLocator(weights))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{row['size']}\n{row['weights']}" for row in rows]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.legend()
        save(figure, folder, "nn_step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--momentum", type=float, default=0.1, metavar="M", help="default: %(default)s, the median")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FOLDER", help="draw the table kept by --results, and end")
    options = parser.parse_args()
    if options.figure is not None:
        if options.results is None:
            parser.error("--figure draws the table kept by --results: give that too")
        return draw(read_table(options.results), options.figure)
    torch.set_num_threads(1)
    device = options.device
    training.prepare(device)
    images = torch.randint(256, (10_000, 28, 28), dtype=torch.uint8).to(device)
    labels = torch.randint(10, (10_000,)).to(device)
    rows = [measure(size, images, labels, options.rounds, options.momentum) for size in options.sizes]
    facts: dict[str, Any] = dict(threads=1, batch=BATCH_SIZE, momentum=options.momentum, rounds=options.rounds)
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    publish(circumstances("torch", "torchvision", "numba", **facts) + "\n\n" + table(rows), options.results)


if __name__ == "__main__":
    main()
