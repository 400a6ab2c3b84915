"""The three products of a wide layer with a small batch, at the speed of one CPU core's memory.

Let f count the features that enter the layer, h its units and b the images of a batch. A step needs

    forward     z[b, h]   = sum_f a[f, b] w[f, h]
    backward    da[f, b]  = sum_h w[f, h] d[b, h]
    learning    v[f, h]   = momentum v[f, h] + sum_b a[f, b] d[b, h];    w[f, h] -= rate v[f, h]

with w and v far larger than a cache and b about 10, so that time is spent moving w and v, not multiplying.
A general matrix product copies (packs) its operands first and writes the gradient before the update reads it
again: 28 bytes per weight and step. Here w and v pass through the registers in the order they lie in
memory, once forward (4 bytes per weight) and once for backward and learning together (16 bytes).

A register holds LANES neighbouring units h. Batches are *packed*: `packed[h // LANES, b, h % LANES]`, so that
the b registers that belong to one part of a row of w are neighbours. The loops over b must be unrolled and
their sums stay in registers, which no compiler does reliably by itself. So the inner loops are built from
vector instructions of LLVM, which lowers them to those of the processor.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mpitune._jit import LANES
from mpitune._jit.cache import compiled
from mpitune._jit.llvm import (
    F32,
    address_of,
    broadcast,
    call_intrinsic,
    fetch_ahead,
    fused,
    llvm_type,
    load_vector,
    store_vector,
)

LARGEST_BATCH = 16  # One register per image, one or two for weights, of the 32 (or 16) there are.
ROWS = 8  # Rows of w per pass over z: fewer load and store z more often, more need too many streams.
SUM_ROWS = 1024  # Rows summed in one go: a float32 sum of 300,000 products would lose two digits.
TILE_ROWS, TILE_UNITS = 16, 512  # Part of w for which d stays in the nearest cache.
AHEAD = 4096  # Floats ahead to prefetch: the processor's own prefetching ends at each 4 KiB page.

Batch = tuple[int, ...]
Array = np.ndarray

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR = llvm_type(F32)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


class _Emit:
    """Writes vector instructions. Pointers are to float32, offsets in elements."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.builder.gep(pointer, [_INDEX(offset) if isinstance(offset, int) else offset])

    def load(self, pointer: Any, offset: Any = 0) -> Any:
        return load_vector(self.builder, self.at(pointer, offset), _VECTOR)

    def store(self, value: Any, pointer: Any, offset: Any = 0) -> None:
        store_vector(self.builder, value, self.at(pointer, offset))

    def broadcast(self, pointer: Any, offset: Any) -> Any:
        return broadcast(self.builder, self.builder.load(self.at(pointer, offset)), _VECTOR)

    def total(self, vector: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        return call_intrinsic(self.builder, name, _FLOAT, ir.Constant(_FLOAT, 0.0), vector, fastmath=("reassoc",))


@intrinsic
def _add_rows(typing_context: Any, batch: Any, rows: Any, w: Any, a: Any, z: Any, row: Any, width: Any) -> Any:
    """z += a[row : row + rows].T @ w[row : row + rows], for tuples of `batch` and of `rows` elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_batch, n_rows = batch.count, rows.count
        w_, a_, z_, row_, width_ = args[2:]
        emit = _Emit(builder)
        w_start = address_of(context, builder, w, w_, builder.mul(row_, width_))
        a_start = address_of(context, builder, a, a_, builder.mul(row_, _INDEX(n_batch)))
        z_start = address_of(context, builder, z, z_, _INDEX(0))
        with cgutils.for_range_slice(builder, _INDEX(0), width_, _INDEX(LANES), _INDEX) as (unit, _):
            # LANES units of each image, in registers while the rows are added
            z_here = emit.at(z_start, builder.mul(unit, _INDEX(n_batch)))
            sums = [emit.load(z_here, b * LANES) for b in range(n_batch)]
            for i in range(n_rows):
                offset = builder.add(unit, builder.mul(width_, _INDEX(i)))
                fetch_ahead(builder, emit.at(w_start, builder.add(offset, builder.mul(width_, _INDEX(n_rows)))))
                weight = emit.load(w_start, offset)
                for b in range(n_batch):
                    sums[b] = fused(builder, weight, emit.broadcast(a_start, i * n_batch + b), sums[b])
            for b in range(n_batch):
                emit.store(sums[b], z_here, b * LANES)
        return context.get_dummy_value()

    return types.none(batch, rows, w, a, z, row, width), generate


@intrinsic
def _learn_row(
    typing_context: Any, batch: Any, w: Any, d: Any, da: Any, row: Any, start: Any, stop: Any, width: Any,
    v: Any, a: Any, momentum: Any, minus_rate: Any,
) -> Any:  # fmt: skip
    """da[row] += w[row] @ d.T for the units in start..stop-1, then velocity and weights of that row learn."""
    kinds = dict(batch=batch, w=w, d=d, da=da, row=row, start=start, stop=stop, width=width)
    kinds |= dict(v=v, a=a, momentum=momentum, minus_rate=minus_rate)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit, n_batch, values = _Emit(builder), batch.count, dict(zip(kinds, args, strict=True))

        def pointer(name: str, offset: Any) -> Any:
            return address_of(context, builder, kinds[name], values[name], offset)

        of_weights, of_features = (builder.mul(values["row"], size) for size in (values["width"], _INDEX(n_batch)))
        w_row, da_row, d_start = pointer("w", of_weights), pointer("da", of_features), pointer("d", _INDEX(0))
        a_row, v_row = pointer("a", of_features), pointer("v", of_weights)
        features = [emit.broadcast(a_row, b) for b in range(n_batch)]
        momentum_, minus_rate_ = (broadcast(builder, values[name], _VECTOR) for name in ("momentum", "minus_rate"))
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(n_batch)]
        for partial in sums:
            builder.store(_ZERO, partial)
        bounds = values["start"], values["stop"], _INDEX(LANES)
        with cgutils.for_range_slice(builder, *bounds, _INDEX) as (unit, _):
            # one pass over the weights: each is read for da, then learns
            for stream in (w_row, v_row):
                fetch_ahead(builder, emit.at(stream, builder.add(unit, _INDEX(AHEAD))))
            weight = emit.load(w_row, unit)
            velocity = builder.fmul(momentum_, emit.load(v_row, unit))
            d_here = emit.at(d_start, builder.mul(unit, _INDEX(n_batch)))
            for b in range(n_batch):
                delta = emit.load(d_here, b * LANES)
                builder.store(fused(builder, weight, delta, builder.load(sums[b])), sums[b])
                velocity = fused(builder, features[b], delta, velocity)
            emit.store(velocity, v_row, unit)
            emit.store(fused(builder, minus_rate_, velocity, weight), w_row, unit)
        for b in range(n_batch):
            address = emit.at(da_row, b)
            builder.store(builder.fadd(builder.load(address), emit.total(builder.load(sums[b]))), address)
        return context.get_dummy_value()

    return types.none(*kinds.values()), generate


_EIGHT, _ONE = (0,) * ROWS, (0,)


@compiled
def forward(batch: Batch, w: Array, a: Array, z: Array, part: Array, features: int, units: int) -> None:
    """z = a.T @ w, packed. All arrays are flat float32; `part` is of the size of z, and overwritten.

    `batch` is any tuple with one element per image.
    """
    z[:] = 0
    for start in range(0, features, SUM_ROWS):
        stop = min(start + SUM_ROWS, features)
        whole = stop - (stop - start) % ROWS
        part[:] = 0
        for row in range(start, whole, ROWS):
            _add_rows(batch, _EIGHT, w, a, part, row, units)
        for row in range(whole, stop):
            _add_rows(batch, _ONE, w, a, part, row, units)
        for i in range(z.size):
            z[i] += part[i]


@compiled
def learn(
    batch: Batch, w: Array, d: Array, da: Array, features: int, units: int, v: Array, a: Array,
    momentum: np.float32, minus_rate: np.float32,
) -> None:  # fmt: skip
    """da = w @ d.T, then v = momentum * v + a @ d and w += minus_rate * v, in one pass; d is packed."""
    da[:] = 0
    for top in range(0, features, TILE_ROWS):
        for start in range(0, units, TILE_UNITS):
            stop = min(start + TILE_UNITS, units)
            for row in range(top, min(top + TILE_ROWS, features)):
                _learn_row(batch, w, d, da, row, start, stop, units, v, a, momentum, minus_rate)
