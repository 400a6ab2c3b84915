"""Which way of training many small networks gains on a GPU; then a whole search, with what its time went into.

    python -m benchmarks.gpu_networks [--data DIR] [--limit S] [--results FILE]

Microseconds per network and step, median of rounds, wall time:

    alone          the manual step, 16 steps as one graph; "one step": each step as a graph, as trainings do it
    streams        K networks of one process, each with its own graph and stream
    branches       K networks as branches of one graph
    bmm            K networks of one shape as one manual step, with batched products
    unfold, vmap   K networks, gradients by torch.func, the convolution as a batched product or PyTorch's vmap of it;
                   "compiled": by Inductor, as long as there is time (of --limit, the search in it)

"gain" is the time of one alone to that. "bits": network 0 ends with the bits of alone; of a group, with those of K = 5.
Without a GPU all of it takes two steps, to show that it runs: the figures then mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import circumstances, publish, table
from mnist_nn import net, training
from mnist_nn.steps.choose import manual_step

SIZES = {"tiny": (4, 5, 32), "small": (8, 8, 69), "mean": (32, 5, 128), "medium": (64, 5, 256)}  # 0.07 to 9.4 M
SGD: dict[str, Any] = dict(batch_size=10, learning_rate=0.01, momentum=0.3)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
CHUNK, REPLAYS, ROUNDS = (16, 20, 3) if GPU else (2, 1, 1)
SEARCH = "mnist_nn 1 8 --epochs 3 --max-channels 64 --max-hidden-layer 256 --seed 1 -v --restart".split()
Group = dict[str, Tensor]  # weights of K networks of one shape, by name: (K, ...)
Replay = Callable[[], None]


def initial(size: str, number: int) -> net.Weights:
    params = dict(zip(("n_conv_layer", "kernel_size", "n_hidden_layer"), SIZES[size], strict=True))
    return net.initial_weights(params, (28, 28), 10, seed=number, device=DEVICE)


def forward(w: Group, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unfolded images, convolution (K, channels, positions x batch), hidden units and logits (K, batch, ...)."""
    n, kernel = len(x), w["conv.weight"].shape[-1]
    unfolded = x.unfold(2, kernel, 1).unfold(3, kernel, 1).permute(0, 4, 5, 2, 3, 1).reshape(n, kernel**2, -1)
    convolved = torch.baddbmm(w["conv.bias"][..., None], w["conv.weight"].flatten(2), unfolded).relu()
    features = convolved.view(n, -1, x.shape[1]).mT
    units = torch.baddbmm(w["hidden.bias"][:, None], features, w["hidden.weight"].mT).relu()
    return unfolded, convolved, units, torch.baddbmm(w["output.bias"][:, None], units, w["output.weight"].mT)


def by_hand(w: Group, x: Tensor, y: Tensor) -> Group:
    """Gradients of the losses, as the manual step has them."""
    n, batch = y.shape
    unfolded, convolved, units, logits = forward(w, x)
    output = logits.softmax(2).scatter_add_(2, y[..., None], torch.full_like(logits[..., :1], -1)).div_(batch)
    hidden = torch.ops.aten.threshold_backward(torch.bmm(output, w["output.weight"]), units, 0)
    features = torch.bmm(w["hidden.weight"].mT, hidden.mT).view_as(convolved)
    conv = torch.ops.aten.threshold_backward(features, convolved, 0)
    return {
        "conv.weight": torch.bmm(conv, unfolded.mT).view_as(w["conv.weight"]), "conv.bias": conv.sum(2),
        "hidden.weight": torch.bmm(hidden.mT, convolved.view(n, -1, batch).mT), "hidden.bias": hidden.sum(1),
        "output.weight": torch.bmm(output.mT, units), "output.bias": output.sum(1),
    }  # fmt: skip


def by_gradient(logits: Callable[[Group, Tensor], Tensor], w: Group, x: Tensor, y: Tensor) -> Group:
    def loss(weights: Group) -> Tensor:
        return F.cross_entropy(logits(weights, x).flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]

    gradients: Group = torch.func.grad(loss)(w)
    return gradients


WAYS: dict[str, Callable[[Group, Tensor, Tensor], Group]] = {
    "bmm": by_hand,
    "unfold": partial(by_gradient, lambda w, x: forward(w, x)[-1]),
    "vmap": partial(by_gradient, torch.func.vmap(net.logits)),
}


def grouped(size: str, way: str, k: int) -> tuple[Group, Callable[[Tensor, Tensor], None]]:
    """Weights of K networks, and their step."""
    each = [initial(size, number) for number in range(k)]
    w = {name: torch.stack([weights[name] for weights in each]).contiguous() for name in each[0]}
    v = {name: torch.zeros_like(weight) for name, weight in w.items()}

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> None:
        for name, gradient in WAYS[way.removesuffix(", compiled")](w, x, y).items():
            v[name].mul_(SGD["momentum"]).add_(gradient)
            w[name].sub_(v[name], alpha=SGD["learning_rate"])

    return w, torch.compile(step, dynamic=False) if way.endswith("compiled") else step


