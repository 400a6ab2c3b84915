"""Scalar products of all pairs of two sets of samples, the same number wherever a pair is computed.

BLAS rounds an element differently depending on where it lies in the matrix. Here every element is one chain of
fused multiply-adds over the features in their order, so that a row, a block or the whole matrix, computed by one
process or several, agree bit by bit, and a.b equals b.a. On AVX-512 it is also faster than what OpenBLAS
chooses on processors that it does not know. A feature that is zero in all samples of a tile adds nothing and is left
out: in images and counts that is most of them.

Samples are packed in panels of LANES: (n_panels, n_features, LANES).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mpitune._jit import LANES, padded
from mpitune._jit.llvm import F32, broadcast, fused, llvm_type, load_vector, store_vector
from mpitune._jit.simd import aligned_zeros, compiled, part

# Rows and vectors of columns of a tile: its accumulators and operands should fill the vector registers.
ROWS, VECTORS = (8, 2) if LANES == 16 else (4, 3)
GROUP = 8  # row panels that are multiplied with one column tile after the other; they stay in the L2 cache
DEPTH = 192  # features of a column tile that are multiplied at a time; they stay in the L1 cache


def _tile_of(vectors: int) -> Any:
    """The inner loop for a tile of ROWS samples and ``vectors`` panels, its sums in registers, all float32.

    Those features count whose offsets in a panel of ``size`` elements are ``places[first:end]``, at least one. With
    ``more``, they are added to what ``out`` has. Lane by lane, and with one rounding per line of the inner loop:

        for r in range(ROWS):
            for c in range(LANES * vectors):
                total = out[out_at + stride * r + c] if more else 0
                for step in places[first:end]:
                    total += a[a_at + step + r] * b[b_at + size * (c // LANES) + step + c % LANES]
                out[out_at + stride * r + c] = total
    """

    @intrinsic
    def tile(
        typingctx: Any, a: Any, a_at: Any, b: Any, b_at: Any, size: Any, places: Any, first: Any, end: Any, more: Any,
        out: Any, out_at: Any, stride: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            index, vector = ir.IntType(64), llvm_type(F32)
            a_data, b_data, place_data, out_data = (
                context.make_array(kind)(context, builder, value).data
                for kind, value in ((a, args[0]), (b, args[2]), (places, args[5]), (out, args[9]))
            )
            a_at, b_at, size = args[1], args[3], args[4]
            first, end, more, out_at, stride = args[6], args[7], args[8], args[10], args[11]
            tiles = [(r, v) for r in range(ROWS) for v in range(vectors)]
            nothing = ir.Constant(vector, [0.0] * LANES)
            targets, so_far = {}, {}
            for r, v in tiles:
                place = builder.add(builder.add(out_at, builder.mul(stride, index(r))), index(v * LANES))
                targets[r, v] = builder.gep(out_data, [place])
                so_far[r, v] = builder.select(more, load_vector(builder, targets[r, v], vector), nothing)
            # A loop over k with the sums as phi nodes, so that LLVM keeps all of them in registers.
            before = builder.block
            loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tile.end")
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(index)
            sums = {tile: builder.phi(vector) for tile in tiles}
            step = builder.sext(builder.load(builder.gep(place_data, [k])), index)
            columns = []
            for v in range(vectors):
                panel = builder.add(b_at, builder.mul(size, index(v)))
                columns.append(load_vector(builder, builder.gep(b_data, [builder.add(panel, step)]), vector))
            scalars = [
                builder.load(builder.gep(a_data, [builder.add(builder.add(a_at, step), index(r))])) for r in range(ROWS)
            ]
            rows = [broadcast(builder, scalar, vector) for scalar in scalars]
            totals = {(r, v): fused(builder, rows[r], columns[v], sums[r, v]) for r, v in tiles}
            following = builder.add(k, index(1))
            builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
            k.add_incoming(first, before)
            k.add_incoming(following, loop)
            # From the second round on the sums come from the round before.
            for tile in tiles:
                sums[tile].add_incoming(so_far[tile], before)
                sums[tile].add_incoming(totals[tile], loop)
            builder.position_at_end(after)
            for tile in tiles:
                store_vector(builder, totals[tile], targets[tile])
            return context.get_dummy_value()

        i = types.intp
        return types.none(a, i, b, i, i, places, i, i, types.boolean, out, i, i), codegen

    return tile


_wide, _narrow = _tile_of(VECTORS), _tile_of(VECTORS - 1)


@part
def _places(pairs, panel, top, begin, last, places, first):
    """List the features from ``begin`` to ``last`` that are not zero in all ROWS samples from ``top`` on.

    They are listed in ``places`` from ``first`` on; ``pairs`` are two samples each, as integers. Returns where the list
    ends; it has one element at least.
    """
    end = first
    for k in range(begin, last):
        some = 0
        for r in range(top // 2, (top + ROWS) // 2):
            some |= pairs[panel, k, r]
        places[end] = k * LANES
        end += some != 0
    return max(end, first + 1)


@compiled
def multiply(a, b, out):
    """``out[LANES p + r, LANES q + c]`` = product of sample r of panel p of ``a`` and sample c of panel q of ``b``.

    ``b`` has VECTORS - 1 panels at least, as all that `packed` makes.
    """
    depth, stride = a.shape[1], out.strides[0] // 4
    size, pairs = depth * LANES, a.view(np.int64)
    wide = b.shape[0] - -b.shape[0] % VECTORS * (VECTORS - 1)  # panels of wide tiles; narrow ones have the rest
    places, ends = np.empty(GROUP * LANES // ROWS * DEPTH, np.int32), np.empty(GROUP * LANES // ROWS, np.int64)
    for group in range(0, a.shape[0], GROUP):
        tiles = min(GROUP, a.shape[0] - group) * LANES // ROWS
        for begin in range(0, depth, DEPTH):
            last = min(begin + DEPTH, depth)
            for t in range(tiles):
                panel = group + t * ROWS // LANES
                ends[t] = _places(pairs, panel, t * ROWS % LANES, begin, last, places, t * DEPTH)
            q = 0
            while q < b.shape[0]:
                for t in range(tiles):
                    row = group * LANES + t * ROWS
                    sample, place = row // LANES * size + row % LANES, row * stride + q * LANES
                    first, end, more = t * DEPTH, ends[t], begin > 0
                    if q < wide:
                        _wide(a, sample, b, q * size, size, places, first, end, more, out, place, stride)
                    else:
                        _narrow(a, sample, b, q * size, size, places, first, end, more, out, place, stride)
                q += VECTORS if q < wide else VECTORS - 1


def packed(x: np.ndarray) -> np.ndarray:
    """float32 (n_panels, n_features, LANES) from (n, n_features); lanes that are left over are zero."""
    n, depth = x.shape
    panels = aligned_zeros((padded(n) // LANES, depth, LANES))
    whole = n // LANES
    panels[:whole] = x[: whole * LANES].reshape(whole, LANES, depth).transpose(0, 2, 1)
    if n % LANES:
        panels[whole, :, : n % LANES] = x[whole * LANES :].T
    return panels
