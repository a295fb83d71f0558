"""CRC-32 (zlib's) inside kernels: carry-less multiplication where the processor has it, else slicing by 8.

Folding is Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction": four 128-bit
remainders move over the bytes 64 at a time (each multiplied by x^(512+-32) mod P), are folded into one, then into
64 and, by Barrett reduction, 32 bits. Constants are of the bit-reflected polynomial 0xEDB88320. Bytes that fill no
block of 16 go through the tables. Measured on one core: 6 GB/s at 1 KiB where slicing by 8 reaches 1-1.7 GB/s;
calling ``zlib.crc32`` from a kernel is not possible without taking the interpreter lock.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import int64, types, uint64
from numba.core.registry import cpu_target

from .kernel import BYTES, kernel
from .memory import address_of, intrinsic, load_u8, load_u64_native, pointer_into

_I64 = ir.IntType(64)
_LANES = ir.VectorType(_I64, 2)
FOLD_4 = (0x0154442BD4, 0x01C6E41596)
FOLD_1 = (0x01751997D0, 0x00CCAA009E)
FOLD_64 = (0x0163CD6124, 0)
BARRETT = (0x01DB710641, 0x01F7011641)


def _make_tables():
    """``tables[k][b]``: remainder of byte ``b`` followed by ``k`` zero bytes."""
    tables = np.zeros((8, 256), dtype=np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for table in range(1, 8):
        before = tables[table - 1]
        tables[table] = before >> np.uint64(8) ^ tables[0][before & np.uint64(255)]
    return tables.astype(np.uint32)


_TABLES = _make_tables()


def has_carryless_multiply() -> bool:
    """True if kernels are compiled for a processor with PCLMULQDQ (NUMBA_CPU_NAME and _FEATURES count)."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return triple.startswith("x86_64") and "+pclmul" in features.split(",")


@intrinsic
def _fold_blocks(typing_context, buffer, start, size, remainder):
    """Remainder after ``size`` bytes (a multiple of 16, not 0) from ``start``; not inverted before or after."""

    def generate(context, builder, signature, arguments):
        array, start, size, remainder = arguments
        return _FoldBuilder(builder).build(
            pointer_into(context, builder, signature.args[0], array, start), size, remainder
        )

    return types.uint64(buffer, types.int64, types.int64, types.uint64), generate


