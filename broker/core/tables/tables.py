"""All tables of one broker, and how state records and marks get into them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import TAGS, decode_properties
from penstock.proto import names
from penstock.proto.errors import Corrupt

from ...limits import Limits
from ...store.results import DispatchResult
from .groups import Group, Groups
from .light_offsets import LightOffsets
from .offsets import Offsets
from .producers import ProducerTable
from .queue_ends import QueueEnds
from .table import StateRecord, Table
from .topics import TOPIC_DELETED, Topics

if TYPE_CHECKING:
    from .snapshots import Snapshots

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Table)

DEFAULT_LIMITS = Limits()


class Tables:
    """The five tables that every broker has, and those of its features; event loop only."""

    files: Snapshots
    """The tables' snapshots, which enter themselves here."""

    def __init__(
        self, more: Iterable[type[Table]] = (), limits: Limits = DEFAULT_LIMITS, *, lmq_enable: bool = False
    ) -> None:
        self._more = tuple(more)
        self._limits = limits
        self._lmq_enable = lmq_enable
        self.topics = Topics()
        self.groups = Groups()
        self.offsets = LightOffsets() if lmq_enable else Offsets()
        self.producers = ProducerTable(limits)
        self.queue_ends = QueueEnds()
        self.all: tuple[Table, ...] = (
            self.topics,
            self.groups,
            self.offsets,
            self.producers,
            self.queue_ends,
            *(each() for each in self._more),
        )
        self._by_kind: dict[str, list[Table]] = {}
        for table in self.all:
            for kind in table.kinds:
                self._by_kind.setdefault(kind, []).append(table)
        # Own records, applied at append, that are still to come back by dispatch: position -> topic that is deleted.
        self._applied: dict[int, str] = {}

    def __getitem__(self, kind: type[T]) -> T:
        """The table of that class."""
        return next(table for table in self.all if isinstance(table, kind))

    def fresh(self) -> Tables:
        """The same tables without content."""
        return Tables(self._more, self._limits, lmq_enable=self._lmq_enable)

    def read_queues(self, name: str) -> int:
        """How many queues of that name can be read: those of a topic, or the one of a light queue; 0 if unknown."""
        topic = self.topics.get(name)
        return topic.read_queues if topic is not None else int(name.startswith(names.LIGHT_PREFIX))

    def group_or_default(self, name: str) -> Group:
        """The group of that name, or what one is that nobody has set up."""
        return self.groups.get(name) or Group(name)

    def apply(self, position: int, kind: str, body: bytes, document: Mapping[str, Any] | None = None) -> None:
        """Take the change of the record at physical offset ``position`` into every table that its kind concerns.

        ``document``: what the body says, where that is known. A kind that this version does not know is left alone: it
        belongs to a later one.

        Raises Corrupt: the body is not of its kind's shape.
        """
        concerned = self._by_kind.get(kind)
        if concerned is None:
            log.warning("state record of an unknown kind left alone kind=%s position=%d", kind, position)
            return
        try:
            document = json.loads(body) if document is None else document
            for table in concerned:
                table.note(position)
                table.apply(position, kind, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"state record at physical offset {position}: not a {kind} ({error!r}); kept for inspection",
                offset=position,
            ) from error

    def apply_own(self, position: int, kind: str, body: bytes, document: Mapping[str, Any] | None) -> None:
        """Apply a record that this broker has just appended; its dispatch later costs nothing."""
        self.apply(position, kind, body, document)
        self._applied[position] = _deleted(kind, body)

    def take(self, result: DispatchResult) -> set[str]:
        """Bring the tables up to the end of a dispatched, or replayed, slice; the topics that it deletes."""
        deleted = {self.apply_record(position, record) for position, record in result.state_records}
        for batch in result.marks:
            self.producers.restore(batch)
        return deleted - {""}

    def apply_record(self, position: int, record: bytes) -> str:
        """Apply one dispatched record of the state topic; the topic that it deletes, or an empty string."""
        deleted = self._applied.pop(position, None)
        if deleted is None:
            decoded = decode_record(record)
            kind = decode_properties(decoded.properties).get(TAGS, "")
            self.apply(position, kind, decoded.body)
            deleted = _deleted(kind, decoded.body)
        return deleted

    def repeated(self, position: int) -> Iterator[StateRecord]:
        """Records that say again whatever is in the tables by a record below ``position``.

        So nothing is missing in a log that begins at ``position``: a replica that has only that has all.
        """
        for table in self.all:
            yield from table.repeated(position)

    def adopt(self, other: Tables) -> None:
        """Hold what ``other`` holds, which is nobody's any more."""
        for mine, theirs in zip(self.all, other.all, strict=True):
            mine.adopt(theirs)
        self._applied.clear()

    def expire(self, now_ms: int) -> None:
        """Drop what nobody has asked for in a long time."""
        for table in self.all:
            table.expire(now_ms)


def _deleted(kind: str, body: bytes) -> str:
    return str(json.loads(body)["topicName"]) if kind == TOPIC_DELETED else ""
