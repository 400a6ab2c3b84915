"""Vectors of LANES elements for numba.

LLVM does not vectorise a loop that carries the index of a minimum, and the working-set choice of SMO is such
a loop. These intrinsics let numba code spell the vectors out. LANES depends on the
kind of processor, and so does which of several equal elements is found first; on processors of one kind the same lanes
are combined in the same order.

Arrays are passed whole with the offset of the first of the elements, counted in elements from the start of
the array's memory; the caller guarantees that all of them exist. Vectors are numba values: they live in registers
and cannot leave a compiled function.

Numba counts the references to an array that a function is given or copies to a variable, by an atomic operation each
time. In a function that takes less than a microsecond they cost as much as its work; `memory` gives the array's memory
without them, to be used in the array's place while somebody else holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mpitune._jit import LANES, WIDE, cache
from mpitune._jit.llvm import (
    F32,
    F64,
    MASK,
    Memory,
    Vector,
    address_of,
    broadcast,
    fetch_ahead,
    fused,
    llvm_type,
    load_vector,
    shuffled,
    store_vector,
)

_LOOPS = {"error_model": "numpy", "boundscheck": False}


def compiled(function: Callable[..., Any]) -> Any:
    """`cache.compiled` for loops over arrays whose bounds the caller guarantees."""
    return cache.compiled(function, **_LOOPS)


def part(function: Callable[..., Any]) -> Any:
    """`cache.part` for such loops."""
    return cache.part(function, **_LOOPS)


def inlined(function: Callable[..., Any]) -> Any:
    """`part` that is put in wherever it is called, since vectors are among its arguments."""
    return cache.part(function, forceinline=True, **_LOOPS)


@intrinsic
def memory(typingctx: Any, array: Any) -> Any:
    """The memory of an array that is an argument, for `load`, `store`, `prefetch` and `item`.

    It does not keep the array alive: numba frees an array made in the function after its last use.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(array)(context, builder, args[0]).data

    return Memory(array.dtype)(array), codegen


@intrinsic
def item(typingctx: Any, array: Any, offset: Any) -> Any:
    """Flat element ``offset``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(address_of(context, builder, array, args[0], args[1]))

    return array.dtype(array, types.intp), codegen


@intrinsic
def load(typingctx: Any, array: Any, offset: Any) -> Any:
    """The elements of ``array`` from flat element ``offset`` on."""
    vector = Vector(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load_vector(builder, address_of(context, builder, array, args[0], args[1]), llvm_type(vector))

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write the elements of ``array`` from flat element ``offset`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        store_vector(builder, args[2], address_of(context, builder, array, args[0], args[1]))
        return context.get_dummy_value()

    return types.none(array, types.intp, value), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    """Ask for the cache line of flat element ``offset``, to be read soon; it need not exist."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fetch_ahead(builder, address_of(context, builder, array, args[0], args[1]))
        return context.get_dummy_value()

    return types.none(array, types.intp), codegen


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """A vector with the same scalar in all lanes."""
    vector = Vector(scalar)
    return vector(scalar), lambda context, builder, signature, args: broadcast(builder, args[0], llvm_type(vector))


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, with one rounding where the machine can."""
    return c(a, b, c), lambda context, builder, signature, args: fused(builder, *args)


def _lanewise(result: Vector | None, build: Callable[..., Any]) -> Any:
    """An intrinsic of two vectors that ``build(builder, a, b)`` emits; ``result`` defaults to their type."""

    def binary(typingctx: Any, a: Any, b: Any) -> Any:
        return (result or b)(a, b), lambda context, builder, signature, args: build(builder, *args)

    return intrinsic(binary)


add = _lanewise(None, lambda builder, a, b: builder.fadd(a, b))
sub = _lanewise(None, lambda builder, a, b: builder.fsub(a, b))
mul = _lanewise(None, lambda builder, a, b: builder.fmul(a, b))
less = _lanewise(MASK, lambda builder, a, b: builder.fcmp_ordered("<", a, b))
div = _lanewise(None, lambda builder, a, b: builder.fdiv(a, b))


@intrinsic
def power_of_two(typingctx: Any, shifted: Any) -> Any:
    """2**n as float32 lanes, where ``shifted`` is 1.5 * 2**23 + n and n lies between -126 and 127."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(32), LANES)
        bits = builder.bitcast(args[0], integers)
        exponent = builder.sub(bits, ir.Constant(integers, [0x4B400000 - 127] * LANES))
        return builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * LANES)), args[0].type)

    return F32(shifted), codegen


