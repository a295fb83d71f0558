"""The CommitLog record: byte layout, and a plain Python reference of its codec.

Everything is big-endian and signed. Offsets are for IPv4 hosts; an IPv6 host adds 12 bytes to all after it.

| # | Field | Offset | Size | Type, meaning |
|---|---|---|---|---|
| 1 | TOTALSIZE | 0 | 4 | i32, whole record, this field included |
| 2 | MAGICCODE | 4 | 4 | V1 0xDAA320A7, V2 0xDAA320AB |
| 3 | BODYCRC | 8 | 4 | CRC-32 (zlib) of the stored body, masked with 0x7FFFFFFF |
| 4 | QUEUEID | 12 | 4 | i32 |
| 5 | FLAG | 16 | 4 | i32, the user's |
| 6 | QUEUEOFFSET | 20 | 8 | i64, index in the consume queue |
| 7 | PHYSICALOFFSET | 28 | 8 | i64, own position in the log |
| 8 | SYSFLAG | 36 | 4 | i32 bits, :class:`SysFlag` |
| 9 | BORNTIMESTAMP | 40 | 8 | i64, the client's clock, ms |
| 10 | BORNHOST | 48 | 8 or 20 | raw IP (4 or 16 bytes) and port as i32 |
| 11 | STORETIMESTAMP | 56 | 8 | i64, the broker's clock, ms |
| 12 | STOREHOST | 64 | 8 or 20 | as BORNHOST |
| 13 | RECONSUMETIMES | 72 | 4 | i32 |
| 14 | PREPAREDTRANSACTIONOFFSET | 76 | 8 | i64 |
| 15 | BODYLENGTH | 84 | 4 | i32 |
| 16 | BODY | 88 | n | compressed as SYSFLAG says |
| 17 | TOPICLENGTH | 88+n | 1 or 2 | V1: signed byte; V2: signed i16 |
| 18 | TOPIC | | t | UTF-8 |
| 19 | PROPERTIESLENGTH | | 2 | signed i16 |
| 20 | PROPERTIES | | p | see :mod:`.properties` |

V1 is written for topics up to 127 bytes, V2 for longer ones; readers meet both in one file. Example (V1, 115
bytes): queue 3, queue offset 7, physical offset 1024, body ``hello``, topic ``TopicTest``, ``TAGS=TagA``::

    00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400 00000000 0000018bcfe56800
    0a000001 0000c350 0000018bcfe5687b 0a000002 00002a9f 00000000 0000000000000000 00000005 68656c6c6f
    09 546f70696354657374 000a 54414753 01 54616741 02

Where a record does not fit a file, a blank fills the rest: i32 bytes left, magic 0xCBD43194, anything.

The kernels in :mod:`.kernels` do the same over arrays; tests compare the two.
Source: RocketMQ ``MessageExtEncoder#encode``, ``MessageDecoder#decode``.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple, NewType

from penstock.proto.errors import Corrupt, InvalidArgument

PhysicalOffset = NewType("PhysicalOffset", int)
QueueOffset = NewType("QueueOffset", int)

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

FIXED_BYTES = 91
"""A V1 record with IPv4 hosts and nothing in it."""
IPV6_EXTRA_BYTES = 12
BLANK_BYTES = 8
"""Every file keeps at least these free for the blank that ends it."""
TOPIC_BYTES_MAX_V1 = 127
TOPIC_BYTES_MAX = 32767
RECORD_BYTES_MAX = (1 << 31) - 1
BODY_BYTES_MAX = 4 << 20
"""The largest body that producers send and brokers take by default (``maxMessageSize``)."""
CRC_MASK = 0x7FFFFFFF

HEAD = struct.Struct(">iiiiiqqiq")
TAIL = struct.Struct(">iqi")
assert HEAD.size == 48
assert TAIL.size == 16
assert HEAD.size + 8 + 8 + 8 + TAIL.size + 1 + 2 == FIXED_BYTES

RECORD_CRC_BYTES = 20
RECORD_CRC_PREFIX = b"__CRC32#\x01"


class SysFlag:
    """Bits of SYSFLAG. TRANSACTION is a field of two bits: compare ``sys_flag & TRANSACTION_MASK``."""

    COMPRESSED = 1
    MULTI_TAGS = 2
    TRANSACTION_MASK = 12
    TRANSACTION_NONE = 0
    TRANSACTION_PREPARED = 4
    TRANSACTION_COMMIT = 8
    TRANSACTION_ROLLBACK = 12
    BORN_HOST_V6 = 16
    STORE_HOST_V6 = 32
    NEED_UNWRAP = 64
    INNER_BATCH = 128
    COMPRESSION_MASK = 7 << 8
    COMPRESSION_LZ4 = 1 << 8
    COMPRESSION_ZSTD = 2 << 8
    COMPRESSION_ZLIB = 3 << 8

    KNOWN = (1 << 11) - 1


@functools.lru_cache(maxsize=4096)
def _text_of(ip: bytes, port: int) -> str:
    """Looked up for each record that is read; there are few addresses, and an address is slow to write."""
    address = ipaddress.ip_address(ip)
    return f"[{address}]:{port}" if len(ip) == 16 else f"{address}:{port}"


class Host(NamedTuple):
    """An address as records hold it: the raw IP (4 or 16 bytes) and a port."""

    ip: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Host:
        """The host of ``1.2.3.4:5``, ``[::1]:5`` or ``::1:5``; names are not resolved.

        Raises:
            InvalidArgument: no IP address, or no port.
        """
        address, _, port = text.rpartition(":")
        try:
            return cls(ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed, int(port))
        except ValueError as error:
            raise InvalidArgument(f"host {text!r}: give an IP address and a port, as 10.0.0.1:10911") from error

    def encode(self) -> bytes:
        """The 8 or 20 bytes that a record holds."""
        return self.ip + struct.pack(">i", self.port)

    @classmethod
    def decode(cls, encoded: bytes | bytearray | memoryview) -> Host:
        ip = bytes(encoded[:-4])
        return cls(ip, struct.unpack(">i", encoded[-4:])[0])

    @property
    def is_ipv6(self) -> bool:
        return len(self.ip) == 16

    def __str__(self) -> str:
        return _text_of(self.ip, self.port)


NO_HOST = Host(b"\0\0\0\0", 0)
_UNSET = -(1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, every field of the layout by name.

    Left out, ``body_crc`` is computed and ``version`` chosen by the topic's length. The two IPv6 bits of
    ``sys_flag`` always follow the hosts.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offset: PhysicalOffset = PhysicalOffset(0)
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    store_timestamp_ms: int = 0
    store_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = _UNSET
    version: int = 0

    def __post_init__(self) -> None:
        sys_flag = self.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        sys_flag |= SysFlag.BORN_HOST_V6 if self.born_host.is_ipv6 else 0
        sys_flag |= SysFlag.STORE_HOST_V6 if self.store_host.is_ipv6 else 0
        object.__setattr__(self, "sys_flag", sys_flag)
        if self.body_crc == _UNSET:
            object.__setattr__(self, "body_crc", zlib.crc32(self.body) & CRC_MASK)
        if not self.version:
            object.__setattr__(self, "version", 1 if len(self.topic.encode()) <= TOPIC_BYTES_MAX_V1 else 2)


def record_bytes(body: int, topic: int, properties: int, *, born_v6: bool = False, store_v6: bool = False) -> int:
    """Size of the record whose parts have these sizes, in the version that the topic's size demands."""
    extra = (1 if topic > TOPIC_BYTES_MAX_V1 else 0) + IPV6_EXTRA_BYTES * (int(born_v6) + int(store_v6))
    return FIXED_BYTES + extra + body + topic + properties


