"""The entry of a consume queue: where a message lies in the log, and the hash of its tag.

Entries stand end to end in files of one size, big-endian, 20 bytes each:

| Offset | Type | Field |
|---|---|---|
| 0 | i64 | physical offset of the record |
| 8 | i32 | size of the record |
| 12 | i64 | tags code: the hash of the tag, 0 without one |

A place where nothing was written is zero. Fillers (0, 2^31 - 1, 0) stand in front of the first message of a queue that
begins late, and for messages that the log has lost. In place of the hash stand

* in the queues of delayed messages (:mod:`.delay_levels`), the time of delivery in milliseconds;
* with ``enableConsumeQueueExt``, the address of a unit in ``consumequeue_ext`` less 2^63: below any hash.

Example, from ``tests/golden/direct``: ``0000000000000530 0000008b 000000000027a807`` is the record of 139 bytes at 1328
with the tag ``TagA``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_BYTES = 20
SIZE_AT, TAGS_AT = 8, 12
_PACKED = struct.Struct(">qiq")
assert ENTRY.itemsize == _PACKED.size == ENTRY_BYTES
assert [ENTRY.fields[name][1] for name in ("size", "tags_code")] == [SIZE_AT, TAGS_AT]  # type: ignore[index]

FILE_ENTRIES = 300_000
"""Of one file, by default."""
FILLER_SIZE = (1 << 31) - 1
FILLER = _PACKED.pack(0, FILLER_SIZE, 0)
HASH_MIN, HASH_MAX = -(1 << 31), (1 << 31) - 1
"""A tags code in between is a hash; what is below is the address of an extension."""
ADDRESS_BASE = -(1 << 63)
"""What the tags code of the address 0 is."""


class Entry(NamedTuple):
    physical_offset: int
    size: int
    tags_code: int

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """The entry that ``data``, 20 bytes or more, begins with."""
        return cls(*_PACKED.unpack_from(data))

    @property
    def is_filler(self) -> bool:
        """True if it stands for no message, in front of the first one or in place of a lost one."""
        return self.size == FILLER_SIZE

    @property
    def is_message(self) -> bool:
        """True if it is of a message: neither a place that was never written, nor a filler."""
        return 0 < self.size != FILLER_SIZE


def are_messages(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which of these :data:`ENTRY` rows are of messages, see :attr:`Entry.is_message`."""
    found: npt.NDArray[np.bool_] = (entries["size"] > 0) & (entries["size"] != FILLER_SIZE)
    return found
