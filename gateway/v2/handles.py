"""Receipt handles: by which a client names one delivery of a message.

URL-safe base64 without padding of a CRC-32 (4 bytes, big-endian, of what follows) and, in UTF-8 with one line feed
between: broker group, group, topic of the record, queue id, offset, check point, epoch, time at which it is visible
again. Brokers judge what it names; the checksum is against handles that were cut or mixed up.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.wire.pop_pb2 import Receipts

from .status import Refusal

LENGTH_MAX: Final = 2048
_FIELDS: Final = 8
_DIGITS_MAX: Final = 19
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Handle(NamedTuple):
    """What a handle says."""

    broker_name: str
    group: str
    topic: str
    queue_id: int
    offset: int
    check_point: int
    epoch: int
    visible_ms: int

    def encode(self) -> str:
        """The handle as clients have it."""
        content = "\n".join(map(str, self)).encode()
        return base64.urlsafe_b64encode(zlib.crc32(content).to_bytes(4, "big") + content).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, group: str) -> Self:
        """What ``text`` says of a delivery to ``group``.

        Raises:
            Refusal: INVALID_RECEIPT_HANDLE, it is none, or another group's.
        """
        if 0 < len(text) <= LENGTH_MAX and text.isascii():
            try:
                raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
                fields = raw[4:].decode().split("\n")
            except (binascii.Error, ValueError):
                fields = []
                raw = b""
            is_whole = len(fields) == _FIELDS and raw[:4] == zlib.crc32(raw[4:]).to_bytes(4, "big")
            if is_whole and all(each.isdecimal() and len(each) <= _DIGITS_MAX for each in fields[3:]):
                numbers = [int(each) for each in fields[3:]]
                made = cls(fields[0], fields[1], fields[2], *numbers)
                if made.group == group and numbers[0] <= _INT32_MAX and max(numbers) <= _INT64_MAX:
                    return made
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, f"INVALID_RECEIPT_HANDLE: {text[:64]!r} is no handle of {group}")


def receipts_of(handles: Iterable[Handle]) -> list[Receipts]:
    """Handles of one broker group and consumer group as brokers take them, one for each, in their order."""
    return [
        Receipts(
            topic=each.topic,
            queue_id=each.queue_id,
            check_point=each.check_point,
            epoch=each.epoch,
            visible_ms=each.visible_ms,
            offsets=[each.offset],
        )
        for each in handles
    ]