def encode_record(record: Record) -> bytes:
    """The bytes of ``record``. Raises InvalidArgument: a part is longer than its length field can say."""
    topic = record.topic.encode()
    if record.version not in (1, 2) or len(topic) > (TOPIC_BYTES_MAX_V1 if record.version == 1 else TOPIC_BYTES_MAX):
        raise InvalidArgument(f"topic of {len(topic)} bytes does not fit a record of version {record.version}")
    if len(record.properties) > 32767:
        raise InvalidArgument(f"properties take {len(record.properties)} bytes: at most 32767 are allowed")
    magic = MAGIC_V1 if record.version == 1 else MAGIC_V2
    topic_length = struct.pack(">b" if record.version == 1 else ">h", len(topic))
    tail = TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body))
    rest = b"".join(
        (
            record.born_host.encode(),
            struct.pack(">q", record.store_timestamp_ms),
            record.store_host.encode(),
            tail,
            record.body,
            topic_length,
            topic,
            struct.pack(">h", len(record.properties)),
            record.properties,
        )
    )
    head = HEAD.pack(
        HEAD.size + len(rest),
        magic,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp_ms,
    )
    return head + rest


def decode_record(buffer: bytes | bytearray | memoryview, position: int = 0, *, check_crc: bool = False) -> Record:
    """The record that begins at ``position`` of ``buffer``; the buffer may go on behind it.

    Raises:
        Corrupt: the bytes are no whole record, lengths disagree, or (``check_crc``) the body is not what was
            written.
    """
    view = memoryview(buffer)
    try:
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = HEAD.unpack_from(
            view, position
        )
        end = position + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_BYTES or end > len(view):
            raise Corrupt(f"position {position}: no record (size {size}, magic {magic & 0xFFFFFFFF:#x})")
        at = position + HEAD.size
        born_end = at + (20 if sys_flag & SysFlag.BORN_HOST_V6 else 8)
        store_end = born_end + 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
        (store_timestamp_ms,) = struct.unpack_from(">q", view, born_end)
        reconsume_times, prepared_offset, body_size = TAIL.unpack_from(view, store_end)
        body_end = _checked_end(position, store_end + TAIL.size, body_size, end)
        length = struct.Struct(">b" if magic == MAGIC_V1 else ">h")
        (topic_size,) = length.unpack_from(view, body_end)
        topic_end = _checked_end(position, body_end + length.size, topic_size, end)
        (properties_size,) = struct.unpack_from(">h", view, topic_end)
        if _checked_end(position, topic_end + 2, properties_size, end) != end:
            raise Corrupt(f"position {position}: record says {size} bytes, its parts take another size")
    except struct.error as error:
        raise Corrupt(f"position {position}: the bytes end inside a record") from error
    body = bytes(view[store_end + TAIL.size : body_end])
    if check_crc and zlib.crc32(body) & CRC_MASK != body_crc:
        raise Corrupt(f"position {position}: body does not match its checksum {body_crc:#010x}")
    return Record(
        topic=str(view[body_end + length.size : topic_end], "utf-8", "replace"),
        body=body,
        properties=bytes(view[topic_end + 2 : end]),
        queue_id=queue_id,
        flag=flag,
        queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(physical_offset),
        sys_flag=sys_flag,
        born_timestamp_ms=born,
        born_host=Host.decode(view[at:born_end]),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host.decode(view[born_end + 8 : store_end]),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=body_crc,
        version=1 if magic == MAGIC_V1 else 2,
    )


