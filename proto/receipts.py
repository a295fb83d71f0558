"""Receipts of messages that were received for a time, as text: opaque to whoever has one.

URL-safe base64 without padding of ``v1 GROUP TOPIC BROKER QUEUE OFFSET POINT EPOCH VISIBLE CRC``, one space between:
the topic that the record lies in, the broker group that gave it out, its place, the check point and the epoch of the
master (``proto/wire/pop.proto``), when the message is visible again in ms since 1970 UTC, and the CRC-32 of all before
its space. The checksum finds what was cut or mixed up; what a receipt says counts only where the broker knows it too.

>>> Receipt("workers", "orders", "broker-a", 0, 7, 3, 1, 1700000000000).text()
'djEgd29ya2VycyBvcmRlcnMgYnJva2VyLWEgMCA3IDMgMSAxNzAwMDAwMDAwMDAwIDE4ODE2NDE0ODU'
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final, NamedTuple

from .errors import InvalidReceipt

VERSION: Final = "v1"
LENGTH_MAX: Final = 2048
_NUMBER_DIGITS_MAX: Final = 19
_NUMBERS: Final = 5


class Receipt(NamedTuple):
    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    check_point: int
    epoch: int
    visible_ms: int

    def text(self) -> str:
        group, topic, broker_name, queue_id, offset, check_point, epoch, visible_ms = self
        said = f"{VERSION} {group} {topic} {broker_name} {queue_id} {offset} {check_point} {epoch} {visible_ms}"
        text = f"{said} {zlib.crc32(said.encode())}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: object) -> Receipt:
        """What ``text`` says. Raises InvalidReceipt: it is no receipt."""
        if isinstance(text, str) and 0 < len(text) <= LENGTH_MAX and text.isascii():
            try:
                padded = text + "=" * (-len(text) % 4)
                said, _, checksum = base64.b64decode(padded, b"-_", validate=True).decode().rpartition(" ")
            except (binascii.Error, ValueError):
                said, checksum = "", ""
            version, *fields = said.split(" ")
            numbers = fields[-_NUMBERS:]
            is_whole = checksum == str(zlib.crc32(said.encode())) and len(fields) == len(cls._fields)
            if version == VERSION and is_whole and _are_numbers(numbers):
                group, topic, broker_name = fields[:-_NUMBERS]
                return cls(group, topic, broker_name, *map(int, numbers))
        raise InvalidReceipt(refusal(text))


def refusal(value: object) -> str:
    """Why ``value`` is taken for no receipt."""
    return f"receipt {value!r:.80}: is none: give that of a message that was received"


def _are_numbers(texts: list[str]) -> bool:
    digits = "".join(texts)
    is_decimal = digits.isascii() and digits.isdecimal()
    return is_decimal and all(texts) and max(map(len, texts)) <= _NUMBER_DIGITS_MAX
