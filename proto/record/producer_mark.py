"""The producer mark: who sent a batch, so that a batch that is sent again is stored once.

It is the value of the first property of the batch's first record (:data:`penstock.proto.names.PRODUCER_PROPERTY`):
``producer id (16 digits):epoch:lane:sequence:count``, lower-case hex. A broker rebuilds its duplicate table from the
marks in its log, and so does a slave.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import InvalidArgument
from ..names import PRODUCER_PROPERTY

MARK_PREFIX = PRODUCER_PROPERTY.encode() + b"\x01"
"""What the properties of a marked record begin with."""

_MARK = re.compile(rb"([0-9a-f]{16}):([0-9a-f]{1,8}):([0-9a-f]{1,8}):([0-9a-f]{1,16}):([0-9a-f]{1,8})")


class ProducerMark(NamedTuple):
    """The numbers of a mark, all non-negative."""

    producer_id: int
    epoch: int
    lane: int
    sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


def producer_mark(producer_id: int, epoch: int, lane: int, sequence: int, count: int) -> bytes:
    """The property value that marks a batch of ``count`` records."""
    return b"%016x:%x:%x:%x:%x" % (producer_id, epoch, lane, sequence, count)


def parse_producer_mark(mark: bytes | memoryview) -> ProducerMark:
    """The numbers of a mark.

    Raises:
        InvalidArgument: the bytes are none.
    """
    found = _MARK.fullmatch(mark)
    if found is None:
        raise InvalidArgument(f"producer mark {bytes(mark[:80])!r}: expected five hexadecimal numbers")
    return ProducerMark(*(int(number, 16) for number in found.groups()))


def find_producer_mark(properties: bytes) -> ProducerMark | None:
    """The mark that the property string ``properties`` begins with, None without a (valid) one."""
    if not properties.startswith(MARK_PREFIX):
        return None
    found = _MARK.fullmatch(properties[len(MARK_PREFIX) :].partition(b"\x02")[0])
    return ProducerMark(*(int(number, 16) for number in found.groups())) if found else None
