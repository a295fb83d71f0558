"""AckMessage of what was received together, from the request's bytes to the answer's.

No object is made of a message. What a request asks and gets is what :mod:`.finishing` would do with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Bytes
from penstock.gateway.v2.wire.definition_pb2 import Resource
from penstock.gateway.v2.wire.service_pb2 import AckMessageResponse, AckMessageResultEntry
from penstock.proto.receipts import LENGTH_MAX, VERSION, Receipt

from ..kernels.acknowledgements import COMMON, ENTRY_BYTES, find_entries, read_receipts, write_answers
from ..names import resource_in
from ..status import merged, ok

ENTRIES_MAX: Final = 1024
REQUEST_BYTES_MAX: Final = 4 << 20
"""Of one that is read here: more than entries of the longest receipts take."""


class PlainAcknowledgement(NamedTuple):
    """A request whose receipts are of one queue and check point."""

    group: Resource
    topic: Resource
    first: Receipt
    offsets: list[int]
    """Ascending."""
    request: Bytes
    spans: npt.NDArray[np.int64]
    """Where each entry begins and ends in it."""


def read(request: bytes) -> PlainAcknowledgement | None:
    """What an AckMessageRequest acknowledges; None where it has to be looked at closely."""
    if len(request) > REQUEST_BYTES_MAX:
        return None
    content, names = np.frombuffer(request, np.uint8), np.empty(4, np.int64)
    count = find_entries(content, ENTRIES_MAX, names)
    if count <= 0:
        return None
    head, text = np.empty(LENGTH_MAX, np.uint8), np.empty(LENGTH_MAX, np.uint8)
    common = np.empty(COMMON, np.int64)
    offsets, spans = np.empty(count, np.int64), np.empty(2 * count, np.int64)
    size = read_receipts(content, head, text, common, offsets, spans)
    if size < 0:
        return None
    try:
        version, *places = head[:size].tobytes().decode().split(" ")
    except UnicodeDecodeError:
        return None
    group, topic = resource_in(request[names[0] : names[1]]), resource_in(request[names[2] : names[3]])
    if group is None or topic is None or version != VERSION or len(places) != 3:
        return None
    (its_group, its_topic, broker_name), (queue_id, check_point, epoch, visible_ms) = places, common.tolist()
    first = Receipt(its_group, its_topic, broker_name, queue_id, int(offsets[0]), check_point, epoch, visible_ms)
    return PlainAcknowledgement(group, topic, first, offsets.tolist(), content, spans)


def answer(acknowledged: PlainAcknowledgement) -> bytes:
    """The answer where all is in order."""
    whole, each = _beginnings()
    spans = acknowledged.spans
    entries = int((spans[1::2] - spans[::2]).sum())
    out = np.empty(len(whole) + entries + (ENTRY_BYTES + len(each)) * (len(spans) // 2), np.uint8)
    written = write_answers(acknowledged.request, spans, whole, each, out)
    return out[:written].tobytes()


@lru_cache
def _beginnings() -> tuple[Bytes, Bytes]:
    """What an answer begins with, and the status of an entry."""
    made = AckMessageResponse(status=merged([ok()])), AckMessageResultEntry(status=ok())
    return np.frombuffer(made[0].SerializeToString(), np.uint8), np.frombuffer(made[1].SerializeToString(), np.uint8)
