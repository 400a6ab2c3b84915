"""Convolution, pooling and ReLU as one operation, on the CPU.

Of each 2 x 2 window one position has a gradient, and none where ReLU is zero: at least three quarters of what the
gradient of a convolution multiplies are zeros. The kernels here leave them out. In images with the channels last, a row
of a patch is one run of kernel * channels numbers, and the gradient of a filter is a sum of such runs.

    gradient of filter k, row d:   sum over windows of g * (row d of the patch that filter k has chosen)
    gradient of a patch, row d:    sum over filters that have chosen it of g * (filter k, row d)
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from mpitune._jit.cache import compiled
from mpitune._jit.llvm import address_of, broadcast, fused

LANES = 16
REGISTERS = 24  # for sums, of the 32 there are
_VECTOR, _INDEX = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)


def pooled_convolution(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(images, weight, bias), 2)) with that gradient, up to rounding.

    Args:
        images: float32 (n, channels, h, w).
        weight: float32 (filters, channels, kernel, kernel).
        bias: float32 (filters,). All on the CPU. Of equal numbers in a window the first wins, as in PyTorch; what is
            not finite spreads.
    """
    return _PooledConvolution.apply(images, weight, bias)


class _PooledConvolution(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        convolved = _channels_last(F.conv2d(images, weight, bias))
        n, height, width, filters = convolved.shape
        pooled = convolved.new_empty(n, height // 2, width // 2, filters)
        winner = torch.empty_like(pooled, dtype=torch.uint8)
        _pool(convolved.numpy(), pooled.numpy(), winner.numpy())
        context.save_for_backward(images, weight, pooled, winner)
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        images, weight, pooled, winner = context.saved_tensors
        filters, channels, kernel, _ = weight.shape
        n, _, height, width = images.shape
        run = kernel * channels
        vectors = -(-run // LANES)
        rows = max(r for r in range(1, kernel + 1) if kernel % r == 0 and r * vectors <= max(REGISTERS, vectors))
        slack = vectors * LANES - run  # a run is read in whole vectors, so the last one reaches beyond the end
        pixels = F.pad(_channels_last(images).flatten(), (0, slack))
        filled = F.pad(_channels_last(weight).reshape(filters, kernel, run), (0, slack)).flatten()
        of_weight, of_bias = torch.zeros_like(filled), weight.new_zeros(filters)
        of_pixels = torch.zeros_like(pixels) if context.needs_input_grad[0] else None
        _backward(
            (0,) * vectors, (0,) * rows, pixels.numpy(), filled.numpy(), _channels_last(gradient).numpy(),
            pooled.numpy(), winner.numpy(), width * channels, height, channels, kernel,
            of_weight.numpy(), of_bias.numpy(), None if of_pixels is None else of_pixels.numpy(),
        )  # fmt: skip
        of_weight = of_weight.view(filters, kernel, -1)[..., :run].reshape(filters, kernel, kernel, channels)
        of_images = None
        if of_pixels is not None:
            of_images = of_pixels[: images.numel()].view(n, height, width, channels).permute(0, 3, 1, 2)
        return of_images, of_weight.permute(0, 3, 1, 2), of_bias


def _channels_last(images: Tensor) -> Tensor:
    """(n, channels, h, w) as contiguous (n, h, w, channels)."""
    return images.detach().permute(0, 2, 3, 1).contiguous()


@intrinsic
def _gather(typing_context, vectors, rows, to, at, to_line, source, starts, shift, source_line, factors, count):
    """to[at + r * to_line : ... + run] += factors[j] * source[starts[j] + shift + r * source_line : ... + run].

    For all j < count and the first len(rows) r. A run is len(vectors) vectors. All sums stay in registers, so an
    intrinsic. Runs of `to` may be filled up by elements of later ones, which get these sums first.
    """
    kinds = (vectors, rows, to, at, to_line, source, starts, shift, source_line, factors, count)

    def generate(context, builder, signature, arguments):
        _, _, to, at, to_line, source, starts, shift, source_line, factors, count = arguments
        _, _, kind_of_to, _, _, kind_of_source, kind_of_starts, _, _, kind_of_factors, _ = kinds

        def block(kind, array, start, line):
            """Pointers to all vectors."""
            offsets = [builder.mul(line, _INDEX(r)) for r in range(len(rows))]
            places = [
                builder.add(builder.add(start, offset), _INDEX(t * LANES))
                for offset in offsets
                for t in range(len(vectors))
            ]
            return [
                builder.bitcast(address_of(context, builder, kind, array, place), _VECTOR.as_pointer())
                for place in places
            ]

        places = block(kind_of_to, to, at, to_line)
        sums = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
        with cgutils.for_range(builder, count) as loop:
            start = builder.load(address_of(context, builder, kind_of_starts, starts, loop.index))
            factor = builder.load(address_of(context, builder, kind_of_factors, factors, loop.index))
            run = block(kind_of_source, source, builder.add(start, shift), source_line)
            for total, vector in zip(sums, run, strict=True):
                added = fused(
                    builder, broadcast(builder, factor, _VECTOR), builder.load(vector, align=4), builder.load(total)
                )
                builder.store(added, total)
        for place, total in zip(places, sums, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.none(*kinds), generate


@compiled
def _pool(convolved, pooled, winner):
    """The largest of each window, or 0; winner: its number, row by row."""
    n, height, width, filters = pooled.shape
    for i in range(n):
        for y in range(height):
            for x in range(width):
                first, second = convolved[i, 2 * y, 2 * x], convolved[i, 2 * y, 2 * x + 1]
                third, fourth = convolved[i, 2 * y + 1, 2 * x], convolved[i, 2 * y + 1, 2 * x + 1]
                for k in range(filters):
                    a, b, c, d = first[k], second[k], third[k], fourth[k]
                    upper, lower = max(a, b), max(c, d)
                    in_upper = np.uint8(0) if a >= b else np.uint8(1)
                    in_lower = np.uint8(2) if c >= d else np.uint8(3)
                    # A maximum may hide what is not a number; 0 times it does not.
                    pooled[i, y, x, k] = max(upper, lower, np.float32(0)) + np.float32(0) * (a + b + c + d)
                    winner[i, y, x, k] = in_upper if upper >= lower else in_lower


@compiled
def _backward(
    vectors, rows, pixels, weight, gradient, pooled, winner, line, height, channels, kernel, of_weight, of_bias,
    of_pixels,
):  # fmt: skip
    """Add up the gradients; pixels, weight and their gradients are flat, the latter two with runs filled up."""
    n, n_y, n_x, filters = pooled.shape
    run = len(vectors) * LANES
    of_filter = (np.empty((filters, n_y * n_x), np.int64), np.empty((filters, n_y * n_x), np.float32))
    of_place = (np.empty((4, filters), np.int64), np.empty((4, filters), np.float32))
    n_of_filter, n_of_place = np.empty(filters, np.int64), np.empty(4, np.int64)
    patch = np.empty(4, np.int64)
    for i in range(n):
        n_of_filter[:] = 0
        for y in range(n_y):
            for x in range(n_x):
                for place in range(4):
                    patch[place] = (i * height + 2 * y + (place >> 1)) * line + (2 * x + (place & 1)) * channels
                n_of_place[:] = 0
                for k in range(filters):
                    place, factor = winner[i, y, x, k], gradient[i, y, x, k]
                    active = pooled[i, y, x, k] > 0
                    at = n_of_filter[k]
                    of_filter[0][k, at], of_filter[1][k, at] = patch[place], factor
                    n_of_filter[k] += active
                    of_bias[k] += factor if active else np.float32(0)
                    if of_pixels is not None:
                        at = n_of_place[place]
                        of_place[0][place, at], of_place[1][place, at] = k * kernel * run, factor
                        n_of_place[place] += active
                if of_pixels is not None:
                    for place in range(4):
                        starts, factors = of_place[0][place], of_place[1][place]
                        for d in range(0, kernel, len(rows)):
                            _gather(
                                vectors, rows, of_pixels, patch[place] + d * line, line, weight, starts, d * run, run,
                                factors, n_of_place[place],
                            )  # fmt: skip
        for k in range(filters):
            starts, factors = of_filter[0][k], of_filter[1][k]
            for d in range(0, kernel, len(rows)):
                at = (k * kernel + d) * run
                _gather(vectors, rows, of_weight, at, run, pixels, starts, d * line, line, factors, n_of_filter[k])
