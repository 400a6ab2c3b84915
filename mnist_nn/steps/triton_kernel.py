"""The hidden layers' part of a step as two Triton kernels: forward, and all the rest in one pass over the weights.

By separate products the weights are read for the derivatives, the velocity is read and written for momentum and
again for the gradient, and both are read and the weights written for the update: 32 bytes per weight. In `learn`
each is read and written once: 16 bytes. `forward` reads the weights once, and many programs share its long sums,
as in a batched matrix product of a library they may not.

No two programs write to the same memory, and the parts of a sum are added in their order. So a result repeats to the
bit, and that of a network does not depend on how many are trained together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Of the tile that a program holds in registers: with these, ptxas for sm_80 and sm_90 has none to spill.
FEATURES, UNITS, WARPS = 32, 64, 8
PROGRAMS = 512  # The least number of programs of forward. A guess: nothing of this has been measured on a GPU.


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    weights, features, sums, n_features, n_units, n_batch, chunk,
    FEATURES: tl.constexpr, UNITS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    part, network = tl.program_id(0), tl.program_id(2).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    image = tl.arange(0, BATCH)
    sum = tl.zeros((BATCH, UNITS), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, n_features), FEATURES):
        feature = start + tl.arange(0, FEATURES)
        row, is_row = (network * n_features + feature)[:, None], (feature < n_features)[:, None]
        w = tl.load(weights + row * n_units + unit[None, :], mask=is_row & (unit < n_units)[None, :], other=0.0)
        x = tl.load(features + row * n_batch + image[None, :], mask=is_row & (image < n_batch)[None, :], other=0.0)
        # "ieee": no TF32, which would round the factors to 10 bits.
        sum = tl.dot(tl.trans(x), w, sum, input_precision="ieee")
    row = ((part * tl.num_programs(2) + network) * n_batch + image)[:, None]
    tl.store(sums + row * n_units + unit[None, :], sum, mask=(image < n_batch)[:, None] & (unit < n_units)[None, :])


@triton.jit
def _learn(  # type: ignore[no-untyped-def]
    weights, velocity, features, delta, derivatives, momentum, minus_rate, n_features, n_units, n_batch,
    FEATURES: tl.constexpr, UNITS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(1).to(tl.int64)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row, is_row = (network * n_features + feature)[:, None], (feature < n_features)[:, None]
    image = tl.arange(0, BATCH)
    thin, is_thin = row * n_batch + image[None, :], is_row & (image < n_batch)[None, :]  # (FEATURES, BATCH)
    sum = tl.zeros((FEATURES, BATCH), tl.float32)
    rate, m = tl.load(minus_rate + network), tl.load(momentum + network)
    if rate != 0:  # Else nothing is learned, and all of delta is 0.
        x = tl.load(features + thin, mask=is_thin, other=0.0)
        for start in range(0, n_units, UNITS):
            unit = start + tl.arange(0, UNITS)
            wide, is_wide = row * n_units + unit[None, :], is_row & (unit < n_units)[None, :]  # (FEATURES, UNITS)
            there = (image < n_batch)[:, None] & (unit < n_units)[None, :]
            d = tl.load(delta + (network * n_batch + image)[:, None] * n_units + unit[None, :], mask=there, other=0.0)
            w = tl.load(weights + wide, mask=is_wide, other=0.0)
            v = tl.load(velocity + wide, mask=is_wide, other=0.0)
            sum = tl.dot(w, tl.trans(d), sum, input_precision="ieee")
            v = tl.dot(x, d, m * v, input_precision="ieee")
            tl.store(velocity + wide, v, mask=is_wide)
            tl.store(weights + wide, w + rate * v, mask=is_wide)
    tl.store(derivatives + thin, sum, mask=is_thin)


def parts_of(n_features: int, n_units: int) -> tuple[int, int]:
    """Into how many parts forward divides its sums over the features, and of how many features each is."""
    wanted = n_features * triton.cdiv(n_units, UNITS) // PROGRAMS
    chunk = min(2048, max(128, triton.next_power_of_2(wanted)))
    return triton.cdiv(n_features, chunk), chunk


def forward(weights: Tensor, features: Tensor, sums: Tensor, out: Tensor) -> Tensor:
    """features.mT @ weights, for each network.

    Args, all float32 and contiguous:
        weights: (G, features, units).
        features: (G, features, batch).
        sums: (parts, G, batch, units), of as many parts as `parts_of` says, overwritten.
        out: (G, batch, units), overwritten and returned.
    """
    n_networks, n_features, n_units = weights.shape
    n_parts, chunk = parts_of(n_features, n_units)
    n_batch = features.shape[2]
    _forward[n_parts, triton.cdiv(n_units, UNITS), n_networks](
        weights, features, sums, n_features, n_units, n_batch, chunk,
        **_options(n_batch),
    )  # fmt: skip
    return torch.sum(sums, 0, out=out)


def learn(
    weights: Tensor, velocity: Tensor, features: Tensor, delta: Tensor, derivatives: Tensor, momentum: Tensor,
    minus_rate: Tensor,
) -> None:  # fmt: skip
    """Derivatives and the update of the weights, for each network.

    derivatives = weights @ delta.mT, then velocity = momentum * velocity + features @ delta and weights +=
    minus_rate * velocity. A network whose rate is 0 is left as it is, with derivatives 0. All arrays are float32 and
    contiguous.

    Args:
        weights: (G, features, units), updated in place.
        velocity: (G, features, units), updated in place.
        features: (G, features, batch).
        delta: (G, batch, units).
        derivatives: (G, features, batch), overwritten.
        momentum: (G,).
        minus_rate: (G,).
    """
    n_networks, n_features, n_units = weights.shape
    n_batch = delta.shape[1]
    _learn[triton.cdiv(n_features, FEATURES), n_networks](
        weights, velocity, features, delta, derivatives, momentum, minus_rate, n_features, n_units, n_batch,
        **_options(n_batch),
    )  # fmt: skip


def _options(n_batch: int) -> dict[str, int | bool]:
    """How a kernel is compiled. Images of a tile: a power of 2, and no fewer than a product of tiles may have.

    Sums of products are fused, said here because the default depends on Triton's version.
    """
    batch = max(16, triton.next_power_of_2(n_batch))
    return dict(FEATURES=FEATURES, UNITS=UNITS, BATCH=batch, num_warps=WARPS, enable_fp_fusion=True)
