"""Records as their receivers are given them: answers end to end, and the receipts of what they deliver.

Of plain records no object is made; the others are made one by one (:func:`..messages.deliver`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.client import MessageView
from penstock.formats.columns import Bytes, Column
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.http2.frames import MESSAGE_HEAD
from penstock.gateway.v2.wire.definition_pb2 import Message, Resource, SystemProperties
from penstock.gateway.v2.wire.service_pb2 import ReceiveMessageResponse
from penstock.proto.errors import Corrupt
from penstock.proto.names import DLQ_PREFIX
from penstock.proto.receipts import VERSION, Receipt

from ..kernels.deliveries import OTHER_TAG, OWN_BYTES, RECEIPT_BYTES, UNUSUAL, scratch_bytes, write_deliveries
from ..messages import deliver, duration

AT_ONCE_BYTES: Final = 256 * 1024
"""Of records that answers are made of while everything else waits; one at least."""


class Given(NamedTuple):
    """Some answers of a stream, end to end with their heads, and what they deliver."""

    content: bytes
    receipts: list[Receipt]


class Giving:
    """Makes the answers to one receive."""

    def __init__(self, topic: Resource, namespace: str, tags: Collection[str], invisible_ms: int) -> None:
        """``topic``: as the receiver names it, who is in ``namespace``. ``tags``: one of which a message is to have."""
        self._topic = topic
        self._namespace = namespace
        self._tags = tags
        self._invisible_ms = invisible_ms
        self._topic_field = _bytes(Message(topic=topic).SerializeToString())
        hidden = SystemProperties(invisible_duration=duration(invisible_ms)) if invisible_ms else SystemProperties()
        self._invisible_field = _bytes(hidden.SerializeToString())
        self._tag_column = Column.of([tag.encode() for tag in tags])

    def given(
        self, batch: RecordBatch, first: Receipt, again: Sequence[int], unwanted: list[Receipt]
    ) -> Iterator[Given]:
        """The records of one queue, in their order, some at a time; ``unwanted`` gets those that have none of the tags.

        ``first``: the receipt of one of them, which says all but the offset. ``again``: how often each was given out
        in its place before; none: never.

        Raises:
            Corrupt: ``again`` is not of these records.
        """
        if again and len(again) != len(batch):
            raise Corrupt(f"broker {first.broker_name}: {len(again)} counts of deliveries for {len(batch)} records")
        receipts = [first._replace(offset=offset) for offset in batch.rows["queue_offset"].tolist()]
        ends = np.cumsum(batch.rows["size"], dtype=np.int64)
        start = 0
        while start < len(batch):
            begin = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, begin + AT_ONCE_BYTES, "right")))
            yield self._chunk(batch, receipts, range(start, stop), again, unwanted)
            start = stop

    def _chunk(
        self, batch: RecordBatch, receipts: list[Receipt], chosen: range, again: Sequence[int], unwanted: list[Receipt]
    ) -> Given:
        out, ends, kinds = self._written(batch, receipts[chosen.start], chosen, again)
        parts: list[bytes] = []
        taken: list[Receipt] = []
        begin = end = 0  # of what is written, and is no part yet
        for index, kind, written_end in zip(chosen, kinds, ends, strict=True):
            if kind == OTHER_TAG:
                unwanted.append(receipts[index])
                continue
            if kind == UNUSUAL:
                answer = self._one(batch, index, receipts[index], again[index] if again else 0)
                if answer is None:
                    unwanted.append(receipts[index])
                    continue
                parts += (out[begin:end], answer)
                begin = end
            else:
                end = written_end
            taken.append(receipts[index])
        parts.append(out[begin:end])
        return Given(b"".join(parts), taken)

    def _written(
        self, batch: RecordBatch, first: Receipt, chosen: range, again: Sequence[int]
    ) -> tuple[bytes, list[int], list[int]]:
        """The answers of the plain ones of the chosen records, where each ends, and what became of it."""
        count, rows = len(chosen), batch.rows[chosen.start : chosen.stop]
        if self._topic.name.startswith(DLQ_PREFIX):
            return b"", [0] * count, [UNUSUAL] * count
        repeated = np.array(again[chosen.start : chosen.stop], np.int64) if again else np.zeros(count, np.int64)
        group, topic, broker_name, queue_id, _, *given = first
        head = _bytes(f"{VERSION} {group} {topic} {broker_name} {queue_id} ".encode())
        tail = _bytes("".join(f" {number}" for number in given).encode())
        own = len(self._topic_field) + len(self._invisible_field) + 2 * (len(head) + len(tail))
        sizes = int(rows["body_size"].sum(dtype=np.int64)) + 4 * int(rows["properties_size"].sum(dtype=np.int64))
        longest = int(rows["properties_size"].max())
        scratch = np.empty(scratch_bytes(longest, len(head) + len(tail), len(self._invisible_field)), np.uint8)
        out = np.empty(sizes + count * (own + OWN_BYTES + RECEIPT_BYTES), np.uint8)
        ends, kinds = np.empty(count, np.int64), np.empty(count, np.int64)
        is_whole = write_deliveries(
            np.frombuffer(batch.buffer, np.uint8),
            rows,
            repeated,
            self._topic_field,
            self._invisible_field,
            head,
            tail,
            self._tag_column.data,
            self._tag_column.ends,
            scratch,
            out,
            ends,
            kinds,
        )
        if not is_whole:  # or what was in that memory before would be sent
            raise AssertionError("what rows name is in their batch")
        return out[: ends[-1]].tobytes(), ends.tolist(), kinds.tolist()

    def _one(self, batch: RecordBatch, index: int, receipt: Receipt, again: int) -> bytes | None:
        """The answer of one record; None: it has none of the tags."""
        view = MessageView(batch, index, receipt.broker_name)
        if self._tags and view.tag not in self._tags:
            return None
        # What a dead letter says of tries are those of the group that gave it up.
        tried = 0 if receipt.topic.startswith(DLQ_PREFIX) else view.reconsume_times
        answer = ReceiveMessageResponse()
        deliver(
            answer.message,
            view,
            self._topic,
            self._namespace,
            attempt=tried + 1 + again,
            receipt_handle=receipt.text(),
            invisible_ms=self._invisible_ms,
        )
        content = answer.SerializeToString()
        return MESSAGE_HEAD.pack(0, len(content)) + content


def _bytes(content: bytes) -> Bytes:
    return np.frombuffer(content, np.uint8)