def captured(steps: Replay) -> Replay:
    """These steps as a graph, on a stream of its own: cuBLAS has a workspace for each stream."""
    if not GPU:
        return steps
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        steps()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def branches(each: Sequence[Replay]) -> Replay:
    """All of these beside each other in one graph."""
    streams = [torch.cuda.Stream() for _ in each if GPU]

    def steps() -> None:
        for number, one in enumerate(each):
            if GPU:
                streams[number].wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(streams[number]) if GPU else nullcontext():
                one()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    return steps


def prepared(size: str, way: str, k: int, x: Tensor, y: Tensor) -> tuple[list[Replay], Callable[[], net.Weights]]:
    """What is replayed for all these batches, and what then returns the weights of network 0."""

    def steps_of(step: Callable[..., object], which: int | slice) -> Replay:
        return lambda: [step(*batch) for batch in zip(x[:, which], y[:, which], strict=True)] and None

    if way.split(",")[0] in WAYS:
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            weights, step = grouped(size, way, k)
            return [captured(steps_of(step, slice(k)))], lambda: {name: each[0] for name, each in weights.items()}
    manual = [manual_step(initial(size, number), (28, 28), **SGD) for number in range(k)]
    each = [steps_of(step, number) for number, step in enumerate(manual)]
    return [captured(one) for one in ([branches(each)] if way == "branches" else each)], manual[0].finish


def microseconds(replays: Sequence[Replay], n_steps: int) -> float:
    """Of each of so many steps that all of these make when each is replayed once."""
    times = [_now()]
    for _ in range(ROUNDS):
        for _, replay in product(range(REPLAYS), replays):
            replay()
        times.append(_now())
    return statistics.median(b - a for a, b in pairwise(times)) / REPLAYS / n_steps * 1e6


def _now() -> float:
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def rows_of(size: str, ways: Sequence[tuple[str, int]], end: float) -> Iterator[dict[str, Any]]:
    """A row for each way and K, until `end`; the first is what the others are compared with."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CHUNK, 40, 10, 28, 28, generator=generator).to(DEVICE)
    y = torch.randint(10, (CHUNK, 40, 10), generator=generator).to(DEVICE)
    base, expected = 0.0, dict[str, bytes]()
    for way, k in ways:
        if time.monotonic() > end:
            return
        n = 1 if way == "one step" else CHUNK
        row = {"network": size, "way": way, "K": k, "us": "", "gain": "", "bits": ""}
        try:
            replays, weights = prepared(size, way, k, x[:n], y[:n])
            us = microseconds(replays, k * n)
            base = base or us
            bits = b"".join(each.detach().cpu().contiguous().numpy().tobytes() for each in weights().values())
            same = bits == expected.setdefault(way if way.split(",")[0] in WAYS else f"{n}", bits)
            yield row | {"us": f"{us:.1f}", "gain": f"{base / us:.2f}", "bits": "yes" if same else "no"}
        except Exception as error:  # the others are measured all the same
            yield row | {"bits": f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"}


def search(data: Path | None, gpu: str) -> str:
    """The end of what a search prints: its errors, and what its time went into."""
    with tempfile.TemporaryDirectory() as folder:
        which = ["--data", str(data), "--train-size", "20000"] if data else ["--dataset", "digits"]
        command = [sys.executable, "-m", *SEARCH, *which, "--gpu", gpu, "--results", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [line for line in done.stdout.splitlines() if " trial " not in line]
    return "\n".join([" ".join([*SEARCH, *which, "--gpu", gpu]), "```", *lines[-30:], "```"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of MNIST for the search; default: the digits")
    parser.add_argument("--limit", type=float, default=560.0, metavar="S", help="seconds (default: %(default)g)")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    end, sizes = time.monotonic() + options.limit, list(SIZES) if GPU else ["tiny"]
    training.prepare(DEVICE)
    manual = [
        ("alone", 1),
        ("one step", 1),
        *(("streams", k) for k in (1, 2, 4, 8, 16)),
        ("branches", 5),
        ("branches", 16),
    ]
    groups = [(way, k) for way in WAYS for k in (5, 16, 40)]
    rows = [row for size in sizes for row in rows_of(size, manual + groups, end)]
    said = search(options.data, "0" if GPU else "none")
    if GPU:  # Inductor takes half a minute for each shape
        compiled = [(f"{way}, compiled", k) for way, k in groups if way != "bmm"]
        rows += [row for size in sizes for row in rows_of(size, [("alone", 1), *compiled], end)]
    name = torch.cuda.get_device_name() if GPU else "none"
    publish("\n\n".join([circumstances("torch", "numpy", GPU=name), table(rows), said]), options.results)


if __name__ == "__main__":
    main()
