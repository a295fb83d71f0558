"""Batches of records, by the kernel that lays out those of producers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column
from penstock.formats.record.framing import NOWHERE, host_bytes, topic_bytes
from penstock.formats.record.kernels import encode_batch, encoded_bytes
from penstock.formats.record.layout import TOPIC_BYTES_MAX, Host, SysFlag
from penstock.formats.record.producer_mark import MARK_PREFIX
from penstock.proto.errors import InvalidArgument, MessageTooLarge
from penstock.proto.frames import new_bytes


def encode_messages(
    topic: str,
    bodies: Sequence[bytes] | Column,
    properties: Sequence[bytes] | None = None,
    queue_ids: npt.NDArray[np.int32] | int = 0,
    *,
    born_host: Host,
    store_v6: bool = False,
    mark: bytes | None = None,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int | None = None,
) -> bytes:
    """One record per body.

    ``properties`` are encoded property strings, one per body. ``mark`` (see :func:`producer_mark`) becomes the
    first property of the first record. ``sys_flag`` and ``flag`` are those of every record. ``store_v6``: the broker
    stores IPv6 addresses, so that the records keep room for one.

    Raises:
        MessageTooLarge: a property string above 32767 bytes; ``details['index']`` names the record.
    """
    count, name, host = len(bodies), topic_bytes(topic), host_bytes(born_host)
    if len(name) > TOPIC_BYTES_MAX:
        raise InvalidArgument(f"topic of {len(name)} bytes: at most {TOPIC_BYTES_MAX} fit a record")
    texts = [b""] * count if properties is None else list(properties)
    if len(texts) != count:
        raise InvalidArgument(f"{len(texts)} property strings for {count} bodies")
    if mark is not None and count:
        texts[0] = MARK_PREFIX + mark + b"\x02" + texts[0]
    body, text = bodies if isinstance(bodies, Column) else Column.of(bodies), Column.of(texts)
    flags = sys_flag & ~SysFlag.STORE_HOST_V6 | (SysFlag.STORE_HOST_V6 if store_v6 else 0)
    records, room = new_bytes(encoded_bytes(count, len(body.data), len(text.data), len(name), flags, len(host)))
    out = np.frombuffer(room, np.uint8)
    queues = np.full(count, queue_ids, np.int32) if isinstance(queue_ids, int) else queue_ids
    born = time.time_ns() // 1_000_000 if born_timestamp_ms is None else born_timestamp_ms
    written = encode_batch(
        out, body.data, NOWHERE, body.ends, text.data, text.ends, name, queues, flags, flag, born, host
    )
    if written < 0:
        index = -1 - written
        raise MessageTooLarge(
            f"message {index} of the batch cannot be laid out: its properties take {len(texts[index])} bytes, at most "
            "32767 are allowed",
            index=index,
        )
    assert written == len(out), "encoded_bytes and encode_batch disagree"
    return records
