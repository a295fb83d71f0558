"""SendMessage with messages that have nothing unusual about them: from requests' bytes to the answers'.

No object is made of a message. What a request asks and gets is what :mod:`.sending` would do with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Bytes, Column
from penstock.gateway.v2.wire.definition_pb2 import Code, Status
from penstock.gateway.v2.wire.service_pb2 import SendMessageResponse, SendResultEntry

from ..kernels.answers import ENTRY_BYTES, write_answers
from ..kernels.requests import HOST_BYTES_MAX, OWN_BYTES, count_messages, read_messages
from ..status import merged

REQUEST_BYTES_MAX: Final = 512 * 1024
"""Of one that is read here: what a batch takes."""
MESSAGES_MAX: Final = 1024


class PlainSend(NamedTuple):
    """A request's messages, as they are to be stored."""

    bodies: Column
    properties: Column
    request: Bytes
    spans: npt.NDArray[np.int64]
    """Where the topic, and each message's id, begin and end in it."""

    @property
    def message_ids(self) -> list[str]:
        content, spans = self.request.tobytes(), self.spans[2:].tolist()
        return [content[start:end].decode() for start, end in zip(spans[::2], spans[1::2], strict=True)]


def survey(request: bytes) -> tuple[int, bytes]:
    """How many messages a SendMessageRequest has, and the first one's topic, a Resource; (-1, b""): another look."""
    if len(request) > REQUEST_BYTES_MAX:
        return -1, b""
    count, start, end = count_messages(np.frombuffer(request, np.uint8))
    return (count, request[start:end]) if 0 < count <= MESSAGES_MAX else (-1, b"")


def read(request: bytes, count: int, host: str) -> PlainSend | int:
    """The ``count`` messages of requests laid end to end; or which is the first that has to be looked at closely.

    ``count``: as :func:`survey` tells it of each. ``host``: where messages were born that do not say it; "": all do.
    """
    size = len(request)
    content, born_host = np.frombuffer(request, np.uint8), _encoded(host)
    if born_host is None:
        return 0
    bodies, body_ends = np.empty(size, np.uint8), np.empty(count, np.int64)
    properties = np.empty(size + count * (OWN_BYTES + len(born_host)), np.uint8)
    property_ends, spans = np.empty(count, np.int64), np.empty(2 * count + 2, np.int64)
    read_count: int = read_messages(content, born_host, bodies, body_ends, properties, property_ends, spans)
    if read_count < count:
        return read_count
    return PlainSend(
        Column(bodies[: body_ends[-1]], body_ends),
        Column(properties[: property_ends[-1]], property_ends),
        content,
        spans,
    )


def answers(sent: PlainSend, counts: Sequence[int], offset: int, status: Status) -> list[bytes]:
    """The answers to who sent so many each; all are stored in one queue from ``offset`` on, with that status."""
    whole, each = _beginnings(status.code, status.message)
    ids = int((sent.spans[3::2] - sent.spans[2::2]).sum())
    out = np.empty(len(whole) * len(counts) + (len(each) + ENTRY_BYTES) * len(sent.bodies) + 2 * ids, np.uint8)
    ends = np.array(counts, np.int64)
    write_answers(sent.request, sent.spans, offset, whole, each, ends, out)
    told = out.tobytes()
    return [told[start:stop] for start, stop in itertools.pairwise([0, *ends.tolist()])]


@lru_cache(maxsize=4096)
def _encoded(host: str) -> Bytes | None:
    """A host as kernels take it; None: of one whose name is not as plain."""
    is_plain = host.isascii() and host.isprintable() and " " not in host and len(host) <= HOST_BYTES_MAX
    return np.frombuffer(host.encode(), np.uint8) if is_plain else None


@lru_cache
def _beginnings(code: Code, text: str) -> tuple[Bytes, Bytes]:
    """What an answer, and an entry of it, begin with."""
    status = Status(code=code, message=text)
    made = SendMessageResponse(status=merged([status])), SendResultEntry(status=status)
    return np.frombuffer(made[0].SerializeToString(), np.uint8), np.frombuffer(made[1].SerializeToString(), np.uint8)