def body_of(record: memoryview) -> memoryview:
    """The body of a sound record, not copied."""
    *_, sys_flag, _ = HEAD.unpack_from(record)
    born_host = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    at = HEAD.size + born_host + 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    _, _, size = TAIL.unpack_from(record, at)
    return record[at + TAIL.size : at + TAIL.size + size]


def _checked_end(record: int, start: int, size: int, end: int) -> int:
    if size < 0 or start + size > end:
        raise Corrupt(f"position {record}: a part of {size} bytes does not fit the record")
    return start + size


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """RocketMQ's server-side id, upper-case hex of store host and physical offset: enough to find the message."""
    return f"{_digits_of(store_host)}{physical_offset & 0xFFFF_FFFF_FFFF_FFFF:016X}"


@functools.lru_cache(maxsize=1024)
def _digits_of(host: Host) -> str:
    """There are few hosts, and an id for each message."""
    return host.encode().hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Store host and physical offset of an id that :func:`offset_message_id` made.

    Raises:
        InvalidArgument: not 32 (IPv4) or 56 (IPv6) hexadecimal digits.
    """
    try:
        raw = bytes.fromhex(text)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) not in (16, 28) or len(text) != 2 * len(raw):
        raise InvalidArgument(f"message id {text!r}: expected 32 or 56 hexadecimal digits")
    return Host.decode(raw[:-8]), PhysicalOffset(int.from_bytes(raw[-8:], "big", signed=True))
