"""Records that are made one at a time, without the kernels: for one message, to call a kernel is what costs."""

from __future__ import annotations

import struct
import time
import zlib

from penstock.proto.errors import MessageTooLarge

from .layout import CRC_MASK, HEAD, Host, Record, encode_record
from .properties import PROPERTIES_BYTES_MAX

_LENGTH = struct.Struct(">i")
_PROPERTIES_LENGTH = struct.Struct(">h")


class RecordForm:
    """Such records of one topic and birthplace; the layout is that of :mod:`.layout`."""

    def __init__(self, topic: str, host: Host, sys_flag: int = 0, *, is_store_v6: bool) -> None:
        """``host``: where they are born. ``is_store_v6``: True if the address of who stores them takes 16 bytes."""
        store_host = Host(bytes(16 if is_store_v6 else 4), 0)
        empty = encode_record(Record(topic=topic, body=b"", sys_flag=sys_flag, born_host=host, store_host=store_host))
        self._size = len(empty)
        _, self._magic, *_, self._sys_flag, _ = HEAD.unpack_from(empty)
        middle = HEAD.size + len(host.encode()) + 8 + len(store_host.encode()) + 12  # ends before the body's length
        self._middle, self._topic = empty[HEAD.size : middle], empty[middle + _LENGTH.size : -_PROPERTIES_LENGTH.size]

    @classmethod
    def own(cls, topic: str, address: str) -> RecordForm:
        """Of records that the server at ``address`` makes and stores itself."""
        host = Host.parse(address)
        return cls(topic, host, is_store_v6=host.is_ipv6)

    def encode(
        self, body: bytes | memoryview, properties: bytes, queue_id: int = 0, *, body_crc: int | None = None
    ) -> bytes:
        """A record that is born now. ``body_crc``: the body's CRC-32, if a kernel has told it.

        Raises MessageTooLarge: the properties are longer than their length can say.
        """
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise MessageTooLarge(
                f"the message cannot be laid out: its properties take {len(properties)} bytes, at most "
                f"{PROPERTIES_BYTES_MAX} are allowed",
                index=0,
            )
        born_ms = time.time_ns() // 1_000_000
        crc = (zlib.crc32(body) if body_crc is None else body_crc) & CRC_MASK
        size = self._size + len(body) + len(properties)
        return b"".join(
            (
                HEAD.pack(size, self._magic, crc, queue_id, 0, 0, 0, self._sys_flag, born_ms),
                self._middle,
                _LENGTH.pack(len(body)),
                body,
                self._topic,
                _PROPERTIES_LENGTH.pack(len(properties)),
                properties,
            )
        )