@intrinsic
def choose(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """Lane by lane ``a if mask else b``."""
    return a(mask, a, b), lambda context, builder, signature, args: builder.select(*args)


@intrinsic
def marked(typingctx: Any, bytes_: Any) -> Any:
    """The mask of the bytes of a uint8 vector whose highest bit is set, which wider elements have by sign extension."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.icmp_signed("<", args[0], ir.Constant(args[0].type, [0] * LANES))

    return MASK(bytes_), codegen


@intrinsic
def masked(typingctx: Any, bytes_: Any, a: Any) -> Any:
    """float32 lanes where all bits of a byte of a uint8 vector are set, 0 where none is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask, value = args
        if LANES == WIDE:  # AVX-512 keeps masks in registers of their own
            there = builder.icmp_signed("<", mask, ir.Constant(mask.type, [0] * LANES))
            return builder.select(there, value, ir.Constant(value.type, [0.0] * LANES))
        integers = ir.VectorType(ir.IntType(32), LANES)
        return builder.bitcast(builder.and_(builder.sext(mask, integers), builder.bitcast(value, integers)), value.type)

    return F32(bytes_, a), codegen


@intrinsic
def widen(typingctx: Any, a: Any) -> Any:
    """float32 lanes as float64."""
    return F64(a), lambda context, builder, signature, args: builder.fpext(args[0], llvm_type(F64))


@intrinsic
def narrow(typingctx: Any, a: Any) -> Any:
    """float64 lanes rounded to float32."""
    return F32(a), lambda context, builder, signature, args: builder.fptrunc(args[0], llvm_type(F32))


@intrinsic
def lane(typingctx: Any, a: Any, index: Any) -> Any:
    """One element of a vector."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], builder.trunc(args[1], ir.IntType(32)))

    return a.element(a, types.intp), codegen


def _folded(combine: Callable[..., Any]) -> Any:
    """An intrinsic that reduces a vector of floats to one element, by ``combine(builder, upper half, lower half)``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (vector,), count = args, LANES
        while count > 1:  # halves are vectors of their own, as instructions for short ones take less long
            count //= 2
            lower, upper = (shuffled(builder, vector, vector, [*range(n, n + count)]) for n in (0, count))
            vector = combine(builder, upper, lower)
        return builder.extract_element(vector, ir.IntType(32)(0))

    return intrinsic(lambda typingctx, a: (a.element(a), codegen))


least_lane, most_lane = (
    _folded(lambda builder, a, b, sign=sign: builder.select(builder.fcmp_ordered(sign, a, b), a, b)) for sign in "<>"
)
total_of = _folded(lambda builder, a, b: builder.fadd(a, b))  # halves are added to halves


@intrinsic
def lane_of(typingctx: Any, a: Any, value: Any) -> Any:
    """The first lane that equals ``value``; one of them must."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        equal = builder.fcmp_ordered("==", args[0], broadcast(builder, args[1], args[0].type))
        number = builder.cttz(builder.bitcast(equal, ir.IntType(LANES)), ir.IntType(1)(1))
        return builder.zext(number, ir.IntType(64))

    return types.intp(a, a.element), codegen


def aligned_zeros(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Zeros whose first element lies on a 64-byte border, so that no vector crosses a cache line."""
    raw = np.zeros(math.prod(shape) * np.dtype(dtype).itemsize + 64, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.__array_interface__["data"][0] % 64)
