"""Recall handles: by which a message is taken back before its time.

URL-safe base64 without padding of ``v1 TOPIC BROKER TIME KEY``, one space between: the topic, the broker group that has
the message, when it is due in ms since 1970 UTC, plus 1, and its UNIQ_KEY.
Source: RocketMQ ``RecallMessageHandle``.

>>> RecallHandle("T", "broker-a", 1700000000000, "0A000001000018B4AAC2000000000000").encode()
'djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIDBBMDAwMDAxMDAwMDE4QjRBQUMyMDAwMDAwMDAwMDAw'
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from penstock.proto.errors import InvalidArgument

VERSION: Final = "v1"
LENGTH_MAX: Final = 2048


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{VERSION} {self.topic} {self.broker_name} {self.due_ms + 1} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, handle: object) -> RecallHandle:
        """What ``handle`` says, with or without padding. Raises InvalidArgument: it is no handle."""
        if isinstance(handle, str) and 0 < len(handle) <= LENGTH_MAX and handle.isascii():
            bare = handle.rstrip("=")
            try:
                text = base64.b64decode(bare + "=" * (-len(bare) % 4), b"-_", validate=True).decode()
            except (binascii.Error, ValueError):
                text = ""
            version, *fields = text.split(" ")
            if version == VERSION and len(fields) == 4 and all(fields):
                topic, broker_name, due, unique_key = fields
                if due.isascii() and due.isdecimal() and len(due) <= 18:
                    return cls(topic, broker_name, int(due) - 1, unique_key)
        raise InvalidArgument(
            f"recall handle {handle!r:.80}: is none: give the recall_handle of a receipt of a message for later"
        )
