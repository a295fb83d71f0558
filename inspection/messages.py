"""Single records of a log, found by position, and messages as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.formats.hashing import index_key_hash
from penstock.formats.record.compression import body_fields, decompress
from penstock.formats.record.layout import MAGIC_V1, MAGIC_V2, Record, SysFlag, decode_record, offset_message_id
from penstock.formats.record.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, decode_properties
from penstock.proto.errors import Corrupt, PenstockError

from .directory import StoreDirectory
from .files import InputFile

HEAD_BYTES = 8


class StoredRecord(NamedTuple):
    """A record, and how many bytes it takes."""

    record: Record
    size: int

    @property
    def properties(self) -> dict[str, str]:
        """The message's properties."""
        return decode_properties(self.record.properties)

    def index_keys(self) -> list[str]:
        """What the index has it under: its unique key, then its keys. None for a rolled-back transaction."""
        if self.record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
            return []
        properties = self.properties
        found = [properties[UNIQ_KEY]] if UNIQ_KEY in properties else []
        return found + [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]

    def key_hashes(self) -> list[int]:
        """The hashes of :meth:`index_keys` in index files."""
        return [index_key_hash(self.record.topic, key) for key in self.index_keys()]


class RecordReader:
    """Reads single records; keeps the last file open. To be closed."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._file: InputFile | None = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def find(self, physical: int) -> StoredRecord | None:
        """The record at a log position; None if no sound one lies there.

        Raises Unreadable: the log file cannot be read.
        """
        segment = self._store.segment_at(physical)
        if segment is None:
            return None
        if self._file is None or self._file.path != segment.path:
            self.close()
            self._file = InputFile(segment.path)
        position = physical - segment.start
        head = self._file.read(position, HEAD_BYTES).ljust(HEAD_BYTES, b"\0")
        size, magic = (int.from_bytes(head[at : at + 4], "big", signed=True) for at in (0, 4))
        if magic not in (MAGIC_V1, MAGIC_V2) or not 0 < size <= self._store.segment_bytes - position:
            return None
        try:
            record = decode_record(self._file.read(position, size), check_crc=True)
        except Corrupt:
            return None
        return StoredRecord(record, size) if record.physical_offset == physical else None


def message_document(stored: StoredRecord) -> dict[str, Any]:
    """The message as one JSON object; the body as it was sent, as text where it is UTF-8, else as ``body_base64``.

    ``broker_name`` is None: a store does not say whose it is. A body that cannot be decompressed is given as stored.
    """
    record, properties = stored.record, stored.properties
    message_id = offset_message_id(record.store_host, record.physical_offset)
    document: dict[str, Any] = {
        "topic": record.topic,
        "broker_name": None,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": stored.size,
        "message_id": properties.get(UNIQ_KEY, message_id),
        "offset_message_id": message_id,
        "tag": properties.get(TAGS),
        "keys": [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key],
        "properties": properties,
        "born_timestamp_ms": record.born_timestamp_ms,
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "body_crc": record.body_crc,
    }
    try:
        body = decompress(record.body, record.sys_flag)
    except PenstockError:
        body = record.body
    return document | body_fields(body)
