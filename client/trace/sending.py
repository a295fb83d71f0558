"""What one producer tells of its messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.formats.destination import Destination, Half, Ordinary
from penstock.formats.record.properties import KEYS, TAGS, decode_properties
from penstock.formats.trace import REGION, EndTransaction, MessageType, Pub, Recall
from penstock.proto.wire.broker_pb2 import SEND_OK, AppendReceipt

from ..cluster import store_host_of

if TYPE_CHECKING:
    from ..produce.parts import Batch, Part
    from .tracer import Tracer

_HALF_HEX: Final = "%016X"


class SendTrace:
    """Tells the outcome of batches: a call each, whatever the number of its messages."""

    def __init__(self, tracer: Tracer, group: str) -> None:
        self.tracer = tracer
        self._group = group

    def on_stored(self, destination: Destination, batch: Batch, receipt: AppendReceipt, address: str) -> None:
        """A batch is acknowledged. Messages without an id of their producer have their place as an id."""
        if destination.topic == self.tracer.topic:
            return
        sizes: Any = receipt.record_sizes if len(receipt.record_sizes) else batch.record_sizes
        if sizes is None or batch.count == 1:
            positions = np.array([receipt.physical_offset])
        else:
            sizes = np.array(sizes, np.int64)
            positions = receipt.physical_offset + np.cumsum(sizes) - sizes
        host = store_host_of(address).encode().hex().upper()
        success = receipt.status == SEND_OK
        first = 0
        for part in batch.parts:
            own = positions[first : first + part.count]
            first += part.count
            if part.message_ids:
                chosen = self._chosen(part.message_ids)
            elif isinstance(destination, Ordinary):
                chosen = self.tracer.sample.positions(own)
            else:
                continue  # its place is not where it will be read
            if len(chosen):
                ids = [host + _HALF_HEX % position for position in own[chosen].tolist()]
                self._take(destination, part, chosen, ids, address, success=success)

    def on_failed(self, destination: Destination, part: Part) -> None:
        """Messages are given up. Nobody could ask for those that have no id."""
        if destination.topic != self.tracer.topic and part.message_ids:
            chosen = self._chosen(part.message_ids)
            if len(chosen):
                self._take(destination, part, chosen, [""] * len(chosen), "", success=False)

    def on_ended(self, sent: Sequence[tuple[str, str]], transaction_id: str, state: str, *, from_check: bool) -> None:
        """A transaction is decided; ``sent``: topic and id of its messages."""
        chosen = [each for each in sent if self.tracer.sample.has(each[1])]
        if chosen:
            now_ms, group, kind = _now_ms(), self._group, MessageType.COMMIT
            self.tracer.take(
                len(chosen),
                lambda: [
                    EndTransaction(
                        now_ms, REGION, group, topic, each, "", "", "", kind, transaction_id, state, from_check
                    )
                    for topic, each in chosen
                ],
            )

    def on_recalled(self, topic: str, message_id: str, *, success: bool) -> None:
        if self.tracer.sample.has(message_id):
            told = Recall(_now_ms(), REGION, self._group, topic, message_id, success)
            self.tracer.take(1, lambda: [told])

    def _chosen(self, message_ids: Sequence[str]) -> Any:
        if self.tracer.sample.is_all:
            return np.arange(len(message_ids))
        return np.array([at for at, each in enumerate(message_ids) if self.tracer.sample.has(each)], np.int64)

    def _take(
        self, destination: Destination, part: Part, chosen: Any, ids: list[str], address: str, *, success: bool
    ) -> None:
        cost_ms = max(int((time.monotonic() - part.held_s) * 1000), 0)
        began_ms = _now_ms() - cost_ms
        at = chosen.tolist()
        lengths = part.body_lengths()[chosen].tolist()
        properties = part.properties
        encoded: list[bytes | None] = [None] * len(at) if properties is None else [properties[index] for index in at]
        own_ids = [part.message_ids[index] for index in at] if part.message_ids else ids
        kind = _type_of(destination)
        group, topic = self._group, destination.topic

        def told() -> Iterator[Pub]:
            for message_id, offset_id, size, (tag, keys) in zip(own_ids, ids, lengths, _named(encoded), strict=True):
                yield Pub(
                    *(began_ms, REGION, group, topic, message_id, tag, keys, address),
                    *(size, cost_ms, kind, offset_id, success),
                )

        self.tracer.take(len(at), told)


def _named(encoded: Sequence[bytes | None]) -> Iterable[tuple[str, str]]:
    if not any(encoded):
        return repeat(("", ""), len(encoded))
    return map(_tag_and_keys, encoded)


def _tag_and_keys(encoded: bytes | None) -> tuple[str, str]:
    if not encoded:
        return "", ""
    found = decode_properties(encoded)
    return found.get(TAGS, ""), found.get(KEYS, "")


def _type_of(destination: Destination) -> MessageType:
    if isinstance(destination, Half):
        return MessageType.HALF
    return MessageType.NORMAL if isinstance(destination, Ordinary) else MessageType.DELAY


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
