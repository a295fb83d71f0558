"""The producer mark: who sent a batch, so that a batch that is sent again is stored once.

It is the value of the first property of the batch's first record (:data:`penstock.proto.names.PRODUCER_PROPERTY`):
``producer id (16 digits):epoch:lane:sequence:count``, lower-case hex, and ``:digest`` (16 digits) where the producer
tells by it what the lane holds, so that a sequence that comes again with something else is seen. A broker rebuilds its
duplicate table from the marks in its log, and so does a slave.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.proto.names import PRODUCER_PROPERTY

MARK_PREFIX = PRODUCER_PROPERTY.encode() + b"\x01"
"""What the properties of a marked record begin with."""


class ProducerMark(NamedTuple):
    """The numbers of a mark, all non-negative."""

    producer_id: int
    epoch: int
    lane: int
    sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    digest: int = 0  # none


MARK_BYTES_MAX = 96
"""What :func:`mark_property` takes at most."""


def mark_property(producer_id: int, epoch: int, lane: int, sequence: int, count: int, digest: int = 0) -> bytes:
    """The property that numbers a batch of ``count`` records, with its name and separators."""
    mark = MARK_PREFIX + producer_mark(producer_id, epoch, lane, sequence, count, digest) + b"\x02"
    assert len(mark) <= MARK_BYTES_MAX
    return mark


def producer_mark(producer_id: int, epoch: int, lane: int, sequence: int, count: int, digest: int = 0) -> bytes:
    """The property value that marks a batch of ``count`` records."""
    mark = b"%016x:%x:%x:%x:%x" % (producer_id, epoch, lane, sequence, count)
    return b"%b:%016x" % (mark, digest) if digest else mark
