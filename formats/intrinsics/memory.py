"""Big-endian loads and stores, copies and searches inside kernels, on raw pointers.

Nothing here checks bounds: a kernel validates every length, in 64-bit arithmetic, before it comes here. Numba's
own indexing would cost a wrap-around test per byte, and its slice assignment is now and then a loop over bytes,
whereas these become one instruction, or one call of ``memcpy``.
"""

# Numba calls these bodies with its own typing and code generation objects, which have no useful types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from .freshness import drop_stale_kernels

drop_stale_kernels(__file__)

intrinsic: Any = extending.intrinsic
"""Numba types it by the generating function, whose first argument callers never pass."""

_I8 = ir.IntType(8)
LANES = 16
"""Bytes that :func:`match_mask`, :func:`high_mask` and :func:`copy_lanes` take at once."""


def pointer_into(context, builder, array_type, array, position):
    """The address of ``array[position]``; an integer in place of the array is the address of its first byte."""
    if isinstance(array_type, types.Array):
        data = context.make_array(array_type)(context, builder, array).data
    else:
        data = builder.inttoptr(array, _I8.as_pointer())
    return builder.gep(data, [position])


def _loader(bits, result=types.int64, *, swapped=True, widen="sext"):
    @intrinsic
    def load(typing_context, array, position):
        def generate(context, builder, signature, arguments):
            pointer = pointer_into(context, builder, signature.args[0], *arguments)
            value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
            value = builder.bswap(value) if swapped else value
            return getattr(builder, widen)(value, ir.IntType(64)) if bits < 64 else value

        return result(array, types.int64), generate

    return load


load_i8 = _loader(8, swapped=False)
load_u8 = _loader(8, swapped=False, widen="zext")
load_i16 = _loader(16)
"""``load_i16(array, position)``: the big-endian signed number there, as i64."""
load_i32 = _loader(32)
load_i64 = _loader(64)
load_u64_native = _loader(64, types.uint64, swapped=False)
"""``load_u64_native(array, position)``: eight bytes in this machine's order, as u64."""


@intrinsic
def address_of(typing_context, array):
    """``address_of(array)``: where its first byte is; good while the caller holds the array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


def _storer(bits):
    @intrinsic
    def store(typing_context, array, position, value):
        def generate(context, builder, signature, arguments):
            pointer = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
            width = ir.IntType(bits)
            number = builder.trunc(arguments[2], width) if bits < 64 else arguments[2]
            if bits > 8:
                number = builder.bswap(number)
            builder.store(number, builder.bitcast(pointer, width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), generate

    return store


store_i8 = _storer(8)
store_i16 = _storer(16)
"""``store_i16(array, position, value)``: the low bits of ``value``, big-endian."""
store_i32 = _storer(32)
store_i64 = _storer(64)


@intrinsic
def copy_bytes(typing_context, target, target_position, source, source_position, size):
    """``copy_bytes(target, target_position, source, source_position, size)``: one memcpy; they may not overlap."""

    def generate(context, builder, signature, arguments):
        to = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
        begin = pointer_into(context, builder, signature.args[2], arguments[2], arguments[3])
        cgutils.raw_memcpy(builder, to, begin, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic
def copy_to_address(typing_context, address, source, source_position, size):
    """``copy_to_address(address, source, source_position, size)``: one memcpy to memory that the caller owns."""

    def generate(context, builder, signature, arguments):
        to = builder.inttoptr(arguments[0], _I8.as_pointer())
        begin = pointer_into(context, builder, signature.args[1], arguments[1], arguments[2])
        cgutils.raw_memcpy(builder, to, begin, arguments[3], 1)
        return context.get_dummy_value()

    return types.void(types.int64, source, types.int64, types.int64), generate


@intrinsic
def zero_bytes(typing_context, target, position, size):
    """``zero_bytes(target, position, size)``: one memset."""

    def generate(context, builder, signature, arguments):
        to = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
        cgutils.memset(builder, to, arguments[2], 0)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), generate


@intrinsic
def match_mask(typing_context, array, position, byte):
    """``match_mask(array, position, byte)``: bit i set where ``array[position + i] == byte``, i < LANES, as i64."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
        vector = ir.VectorType(_I8, LANES)
        found = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
        wanted = builder.insert_element(
            ir.Constant(vector, ir.Undefined), builder.trunc(arguments[2], _I8), ir.Constant(ir.IntType(32), 0)
        )
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        wanted = builder.shuffle_vector(wanted, ir.Constant(vector, ir.Undefined), zeros)
        equal = builder.icmp_unsigned("==", found, wanted)
        return builder.zext(builder.bitcast(equal, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def high_mask(typing_context, array, position):
    """``high_mask(array, position)``: bit i set where ``array[position + i]`` is 128 or more, i < LANES, as i64."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
        vector = ir.VectorType(_I8, LANES)
        found = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
        is_high = builder.icmp_signed("<", found, ir.Constant(vector, [0] * LANES))
        return builder.zext(builder.bitcast(is_high, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(array, types.int64), generate


@intrinsic
def copy_lanes(typing_context, target, target_position, source, source_position):
    """``copy_lanes(target, target_position, source, source_position)``: LANES bytes, by one load and one store."""

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(_I8, LANES).as_pointer()
        to = pointer_into(context, builder, signature.args[0], arguments[0], arguments[1])
        begin = pointer_into(context, builder, signature.args[2], arguments[2], arguments[3])
        builder.store(builder.load(builder.bitcast(begin, vector), align=1), builder.bitcast(to, vector), align=1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


@intrinsic
def lowest_bit(typing_context, mask):
    """``lowest_bit(mask)``: number of the lowest set bit; ``mask`` is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
