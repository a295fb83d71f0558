"""The bits by which RocketMQ's Bloom filter knows a group's subscription of a topic, for ``consumerFilter.json``.

RocketMQ marks them in the extension units of consume queues (``enableCalcFilterBitMap``), and drops the whole file at
its start if the bits of one entry are missing or of another size.
Source: RocketMQ ``BloomFilter#calcBitPositions`` with its defaults ``maxErrorRateOfBloomFilter`` 20 and
``expectConsumerNumUseFilter`` 32; the hash is MurmurHash3 x64 128.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 112
HASHES: Final = 3
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def bit_positions(group: str, topic: str) -> list[int]:
    """The bits of a group's subscription, each below :data:`BITS`."""
    found = _murmur3(f"{group}#{topic}".encode())
    low, high = _signed(found), _signed(found >> 32)
    combined = (_signed(low + number * high) for number in range(1, HASHES + 1))
    return [(~each if each < 0 else each) % BITS for each in combined]


def _signed(number: int) -> int:
    """The low 32 bits as Java's int."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK


def _mixed(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33


def _murmur3(data: bytes) -> int:
    """The first 64 bits of the hash with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for start in range(0, whole, 16):
        k1 = int.from_bytes(data[start : start + 8], "little")
        k2 = int.from_bytes(data[start + 8 : start + 16], "little")
        h1 ^= _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    rest = data[whole:]
    h2 ^= _rotated(int.from_bytes(rest[8:], "little") * _C2 & _MASK, 33) * _C1 & _MASK
    h1 ^= _rotated(int.from_bytes(rest[:8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_mixed(h1) + _mixed(h2)) & _MASK
