"""Single records that differ in body and birth only, made without the kernels: what a broker writes itself."""

from __future__ import annotations

import struct
import time
import zlib

from .layout import CRC_MASK, HEAD, Host, Record, encode_record

_LENGTH = struct.Struct(">i")


class RecordForm:
    """Such records; the layout is that of :mod:`.layout`."""

    def __init__(self, topic: str, properties: bytes, host: Host) -> None:
        """``host``: where they are born, and of the family of addresses that the broker stores."""
        store_host = Host(bytes(len(host.ip)), 0)
        empty = encode_record(
            Record(topic=topic, body=b"", properties=properties, born_host=host, store_host=store_host)
        )
        self._size = len(empty)
        _, self._magic, *_, self._sys_flag, _ = HEAD.unpack_from(empty)
        middle = HEAD.size + 2 * len(host.encode()) + 8 + 12  # ends in front of the body's length
        self._middle, self._end = empty[HEAD.size : middle], empty[middle + _LENGTH.size :]

    def encode(self, body: bytes) -> bytes:
        """A record of queue 0 that is born now."""
        born_ms = time.time_ns() // 1_000_000
        crc = zlib.crc32(body) & CRC_MASK
        head = HEAD.pack(self._size + len(body), self._magic, crc, 0, 0, 0, 0, self._sys_flag, born_ms)
        return b"".join((head, self._middle, _LENGTH.pack(len(body)), body, self._end))
