"""Java's string hash, which consume queues and index files are built with: plain Python reference.

The kernels' twin over UTF-8 bytes is :func:`penstock.formats.record.kernels.string_hash_utf8`.
"""

from __future__ import annotations

import sys
from array import array

INT_MIN = -(1 << 31)
_NATIVE_UTF_16 = f"utf-16-{sys.byteorder[0]}e"


def string_hash(text: str) -> int:
    """``String.hashCode`` of ``text`` as a signed 32-bit number: h = 31 h + c over its UTF-16 code units."""
    result = 0
    if text.isascii():
        for byte in text.encode("ascii"):
            result = (31 * result + byte) & 0xFFFFFFFF
    else:
        for unit in array("H", text.encode(_NATIVE_UTF_16, "surrogatepass")):
            result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result


def tags_code(tag: str) -> int:
    """What a consume queue entry holds for ``tag``: its hash, sign-extended to 64 bits; 0 without a tag.

    Entries of ``SCHEDULE_TOPIC_XXXX`` hold a delivery time instead, which needs the broker's delay levels.
    """
    return string_hash(tag)


def index_key_hash(topic: str, key: str) -> int:
    """The key hash of an index file entry: the absolute hash of ``topic#key``, and 0 for the one without."""
    value = string_hash(f"{topic}#{key}")
    return 0 if value == INT_MIN else abs(value)


assert string_hash("TagA") == 2598919
assert string_hash("标签") == 857175
