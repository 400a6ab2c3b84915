"""Vectors as LLVM instructions: what numba's intrinsics of this project are written with.

LLVM splits a vector into what the machine has: 16 lanes of float32 are one AVX-512 register, 8 are one of AVX2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default

from mpitune._jit import LANES


class Vector(types.Type):
    """Numba type of LANES lanes of a scalar type; booleans are a mask."""

    def __init__(self, element: types.Type) -> None:
        self.element = element
        super().__init__(name=f"Vector({element} x {LANES})")


class Memory(types.Type):
    """Numba type of the memory of an array, whose references are not counted."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Memory({dtype})")


_ELEMENTS = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int32: ir.IntType(32),
    types.uint8: ir.IntType(8),
    types.boolean: ir.IntType(1),
}


@register_default(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(_ELEMENTS[fe_type.element], LANES))


@register_default(Memory)
class _MemoryModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Memory) -> None:
        super().__init__(dmm, fe_type, dmm.lookup(fe_type.dtype).get_data_type().as_pointer())


F32, F64, MASK = (Vector(t) for t in (types.float32, types.float64, types.boolean))


def llvm_type(vector: Vector) -> ir.VectorType:
    """The type of LLVM that holds such a vector."""
    return ir.VectorType(_ELEMENTS[vector.element], LANES)


def load_vector(builder: Any, pointer: Any, kind: ir.VectorType) -> Any:
    """LLVM code that loads a vector, aligned as its elements are."""
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=_alignment(kind))


def store_vector(builder: Any, value: Any, pointer: Any) -> None:
    """LLVM code that stores a vector, aligned as its elements are."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=_alignment(value.type))


def _alignment(kind: ir.VectorType) -> int:
    sizes = {ir.FloatType(): 4, ir.DoubleType(): 8}
    return sizes[kind.element] if kind.element in sizes else max(1, kind.element.width // 8)


def broadcast(builder: Any, scalar: Any, kind: ir.VectorType) -> Any:
    """LLVM code for a vector with the same scalar in all lanes."""
    nothing = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(nothing, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None))


def shuffled(builder: Any, a: Any, b: Any, order: Sequence[int | None]) -> Any:
    """LLVM code for a vector of lanes of two: those of ``b`` are counted on from those of ``a``; None is any lane."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """LLVM code for ``a * b + c`` of vectors, with one rounding where the machine can."""
    name = f"llvm.fmuladd.v{a.type.count}{'f32' if a.type.element == ir.FloatType() else 'f64'}"
    return call_intrinsic(builder, name, a.type, a, b, c)


def fetch_ahead(builder: Any, pointer: Any) -> None:
    """LLVM code that asks for the cache line at an address, which need not exist.

    It is asked for into the second cache. On its way into the first it would take one of the few places for lines that
    a core waits for, and memory is so slow that all of these are taken.
    """
    number = ir.IntType(32)
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    call_intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), address, number(0), number(2), number(1))


def call_intrinsic(builder: Any, name: str, result: Any, *arguments: Any, **options: Any) -> Any:
    """LLVM code that calls one of LLVM's own functions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments, **options)


def address_of(context: Any, builder: Any, array: Any, value: Any, offset: Any) -> Any:
    """LLVM code for the address of a flat element of an array or of its memory.

    Args:
        context: numba's target context.
        builder: LLVM's builder.
        array: numba's type of the array or of the memory.
        value: LLVM's value of it.
        offset: LLVM's integer, in elements.
    """
    first = value if isinstance(array, Memory) else context.make_array(array)(context, builder, value).data
    return builder.gep(first, [offset])