class _FoldBuilder:
    """Writes the folding loops as LLVM code; 128-bit values stay in vector registers all the way."""

    def __init__(self, builder):
        self.builder = builder
        self.multiply_declared = builder.module.globals.get("llvm.x86.pclmulqdq") or ir.Function(
            builder.module, ir.FunctionType(_LANES, (_LANES, _LANES, ir.IntType(8))), "llvm.x86.pclmulqdq"
        )

    def multiply(self, left, right, halves):
        """Carry-less product; bit 0 of ``halves`` takes the high half of ``left``, bit 4 that of ``right``."""
        return self.builder.call(self.multiply_declared, (left, right, ir.Constant(ir.IntType(8), halves)))

    def fold(self, value, constants, following):
        """``value`` moved over ``following`` by ``constants``."""
        factor = ir.Constant(_LANES, constants)
        builder = self.builder
        moved = builder.xor(self.multiply(value, factor, 0x00), self.multiply(value, factor, 0x11))
        return builder.xor(moved, following)

    def load(self, pointer, position, block=0):
        """The 16 bytes of block ``block`` behind ``pointer + position``."""
        builder = self.builder
        address = builder.gep(pointer, [builder.add(position, ir.Constant(_I64, 16 * block))])
        return builder.load(builder.bitcast(address, _LANES.as_pointer()), align=1)

    def halves(self, low, high):
        vector = self.builder.insert_element(ir.Constant(_LANES, (0, 0)), low, ir.Constant(ir.IntType(32), 0))
        return self.builder.insert_element(vector, high, ir.Constant(ir.IntType(32), 1))

    def half(self, vector, index):
        return self.builder.extract_element(vector, ir.Constant(ir.IntType(32), index))

    def build(self, pointer, size, remainder):
        builder = self.builder
        zero = ir.Constant(_I64, 0)
        first = builder.xor(self.load(pointer, zero), self.halves(remainder, zero))
        entry = builder.block
        wide, wide_loop, wide_end = (builder.append_basic_block(f"crc.wide{part}") for part in ("", ".loop", ".end"))
        narrow, narrow_loop, done = (builder.append_basic_block(f"crc.{part}") for part in ("narrow", "loop", "done"))
        builder.cbranch(builder.icmp_signed(">=", size, ir.Constant(_I64, 64)), wide, narrow)

        builder.position_at_end(wide)
        starts = [first, *(self.load(pointer, zero, block) for block in (1, 2, 3))]
        builder.cbranch(builder.icmp_signed(">=", size, ir.Constant(_I64, 128)), wide_loop, wide_end)
        builder.position_at_end(wide_loop)
        position = builder.phi(_I64)
        lanes = [builder.phi(_LANES) for _ in starts]
        folded = [self.fold(lane, FOLD_4, self.load(pointer, position, block)) for block, lane in enumerate(lanes)]
        following = builder.add(position, ir.Constant(_I64, 64))
        more = builder.icmp_signed("<=", builder.add(following, ir.Constant(_I64, 64)), size)
        builder.cbranch(more, wide_loop, wide_end)
        self.join(position, (ir.Constant(_I64, 64), wide), (following, wide_loop))
        for lane, start, again in zip(lanes, starts, folded, strict=True):
            self.join(lane, (start, wide), (again, wide_loop))

        builder.position_at_end(wide_end)
        wide_position = builder.phi(_I64)
        self.join(wide_position, (ir.Constant(_I64, 64), wide), (following, wide_loop))
        ends = [builder.phi(_LANES) for _ in starts]
        for end, start, again in zip(ends, starts, folded, strict=True):
            self.join(end, (start, wide), (again, wide_loop))
        single = ends[0]
        for end in ends[1:]:
            single = self.fold(single, FOLD_1, end)
        builder.branch(narrow)

        builder.position_at_end(narrow)
        narrow_position = builder.phi(_I64)
        value = builder.phi(_LANES)
        self.join(narrow_position, (ir.Constant(_I64, 16), entry), (wide_position, wide_end))
        self.join(value, (first, entry), (single, wide_end))
        builder.cbranch(builder.icmp_signed("<", narrow_position, size), narrow_loop, done)
        builder.position_at_end(narrow_loop)
        position = builder.phi(_I64)
        lane = builder.phi(_LANES)
        again = self.fold(lane, FOLD_1, self.load(pointer, position))
        following = builder.add(position, ir.Constant(_I64, 16))
        builder.cbranch(builder.icmp_signed("<", following, size), narrow_loop, done)
        self.join(position, (narrow_position, narrow), (following, narrow_loop))
        self.join(lane, (value, narrow), (again, narrow_loop))

        builder.position_at_end(done)
        last = builder.phi(_LANES)
        self.join(last, (value, narrow), (again, narrow_loop))
        return self.reduce(last)

    @staticmethod
    def join(phi, *incoming):
        for value, block in incoming:
            phi.add_incoming(value, block)

    def reduce(self, value):
        """The 32-bit remainder of a 128-bit one."""
        builder = self.builder
        zero = ir.Constant(_I64, 0)
        low_bits = ir.Constant(_I64, 0xFFFFFFFF)
        product = self.multiply(value, ir.Constant(_LANES, FOLD_1), 0x10)
        value = builder.xor(product, self.halves(self.half(value, 1), zero))
        low, high = self.half(value, 0), self.half(value, 1)
        shift = ir.Constant(_I64, 32)
        shifted = self.halves(
            builder.or_(builder.lshr(low, shift), builder.shl(high, shift)), builder.lshr(high, shift)
        )
        product = self.multiply(self.halves(builder.and_(low, low_bits), zero), ir.Constant(_LANES, FOLD_64), 0x00)
        value = builder.xor(product, shifted)
        barrett = ir.Constant(_LANES, BARRETT)
        quotient = self.multiply(self.halves(builder.and_(self.half(value, 0), low_bits), zero), barrett, 0x10)
        quotient = self.halves(builder.and_(self.half(quotient, 0), low_bits), zero)
        value = builder.xor(value, self.multiply(quotient, barrett, 0x00))
        return builder.lshr(self.half(value, 0), shift)


@kernel(uint64, int64, int64, int64, uint64)
def _through_tables(buffer, start, end, remainder):
    """Remainder after the bytes ``[start, end)`` by slicing by 8; not inverted before or after."""
    position = start
    while position + 8 <= end:
        block = load_u64_native(buffer, position) ^ remainder
        remainder = np.uint64(
            _TABLES[7, block & 255]
            ^ _TABLES[6, block >> 8 & 255]
            ^ _TABLES[5, block >> 16 & 255]
            ^ _TABLES[4, block >> 24 & 255]
            ^ _TABLES[3, block >> 32 & 255]
            ^ _TABLES[2, block >> 40 & 255]
            ^ _TABLES[1, block >> 48 & 255]
            ^ _TABLES[0, block >> 56]
        )
        position += 8
    while position < end:
        index = (remainder ^ np.uint64(load_u8(buffer, position))) & np.uint64(255)
        remainder = np.uint64(_TABLES[0, index]) ^ (remainder >> np.uint64(8))
        position += 1
    return remainder


_ONES = np.uint64(0xFFFFFFFF)


@kernel(int64, int64, int64, int64)
def _crc32_by_tables_at(address, start, end):
    return np.int64(_through_tables(address, start, end, _ONES) ^ _ONES)


if has_carryless_multiply():

    @kernel(int64, int64, int64, int64)
    def crc32_at(address, start, end):
        """CRC-32 of the bytes ``[start, end)`` behind ``address``."""
        remainder = _ONES
        blocks = (end - start) & ~15
        if blocks > 0:
            remainder = _fold_blocks(address, start, blocks, remainder)
            start += blocks
        return np.int64(_through_tables(address, start, end, remainder) ^ _ONES)

else:
    crc32_at = _crc32_by_tables_at


@kernel(int64, BYTES, int64, int64)
def crc32(buffer, start, end):
    """CRC-32 of ``buffer[start:end]``, which must lie inside the buffer, the fastest way this processor has."""
    return crc32_at(address_of(buffer), start, end)
