"""The self-check of the training steps with a fault put in; Triton's kernels are interpreted."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnist_nn import net, selfcheck
from mnist_nn.steps import grouped_hidden, triton_kernel
from mnist_nn.steps.grouped import GroupedStep
from mnist_nn.steps.grouped_hidden import FusedHidden, GroupedHidden

kept: list[Tensor] = []


def examine(fault: str, folder: str, until: str) -> Iterator[tuple[str, str]]:
    """As `selfcheck.examine`, as far as the way `until`."""
    FAULTS[fault](Path(folder))
    for way, problem in selfcheck.examine("cpu", "10"):
        yield way, problem
        if way == until:
            return


def rounded(x: Tensor) -> Tensor:
    """To the 10 bits of TF32."""
    return (x.contiguous().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


def tf32_in_autograd(_: Path) -> None:
    exact = net.logits
    net.logits = lambda weights, pixels: exact(  # type: ignore[assignment]
        {name: weight + (rounded(weight.detach()) - weight.detach()) for name, weight in weights.items()}
        if pixels.dtype == torch.float32
        else weights,
        pixels,
    )


def tf32_in_products(_: Path) -> None:
    exact = grouped_hidden._product
    grouped_hidden._product = lambda a, b, out: exact(rounded(a), rounded(b), out)


def tf32_in_kernels(_: Path) -> None:
    exact = triton_kernel.forward
    triton_kernel.forward = lambda weights, x, sums, out: exact(rounded(weights), rounded(x), sums, out)


def race(_: Path) -> None:
    """A sum whose order is another one each time. It counts: two runs that differ by chance can be the same."""
    turns = itertools.count()
    wrap(GroupedHidden, "forward", lambda out: out.mul_(1 + 3e-7 * next(turns)))


def wrap(kind: type, name: str, change: Callable[[Any], Any]) -> None:
    exact = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments: change(exact(self, *arguments)))


def stale_graph(_: Path) -> None:
    """A capture that has missed where the next batch begins."""

    def replayed(step: GroupedStep) -> Callable[[], None]:
        def replay() -> None:
            step()
            step._first.zero_()

        return replay

    GroupedStep.replayed = replayed  # type: ignore[method-assign]


def leak(_: Path) -> None:
    exact = GroupedHidden.__init__

    def init(self: GroupedHidden, weights: Tensor, batch_size: int) -> None:
        exact(self, weights, batch_size)
        kept.append(self.velocity)

    GroupedHidden.__init__ = init  # type: ignore[method-assign]


def neighbours(_: Path) -> None:
    """What is no number in one network comes into the momentum of all."""
    exact = GroupedHidden.learn

    def learn(self: GroupedHidden, features: Tensor, delta: Tensor, momentum: Tensor, minus_rate: Tensor) -> Tensor:
        return exact(self, features, delta, momentum + 0 * features.sum(), minus_rate)

    GroupedHidden.learn = learn  # type: ignore[method-assign]


def hang(_: Path) -> None:
    FusedHidden.forward = lambda self, features: time.sleep(3600)  # type: ignore[assignment, method-assign]


def crash(_: Path) -> None:
    FusedHidden.forward = lambda self, features: ctypes.string_at(8)  # type: ignore[assignment, method-assign]


def other_source(folder: Path, old: str, new: str) -> None:
    """Kernels with a fault in their source."""
    source = Path(triton_kernel.__file__).read_text()
    assert source.count(old) == 1
    (folder / "faulty_kernel.py").write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty_kernel", folder / "faulty_kernel.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["mnist_nn.steps.triton_kernel"] = module
    sys.modules["mnist_nn.steps"].triton_kernel = module  # type: ignore[attr-defined]


def mask(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: other_source(folder, old, new)


FEATURES, IMAGES = "(feature < n_features)[:, None]", "(image < n_batch)[None, :], other=0.0)"
FAULTS: dict[str, Callable[[Path], None]] = {
    "none": lambda _: None,
    "tf32 in autograd": tf32_in_autograd,
    "tf32 in products": tf32_in_products,
    "tf32 in kernels": tf32_in_kernels,
    "race": race,
    "stale graph": stale_graph,
    "leak": leak,
    "neighbours": neighbours,
    "hang": hang,
    "crash": crash,
    "mask of units": mask("is_row & (unit < n_units)[None, :]  # (F", "is_row & (unit < n_units - 1)[None, :]  # (F"),
    "mask of features": mask(FEATURES + "\n    im", FEATURES.replace("n_features)", "n_features - 1)") + "\n    im"),
    "mask of images": mask(IMAGES + "\n        #", IMAGES.replace("n_batch", "1") + "\n        #"),
}  # fmt: skip
