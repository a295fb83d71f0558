"""The duplicate table of idempotent producers: what each lane appended last, and where.

A producer numbers the batches of each lane (one ordered stream to one topic). When an answer gets lost it
sends the same number again and gets the first receipt instead of a second copy. The table is derived: each
batch carries its number as a mark in the log, so a replica, or a start, rebuilds it from there; the snapshot
only makes the start short. Before log files go, what they alone tell of it is put into a state record, tag
``SEQUENCES``, body ``{"rows": [row, …]}`` with rows as in the snapshot, each of
one receipt. Up to when lanes were forgotten, which no log tells of that has begun
behind their batches, is in one with ``"forgottenMs"``.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np

from penstock.formats.record.kernels.marks import MARKED, NO_RECORD, NUMBERS, TOO_LARGE, UNMARKED, first_mark
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.properties import PROPERTIES_BYTES_MAX
from penstock.proto.errors import (
    CorruptBatch,
    InvalidArgument,
    LaneForgotten,
    LimitReached,
    MessageTooLarge,
    StaleProducer,
)

from ...limits import Limits
from ...store.results import MarkedBatch
from .table import StateRecord, Table

log = logging.getLogger(__name__)

SEQUENCES: Final = "SEQUENCES"
_NUMBERS_PER_RECORD: Final = 16_384
_ROWS_PER_PIECE: Final = 200

OWN_PRODUCERS: Final = range(0x0074696D65727300, 0x0074696D65727400)
"""Ids of the broker's own deliveries, which are told by their lanes what they have delivered before they stopped."""
IDLE_MS_MAX = 7 * 24 * 3600 * 1000  # an answer that nobody asked for in a week is nobody's
RECEIPTS_MAX = 4  # per lane: a client has one batch in flight; more covers answers that overtook each other
LANE_NUMBERS_MAX: Final = 2048
"""Queue ids and offsets in the receipts of one lane; the newest one is kept whatever it holds."""
NUMBERS_MAX: Final = 4 << 20
"""The same of all lanes, some 150 MB; beyond it lanes are forgotten as beyond ``maxProducerLanes``."""
SENT_AGAIN_MS_MAX: Final = 24 * 3600 * 1000
"""No batch is sent again so long after it was sent first: what was forgotten before that is nobody's."""
WARN_EVERY: Final = 1000


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

    @property
    def numbers(self) -> int:
        """How many queue ids and offsets it holds."""
        return 2 * len(self.queue_ids)


@dataclass(slots=True)
class Lane:
    """What is remembered of one lane; ``receipts`` oldest first, never empty.

    ``recorded``: where the newest state record about it begins, -1 without one. ``numbers``: of queue ids and offsets
    in the receipts.
    """

    epoch: int
    receipts: list[Receipt]
    recorded: int = -1
    numbers: int = 0


Key = tuple[int, str, int]
"""producer id, topic, lane"""


