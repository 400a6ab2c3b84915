"""Convolution, pooling and ReLU as one operation, on the CPU.

Of each 2 x 2 window one position has a gradient, and none where ReLU is zero: at least three quarters of what the
gradient of a convolution multiplies are zeros. The kernels here leave them out. In images with the channels last, a row
of a patch is one run of kernel * channels numbers, and the gradient of a filter is a sum of such runs.

    gradient of filter k, row d:   sum over windows of g * (the run of the patch that won, row d)
    gradient of that run:          g * (filter k, row d)
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

from mnist_nn.steps.kernels import compiled

LANES = 16
_VECTOR, _INDEX = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)


def pooled_convolution(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(images, weight, bias), 2)) with that gradient, up to rounding.

    images: float32 (n, channels, h, w). weight: float32 (filters, channels, kernel, kernel). bias: float32 (filters,).
    All on the CPU. Of equal numbers in a window the first wins, as in PyTorch; what is not finite spreads.
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
        slack = vectors * LANES - run  # a run is read in whole vectors, so the last one reaches beyond the end
        pixels = F.pad(_channels_last(images).flatten(), (0, slack))
        filled = F.pad(_channels_last(weight).reshape(filters, kernel, run), (0, slack)).flatten()
        of_weight, of_bias = torch.zeros_like(filled), weight.new_zeros(filters)
        of_pixels = torch.zeros_like(pixels) if context.needs_input_grad[0] else None
        _backward(
            (0,) * vectors, pixels.numpy(), filled.numpy(), _channels_last(gradient).numpy(), pooled.numpy(),
            winner.numpy(), width * channels, height, channels, kernel,
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


def _at(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a flat array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _vectors(context: Any, builder: Any, kind: Any, array: Any, index: Any, count: int) -> list[Any]:
    """Pointers to consecutive vectors."""
    starts = [builder.add(index, _INDEX(t * LANES)) for t in range(count)]
    return [builder.bitcast(_at(context, builder, kind, array, start), _VECTOR.as_pointer()) for start in starts]


def _multiply_add(builder: Any, factor: Any, vector: Any, to: Any) -> Any:
    """factor * vector + to, the factor a number."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    splat = builder.shuffle_vector(builder.insert_element(undefined, factor, ir.IntType(32)(0)), undefined, zeros)
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [splat, vector, to])


@intrinsic
def _gather(typing_context, vectors, to, at, source, starts, factors, count, shift):
    """to[at : at + run] += factors[j] * source[starts[j] + shift : ... + run] for all j < count.

    A run is len(vectors) vectors, kept in registers: hence an intrinsic.
    """
    kinds = (vectors, to, at, source, starts, factors, count, shift)

    def generate(context, builder, signature, arguments):
        _, to, at, source, starts, factors, count, shift = arguments
        _, kind_of_to, _, kind_of_source, kind_of_starts, kind_of_factors, _, _ = kinds
        places = _vectors(context, builder, kind_of_to, to, at, len(vectors))
        sums = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
        with cgutils.for_range(builder, count) as loop:
            start = builder.load(_at(context, builder, kind_of_starts, starts, loop.index))
            factor = builder.load(_at(context, builder, kind_of_factors, factors, loop.index))
            run = _vectors(context, builder, kind_of_source, source, builder.add(start, shift), len(vectors))
            for total, vector in zip(sums, run, strict=True):
                added = _multiply_add(builder, factor, builder.load(vector, align=4), builder.load(total))
                builder.store(added, total)
        for place, total in zip(places, sums, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.none(*kinds), generate


@intrinsic
def _scatter(typing_context, vectors, to, source, at, starts, factors, count, shift):
    """to[starts[j] + shift : ... + run] += factors[j] * source[at : at + run] for all j < count."""
    kinds = (vectors, to, source, at, starts, factors, count, shift)

    def generate(context, builder, signature, arguments):
        _, to, source, at, starts, factors, count, shift = arguments
        _, kind_of_to, kind_of_source, _, kind_of_starts, kind_of_factors, _, _ = kinds
        kept = [builder.load(p, align=4) for p in _vectors(context, builder, kind_of_source, source, at, len(vectors))]
        with cgutils.for_range(builder, count) as loop:
            start = builder.load(_at(context, builder, kind_of_starts, starts, loop.index))
            factor = builder.load(_at(context, builder, kind_of_factors, factors, loop.index))
            run = _vectors(context, builder, kind_of_to, to, builder.add(start, shift), len(vectors))
            for vector, place in zip(kept, run, strict=True):
                added = _multiply_add(builder, factor, vector, builder.load(place, align=4))
                builder.store(added, place, align=4)
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
    vectors, pixels, weight, gradient, pooled, winner, line, height, channels, kernel, of_weight, of_bias, of_pixels
):
    """Add up the gradients; pixels, weight and their gradients are flat, the latter two with runs filled up."""
    n, rows, columns, filters = pooled.shape
    starts, factors = np.empty(rows * columns, np.int64), np.empty(rows * columns, np.float32)
    for i in range(n):
        for k in range(filters):
            count, total = 0, np.float32(0)
            for x in range(columns):
                for y in range(rows):  # down a column: neighbours in a row overlap, and would wait for each other
                    place = np.int64(winner[i, y, x, k])
                    starts[count] = (i * height + 2 * y + (place >> 1)) * line + (2 * x + (place & 1)) * channels
                    factors[count] = gradient[i, y, x, k]
                    if pooled[i, y, x, k] > 0:
                        total += factors[count]
                        count += 1
            of_bias[k] += total
            for d in range(kernel):
                at = (k * kernel + d) * len(vectors) * LANES
                _gather(vectors, of_weight, at, pixels, starts, factors, count, d * line)
                if of_pixels is not None:
                    _scatter(vectors, of_pixels, weight, at, starts, factors, count, d * line)
