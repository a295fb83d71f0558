"""The only way into the log: messages of clients and of features, and records of the broker's own state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.formats.record.form import RecordForm
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.properties import TAGS, encode_properties
from penstock.proto import names
from penstock.proto.errors import NotMaster

from ..store.disk import Bytes
from .dispatch import Fresh
from .tables.producers import Receipt
from .tables.table import compact

if TYPE_CHECKING:
    from .core import Core


class Target(NamedTuple):
    """Where records go: a topic, and how many queues it has."""

    topic: str
    queues: int


class Journal:
    """The way into the log for one mastership; event loop only.

    What is appended is visible here at once; it is durable and replicated when :meth:`Acknowledgements.safe` says so.
    Whoever holds a journal while something else had its turn looks at :attr:`is_over` first.
    """

    def __init__(self, core: Core) -> None:
        self.is_over = False
        """True once this broker is not master any more, or master anew: nothing more goes this way."""
        self.state_end = core.store.end_offset
        """Where the newest record ends that the tables know, confirmed or not."""
        self._store = core.store
        self._tables = core.tables
        self._producers = core.tables.producers
        self._counters = core.counters
        self._events = core.events
        self._name = core.config.identity.broker_name
        self._form = RecordForm.own(names.STATE_TOPIC, core.config.advertised_address)
        self._properties: dict[str, bytes] = {}  # kind -> the properties of its records

    def append(
        self,
        target: Target,
        records: memoryview | bytes | Bytes,
        mark: ProducerMark | None = None,
        *,
        count: int | None = None,
        is_kept: bool = False,
    ) -> Receipt:
        """Place one batch of complete records, which is stored whole or not at all.

        ``mark``: the one in its first record. ``count``: how many records there must be. ``is_kept``: their bodies are
        in the log already, so ``maxMessageSize``, which may be less by now, is not asked.

        Raises as :meth:`Store.append`; NotMaster: this mastership is over.
        """
        self.check("; nothing was stored")
        placed = self._store.append(target.topic, records, queues=target.queues, count=count, is_kept=is_kept)
        sequence, digest = (0, 0) if mark is None else (mark.sequence, mark.digest)
        receipt = Receipt(
            sequence,
            placed.start,
            placed.end,
            placed.store_timestamp_ms,
            placed.queue_ids,
            placed.queue_offsets,
            digest,
        )
        if mark is not None:
            self._producers.remember(mark.producer_id, mark.epoch, target.topic, mark.lane, receipt)
        self._counters.topic(target.topic).on_appended(placed.count, len(records))
        fresh = None
        if placed.count == 1:
            fresh = Fresh(target.topic, placed.queue_ids[0], placed.queue_offsets[0], placed.start, placed.end)
        self._events.on_appended(target.topic, placed.start, placed.end, fresh)
        return receipt

    def put(self, kind: str, document: Mapping[str, Any], body: bytes | None = None) -> int:
        """Record a change of one of the tables, which take it at once; the record's end.

        ``body``: what :func:`compact` would make of it, for a long document: then the tables take the document itself,
        which nobody may change any more, and which JSON would give back as it is.

        Raises as :meth:`append`.
        """
        self.check("; nothing was stored")
        properties = self._properties.get(kind)
        if properties is None:
            properties = self._properties[kind] = encode_properties({TAGS: kind})
        taken, body = (None, compact(document)) if body is None else (document, body)
        placed = self._store.append(names.STATE_TOPIC, self._form.encode(body, properties), queues=1)
        self._tables.apply_own(placed.start, kind, body, taken)
        self._events.on_appended(names.STATE_TOPIC, placed.start, placed.end)
        self.state_end = placed.end
        return placed.end

    def check(self, so: str = "") -> None:
        """Refuse to go on once the mastership is over; ``so``: what follows. Raises NotMaster."""
        if self.is_over:
            raise NotMaster(f"broker {self._name} has ceased to be master meanwhile{so}")