class ProducerTable(Table):
    """Last batches of every lane, least recently used first; event loop only."""

    file_name = "producerSequence.json"
    kinds = frozenset({SEQUENCES})

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008  frozen
        super().__init__()
        self.duplicates = 0  # batches that were answered from here
        self.evicted = 0  # lanes that were forgotten because there were too many
        self._limits = limits
        self._forgotten_ms = 0  # when the newest of these stored its last batch
        self._forgotten_at = -1  # where the state record begins that says so, -1 without one
        self._newest_ms = 0  # when the newest batch was stored
        self._numbers = 0  # in all receipts
        self._lanes_of: Counter[int] = Counter()  # of each producer
        self._lanes: OrderedDict[Key, Lane] = OrderedDict()
        self._epochs: OrderedDict[int, int] = OrderedDict()  # newest epoch of each producer, over all its lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def find_duplicate(
        self, producer_id: int, epoch: int, topic: str, lane: int, sequence: int, *, again: bool = False
    ) -> Receipt | None:
        """The receipt of that batch if it is stored already, None if it is new; ``again``: it was sent before.

        Raises:
            StaleProducer: another instance with a newer epoch has taken over the producer id.
            InvalidArgument: the sequence is below the remembered ones of its lane.
            LaneForgotten: sent again, in a lane that may have been forgotten since.
            LimitReached: the producer has too many lanes.
        """
        newest = self._epochs.get(producer_id, epoch)
        if epoch < newest:
            raise StaleProducer(
                f"producer {producer_id:016x}: epoch {epoch} is older than {newest}: another instance has taken over",
                epoch=newest,
            )
        held = self._lanes.get((producer_id, topic, lane))
        if held is None:
            self._check_new(producer_id, topic, lane, again)
            return None
        if held.epoch < epoch or sequence > held.receipts[-1].sequence:
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

    def has_forgotten(self, since_ms: int, now_ms: int) -> bool:
        """True if a lane that stored something since that time may be remembered no more.

        Lanes go by the clock, also while nobody stores anything: the newest batch alone would not tell.
        """
        return self._forgotten_ms >= since_ms or max(self._newest_ms, now_ms) - since_ms > IDLE_MS_MAX

    def remember(self, producer_id: int, epoch: int, topic: str, lane: int, receipt: Receipt) -> None:
        """Note a batch that is in the log now; what is known already, or older, changes nothing."""
        key = (producer_id, topic, lane)
        self.newest_record = max(self.newest_record, receipt.start)
        held = self._lanes.get(key)
        if held is None:
            held = self._lanes[key] = Lane(epoch, [])
            self._lanes_of[producer_id] += 1
        elif epoch > held.epoch:
            self._numbers -= held.numbers
            held.epoch, held.receipts, held.numbers = epoch, [], 0
        elif epoch < held.epoch or receipt.sequence <= held.receipts[-1].sequence:
            return
        receipts, before = held.receipts, held.numbers
        numbers = before + receipt.numbers
        receipts.append(receipt)
        while len(receipts) > 1 and (len(receipts) > RECEIPTS_MAX or numbers > LANE_NUMBERS_MAX):
            numbers -= receipts.pop(0).numbers
        held.numbers = numbers
        self._numbers += numbers - before
        self._newest_ms = max(self._newest_ms, receipt.store_timestamp_ms)
        self.changes += 1
        self._lanes.move_to_end(key)
        while len(self._lanes) > self._limits.lanes_max or (self._numbers > NUMBERS_MAX and len(self._lanes) > 1):
            self._evict()
        if epoch >= self._epochs.get(producer_id, epoch):
            self._epochs[producer_id] = epoch
            self._epochs.move_to_end(producer_id)
            if len(self._epochs) > self._limits.lanes_max:
                self._epochs.popitem(last=False)

    def restore(self, batch: MarkedBatch) -> None:
        """Note a batch found in the log by dispatch or replay."""
        mark = batch.mark
        held = self._lanes.get((mark.producer_id, batch.topic, mark.lane))
        if held is not None and held.epoch == mark.epoch and held.receipts[-1].sequence >= mark.sequence:
            return  # on the master the append has noted it already
        receipt = Receipt(mark.sequence, *batch[2:], mark.digest)  # where it is, when, and its queues
        self.remember(mark.producer_id, mark.epoch, batch.topic, mark.lane, receipt)

    def note(self, position: int) -> None:
        """Nothing: what a record tells of batches before it stays true when the record is cut off with the log's end;
        :meth:`remember` notes the batches themselves.
        """

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        rows, forgotten_ms = document["rows"], int(document.get("forgottenMs", 0))
        if forgotten_ms and forgotten_ms >= self._forgotten_ms:
            self._forgotten_ms, self._forgotten_at = forgotten_ms, max(self._forgotten_at, position)
            self.changes += 1
        self._take(rows, position)
        for producer_id, topic, lane, *_ in rows:
            held = self._lanes.get((int(producer_id, 16), topic, lane))
            if held is not None:
                held.recorded = max(held.recorded, position)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        """The newest batch of every lane of which nothing stands in the log from ``position`` on, and what is gone."""
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
        if self._forgotten_ms and self._forgotten_at < position:
            yield SEQUENCES, {"rows": [], "forgottenMs": self._forgotten_ms}

    def adopt(self, other: Self) -> None:
        duplicates, evicted = self.duplicates, self.evicted
        super().adopt(other)
        self.duplicates, self.evicted = duplicates, evicted

    def expire(self, now_ms: int) -> None:
        """Drop lanes idle for longer than a week; the broker's own say what is delivered, however long it was down."""
        idle = []
        for key, lane in self._lanes.items():
            if now_ms - lane.receipts[-1].store_timestamp_ms <= IDLE_MS_MAX:
                break
            if key[0] not in OWN_PRODUCERS:
                idle.append(key)
        for key in idle:
            self._lanes.move_to_end(key, last=False)
            self._drop_oldest()

    def rows(self, keys: Iterable[Key] | None = None) -> list[list[Any]]:
        """Rows of a snapshot: ``[id, topic, lane, epoch, [receipt, …]]``; of all, the least recently used first."""
        lanes = ((key, self._lanes.get(key)) for key in (list(self._lanes) if keys is None else keys))
        return [_row(key, held.epoch, held.receipts) for key, held in lanes if held is not None]

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self._forgotten_ms = int(document.get("forgottenMs", 0))
        self._take(document["producers"], log_end)

    def pieces(self) -> Iterator[str]:
        yield f'\t"forgottenMs":{self._forgotten_ms},\n\t"producers":['
        keys, separator = list(self._lanes), "\n"
        for start in range(0, len(keys), _ROWS_PER_PIECE):
            for row in self.rows(keys[start : start + _ROWS_PER_PIECE]):
                yield separator + json.dumps(row, separators=(",", ":"))
                separator = ",\n"
        yield "\n\t]"

    def _check_new(self, producer_id: int, topic: str, lane: int, again: bool) -> None:
        """Refuse a lane of which nothing is known, where that may be wrong, or one too many."""
        name = f"producer {producer_id:016x} lane {lane} topic {topic}"
        if again and self._forgotten_ms and self._forgotten_ms > self._newest_ms - SENT_AGAIN_MS_MAX:
            raise LaneForgotten(
                f"{name}: the batch was sent before, and what this lane stored may have been forgotten since, with "
                f"more than maxProducerLanes={self._limits.lanes_max} in use: nothing was stored now"
            )
        most = self._limits.lanes_per_producer_max
        if self._lanes_of[producer_id] >= most:
            raise LimitReached(f"{name}: the producer has {most} lanes here (maxLanesPerProducer): nothing was stored")

    def _evict(self) -> None:
        """Forget the client's lane used least recently; the broker's own stay as long as they are not half of all."""
        if sum(self._lanes_of.get(each, 0) for each in OWN_PRODUCERS) <= len(self._lanes) // 2:
            while (oldest := next(iter(self._lanes)))[0] in OWN_PRODUCERS:
                self._lanes.move_to_end(oldest)
        key, lane = self._drop_oldest()
        if lane.receipts[-1].store_timestamp_ms > self._forgotten_ms:
            self._forgotten_ms, self._forgotten_at = lane.receipts[-1].store_timestamp_ms, -1
        self.evicted += 1
        if self.evicted % WARN_EVERY == 1:
            log.warning(
                "producer lanes forgotten count=%d lanes=%d numbers=%d producer=%016x topic=%s: batches of these that "
                "are sent again have an unknown outcome; see maxProducerLanes",
                *(self.evicted, len(self._lanes), self._numbers, key[0], key[1]),
            )

    def _drop_oldest(self) -> tuple[Key, Lane]:
        key, lane = self._lanes.popitem(last=False)
        self._numbers -= lane.numbers
        self._lanes_of[key[0]] -= 1
        if not self._lanes_of[key[0]]:
            del self._lanes_of[key[0]]
        self.changes += 1
        return key, lane

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


def mark_of(records: memoryview) -> ProducerMark | None:
    """The mark in the first property of the first record of a batch, None if there is none.

    Raises:
        CorruptBatch: no whole record comes first, or its mark is not one.
        MessageTooLarge: the properties are longer than a record may have them.
    """
    numbers = np.empty(NUMBERS, np.uint64)
    found = first_mark(np.frombuffer(records, np.uint8), numbers)
    if found == MARKED:
        return ProducerMark(*numbers.tolist())
    if found == UNMARKED:
        return None
    if found == TOO_LARGE:
        raise MessageTooLarge(f"record 0: properties too large, at most {PROPERTIES_BYTES_MAX} bytes", index=0)
    what = "its producer mark is not five or six hexadecimal numbers"
    if found == NO_RECORD:
        what = f"a batch of {len(records)} bytes does not begin with a whole one"
    raise CorruptBatch(f"record 0: {what}", index=0)
