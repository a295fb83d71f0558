"""The duplicate table of idempotent producers: what each lane appended last, and where.

A producer numbers the batches of each lane (one ordered stream to one topic). When an answer gets lost it
sends the same number again and gets the first receipt instead of a second copy. The table is derived: each
batch carries its number as a mark in the log, so a replica, or a start, rebuilds it from there; the snapshot
only makes the start short. Before log files go, what they alone tell of it is put into a state record, tag
``SEQUENCES``, body ``{"rows": [row, …]}`` with rows as in the snapshot, each of
one receipt.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.formats.record.layout import MAGIC_V1, MAGIC_V2
from penstock.formats.record.producer_mark import MARK_PREFIX, ProducerMark, parse_producer_mark
from penstock.proto.errors import CorruptBatch, InvalidArgument, StaleProducer

from .table import StateRecord, Table

if TYPE_CHECKING:
    from ...store.results import MarkedBatch

log = logging.getLogger(__name__)

SEQUENCES: Final = "SEQUENCES"
_NUMBERS_PER_RECORD: Final = 16_384
_ROWS_PER_PIECE: Final = 200

LANES_MAX = 100_000
IDLE_MS_MAX = 7 * 24 * 3600 * 1000  # an answer that nobody asked for in a week is nobody's
RECEIPTS_MAX = 4  # per lane: a client has one batch in flight; more covers answers that overtook each other


class Receipt(NamedTuple):
    """Where a batch went: the answer to its append, and to each repetition."""

    sequence: int
    start: int
    end: int
    store_timestamp_ms: int
    queue_ids: list[int]
    queue_offsets: list[int]
    digest: int = 0
    """What the producer says that its lane holds up to here; 0: nothing."""


@dataclass(slots=True)
class Lane:
    """What is remembered of one lane; ``receipts`` oldest first, never empty.

    ``recorded``: where the newest state record about it begins, -1 without one.
    """

    epoch: int
    receipts: list[Receipt]
    recorded: int = -1


Key = tuple[int, str, int]
"""producer id, topic, lane"""


class ProducerTable(Table):
    """Last batches of every lane, least recently used first; event loop only."""

    file_name = "producerSequence.json"
    kinds = frozenset({SEQUENCES})

    def __init__(self, lanes_max: int = LANES_MAX) -> None:
        super().__init__()
        self.duplicates = 0  # batches that were answered from here
        self._lanes: OrderedDict[Key, Lane] = OrderedDict()
        self._epochs: OrderedDict[int, int] = OrderedDict()  # newest epoch of each producer, over all its lanes
        self._lanes_max = lanes_max

    def __len__(self) -> int:
        return len(self._lanes)

    def find_duplicate(self, producer_id: int, epoch: int, topic: str, lane: int, sequence: int) -> Receipt | None:
        """The receipt of that batch if it is stored already, None if it is new.

        Raises:
            StaleProducer: another instance with a newer epoch has taken over the producer id.
            InvalidArgument: the sequence is below the remembered ones of its lane.
        """
        newest = self._epochs.get(producer_id, epoch)
        if epoch < newest:
            raise StaleProducer(
                f"producer {producer_id:016x}: epoch {epoch} is older than {newest}: another instance has taken over",
                epoch=newest,
            )
        held = self._lanes.get((producer_id, topic, lane))
        if held is None or held.epoch < epoch or sequence > held.receipts[-1].sequence:
            return None
        for receipt in reversed(held.receipts):
            if receipt.sequence == sequence:
                self.duplicates += 1
                return receipt
        raise InvalidArgument(
            f"producer {producer_id:016x} lane {lane} topic {topic}: sequence {sequence} is below the last one, "
            f"{held.receipts[-1].sequence}, and its receipt is not remembered: sequences of a lane must grow",
            last_sequence=held.receipts[-1].sequence,
        )

    def last_sequence(self, producer_id: int, topic: str, lane: int) -> int | None:
        """The sequence of the last batch of that lane, None when nothing of it is remembered."""
        held = self._lanes.get((producer_id, topic, lane))
        return held.receipts[-1].sequence if held is not None else None

    def remember(self, producer_id: int, epoch: int, topic: str, lane: int, receipt: Receipt) -> None:
        """Note a batch that is in the log now; what is known already, or older, changes nothing."""
        key = (producer_id, topic, lane)
        self.newest_record = max(self.newest_record, receipt.start)
        held = self._lanes.get(key)
        if held is None:
            self._lanes[key] = Lane(epoch, [receipt])
            if len(self._lanes) > self._lanes_max:
                self._lanes.popitem(last=False)
        elif epoch > held.epoch:
            held.epoch = epoch
            held.receipts = [receipt]
        elif epoch == held.epoch and receipt.sequence > held.receipts[-1].sequence:
            held.receipts.append(receipt)
            if len(held.receipts) > RECEIPTS_MAX:
                del held.receipts[0]
        else:
            return
        self.changes += 1
        self._lanes.move_to_end(key)
        if epoch >= self._epochs.get(producer_id, epoch):
            self._epochs[producer_id] = epoch
            self._epochs.move_to_end(producer_id)
            if len(self._epochs) > self._lanes_max:
                self._epochs.popitem(last=False)

    def restore(self, batch: MarkedBatch) -> None:
        """Note a batch found in the log by dispatch or replay."""
        mark = batch.mark
        held = self._lanes.get((mark.producer_id, batch.topic, mark.lane))
        if held is not None and held.epoch == mark.epoch and held.receipts[-1].sequence >= mark.sequence:
            return  # on the master the append has noted it already
        receipt = Receipt(
            mark.sequence,
            batch.start,
            batch.end,
            batch.store_timestamp_ms,
            batch.queue_ids,
            batch.queue_offsets,
            mark.digest,
        )
        self.remember(mark.producer_id, mark.epoch, batch.topic, mark.lane, receipt)

    def note(self, position: int) -> None:
        """Nothing: what a record tells of batches before it stays true when the record is cut off with the log's end;
        :meth:`remember` notes the batches themselves.
        """

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        rows = document["rows"]
        self._take(rows, position)
        for producer_id, topic, lane, *_ in rows:
            held = self._lanes.get((int(producer_id, 16), topic, lane))
            if held is not None:
                held.recorded = max(held.recorded, position)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        """The newest batch of every lane of which nothing stands in the log from ``position`` on."""
        older = [
            (key, held) for key, held in self._lanes.items() if max(held.receipts[-1].start, held.recorded) < position
        ]
        rows: list[list[Any]] = []
        numbers = 0
        for key, held in older:
            newest = held.receipts[-1]
            rows.append(_row(key, held.epoch, [newest]))
            numbers += 8 + 2 * len(newest.queue_ids)
            if numbers >= _NUMBERS_PER_RECORD:
                yield SEQUENCES, {"rows": rows}
                rows, numbers = [], 0
        if rows:
            yield SEQUENCES, {"rows": rows}

    def adopt(self, other: Self) -> None:
        duplicates = self.duplicates
        super().adopt(other)
        self.duplicates = duplicates

    def expire(self, now_ms: int) -> None:
        """Drop lanes idle for longer than a week."""
        while self._lanes:
            key, lane = next(iter(self._lanes.items()))
            if now_ms - lane.receipts[-1].store_timestamp_ms <= IDLE_MS_MAX:
                return
            del self._lanes[key]
            self.changes += 1

    def rows(self) -> list[list[Any]]:
        """The table as JSON rows, least recently used first: ``[id, topic, lane, epoch, [receipt, …]]``."""
        return [_row(key, held.epoch, held.receipts) for key, held in list(self._lanes.items())]

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self._take(document["producers"], log_end)

    def pieces(self) -> Iterator[str]:
        yield '\t"producers":['
        rows = self.rows()
        for start in range(0, len(rows), _ROWS_PER_PIECE):
            lines = (json.dumps(row, separators=(",", ":")) for row in rows[start : start + _ROWS_PER_PIECE])
            yield ("," if start else "") + "\n" + ",\n".join(lines)
        yield "\n\t]"

    def _take(self, rows: Iterable[Sequence[Any]], end_offset: int) -> None:
        """Remember rows without receipts of batches that a log ending at ``end_offset`` has lost."""
        for producer_id, topic, lane, epoch, receipts in rows:
            for sequence, start, end, store_timestamp_ms, queue_ids, queue_offsets, *digest in receipts:
                if int(end) <= end_offset:
                    receipt = Receipt(
                        int(sequence),
                        int(start),
                        int(end),
                        int(store_timestamp_ms),
                        queue_ids,
                        queue_offsets,
                        *map(int, digest),
                    )
                    self.remember(int(producer_id, 16), int(epoch), str(topic), int(lane), receipt)


def _row(key: Key, epoch: int, receipts: Iterable[Receipt]) -> list[Any]:
    producer_id, topic, lane = key
    return [f"{producer_id:016x}", topic, lane, epoch, [list(receipt) for receipt in receipts]]


_MAGIC = struct.Struct(">i")
_SYS_FLAG_AT, _MAGIC_AT = 36, 4


def mark_of(records: memoryview) -> ProducerMark | None:
    """The mark in the first property of the first record of a batch, None if there is none.

    Looks only at the place where a mark may stand; whether the record is sound is the store's to check.

    Raises:
        CorruptBatch: the first record ends early, or its mark is not one.
    """
    try:
        (magic,) = _MAGIC.unpack_from(records, _MAGIC_AT)
        (sys_flag,) = _MAGIC.unpack_from(records, _SYS_FLAG_AT)
        at = 84 + (12 if sys_flag & 16 else 0) + (12 if sys_flag & 32 else 0)  # BODYLEN: hosts of 8 or 20 bytes
        (body_bytes,) = _MAGIC.unpack_from(records, at)
        if body_bytes < 0:
            raise IndexError(body_bytes)
        at += 4 + body_bytes
        if magic == MAGIC_V2:
            topic_bytes = records[at] << 8 | records[at + 1]
            at += 2 + topic_bytes
        elif magic == MAGIC_V1:
            at += 1 + records[at]
        else:
            raise CorruptBatch(f"record 0: magic {magic & 0xFFFFFFFF:08X} is not a record's", index=0)
        end = at + 2 + (records[at] << 8 | records[at + 1])
        if end > len(records):
            raise IndexError(end)
    except (struct.error, IndexError) as error:
        raise CorruptBatch(f"record 0: the batch of {len(records)} bytes ends inside it", index=0) from error
    properties = bytes(records[at + 2 : min(end, at + 2 + 256)])  # a mark is short and stands first
    if not properties.startswith(MARK_PREFIX):
        return None
    try:
        return parse_producer_mark(properties[len(MARK_PREFIX) :].partition(b"\x02")[0])
    except InvalidArgument as error:
        raise CorruptBatch(f"record 0: {error.message}", index=0) from error
