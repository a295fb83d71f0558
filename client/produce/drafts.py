"""From what users hand in to parts: checked, compressed where configured, within the limits of a batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column, bytes_list, column_of, hashes_of, lengths_of
from penstock.formats.destination import Destination, Later, Ordinary
from penstock.formats.hashing import string_hash
from penstock.formats.record.compression import compress
from penstock.formats.record.properties import WAIT
from penstock.formats.record.unique_key import new_unique_key
from penstock.proto.errors import InvalidArgument, MessageTooLarge

from ..cluster.choices import Choices, Selector
from ..message import DeliverAt, Message, MessageQueue
from .config import ProducerConfig
from .keys import checked_body, checked_sharding_key, key_column, property_bytes, property_column
from .parts import Kind, Part, limited, new_part

UNCUT = 1 << 62  # more than any limit


@dataclass(slots=True)
class Draft:
    """One message as its sender gave it, before anything of it is checked."""

    topic: str
    body: object
    tag: str | None = None
    keys: Sequence[str] | str | None = None
    properties: Mapping[str, str] | None = None
    sharding_key: str | None = None
    deliver_at: DeliverAt | None = None
    queue: MessageQueue | None = None
    selector: Selector | None = None
    wait: bool = True

    @classmethod
    def of(cls, message: Message) -> Draft:
        """The same of a :class:`~penstock.client.Message`."""
        return cls(
            message.topic,
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.sharding_key,
            message.deliver_at,
        )

    @property
    def destination(self) -> Destination:
        """Where brokers are to store it."""
        return Ordinary(self.topic) if self.deliver_at is None else Later(self.topic)

    def place(self, choices: Choices) -> tuple[str, int] | None:
        """The queue that its sender chose, or None. Raises what :meth:`.choices.Choices.place` raises."""
        if self.queue is None and self.selector is None:
            return None
        return choices.place(self.topic, self.queue, self.selector, self._as_message)

    def _as_message(self) -> Message:
        body: Any = self.body
        keys, properties = self.keys or (), self.properties or {}
        return Message(self.topic, body, self.tag, keys, properties, self.sharding_key, self.deliver_at)

    @property
    def no_wait(self) -> bool:
        """True if the answer is to come when the master has it: ``wait`` or RocketMQ's property says so."""
        if not self.wait:
            return True
        wish = self.properties.get(WAIT) if self.properties else None
        return isinstance(wish, str) and wish.lower() not in ("", "true")

    def encoded(self, unique_key: str | None = None) -> bytes | None:
        """The property string, or None where the message has no properties.

        Raises:
            InvalidArgument: what :func:`.keys.property_bytes` refuses, or no such time.
        """
        due = None if self.deliver_at is None else due_ms(self.deliver_at)
        properties = self.properties if self.wait else {**(self.properties or {}), WAIT: "false"}
        return property_bytes(self.tag, self.keys, properties, self.sharding_key, unique_key, due)


def due_ms(deliver_at: DeliverAt) -> int:
    """The time in ms since 1970 UTC; never before it, and 0 for everything before 1970.

    Raises:
        InvalidArgument: no such time.
    """
    if isinstance(deliver_at, dt.datetime):
        if deliver_at.tzinfo is None:
            raise InvalidArgument(f"deliver_at {deliver_at}: has no time zone: give one, as datetime.UTC")
        return max(0, -(-round(deliver_at.timestamp() * 1_000_000) // 1000))
    if not isinstance(deliver_at, int) or isinstance(deliver_at, bool):
        raise InvalidArgument(f"deliver_at {deliver_at!r:.60}: must be a datetime, or milliseconds since 1970 UTC")
    return max(0, deliver_at)


class PartMaker:
    """Makes parts as one producer's configuration wants them. Holds no state."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        compress_from = config.compress_bytes_min if config.compression else config.body_bytes_max + 1
        self.plain_below = min(compress_from, config.body_bytes_max + 1)
        """Bodies of fewer bytes need neither compression nor refusal."""

    def single(
        self, kind: Kind, body: object, encoded: bytes | None, sharding_key: str | None, deadline: float
    ) -> Part:
        """One message, whose properties are encoded already."""
        flag, taken = self._compressed(checked_body(body, self._config.body_bytes_max))
        part = new_part(kind, [taken], [encoded], deadline)
        part.sys_flag = flag
        if sharding_key is not None:
            part.hashes = np.array([string_hash(checked_sharding_key(sharding_key))], dtype=np.int32)
        return part

    def one(self, kind: Kind, draft: Draft, deadline: float) -> Part:
        """One message, with a future and a UNIQ_KEY if somebody waits for it."""
        unique_key = new_unique_key() if kind is Kind.SEND else None
        part = self.single(kind, draft.body, draft.encoded(unique_key), draft.sharding_key, deadline)
        part.no_wait = draft.no_wait
        if unique_key is not None:
            part.futures.append(Future())
            part.message_ids.append(unique_key)
        return part

    def together(self, drafts: Sequence[Draft], deadline: float) -> Part:
        """Messages with a future and a UNIQ_KEY each. One alone is compressed; several are not, as in RocketMQ."""
        if len(drafts) == 1:
            return self.one(Kind.SEND, drafts[0], deadline)
        ids = [new_unique_key() for _ in drafts]
        bodies = [checked_body(draft.body, self._config.body_bytes_max) for draft in drafts]
        encoded = [draft.encoded(unique_key) for draft, unique_key in zip(drafts, ids, strict=True)]
        part = new_part(Kind.SEND, bodies, encoded, deadline)
        part.no_wait = all(draft.no_wait for draft in drafts)
        part.futures = [Future() for _ in drafts]
        part.message_ids = ids
        sharding_keys = [draft.sharding_key for draft in drafts]
        if any(key is not None for key in sharding_keys):
            part.set_hashes(sharding_keys)
        return part

    def columnar(self, bodies: Any, tags: Any, keys: Any, sharding_keys: Any) -> Iterator[Part]:
        """Parts of many messages, each within the limits of a batch; checks everything before the first one."""
        # Lists stay lists until a batch is encoded: joining half a MiB stays in the cache, 300 MB do not.
        taken = bytes_list(bodies) if isinstance(bodies, (list, tuple)) else column_of(bodies)
        count = len(taken)
        if not count:
            return iter(())
        lengths = taken.lengths if isinstance(taken, Column) else lengths_of(taken)
        self._check_lengths(lengths)
        hashes, keyed = None, None
        sharding = None
        if sharding_keys is not None:
            sharding = key_column("sharding key", sharding_keys)
            if len(sharding) != count:
                raise InvalidArgument(f"{len(sharding)} sharding keys for {count} messages: give one for each")
            hashes = hashes_of(sharding)
            has_key = sharding.lengths > 0
            keyed = None if has_key.all() else has_key
        properties = property_column(count, tags, keys, sharding)
        # The cost of the pieces is counted when they are cut.
        whole = Part(
            Kind.PRODUCE, taken, properties, cost=UNCUT, deadline=0.0, lengths=lengths, hashes=hashes, keyed=keyed
        )
        if self._config.compression and int(lengths.max()) >= self._config.compress_bytes_min:
            return self._compressed_pieces(whole)
        return iter(limited(whole, self._config.batch_bytes_max, self._config.batch_count_max))

    def _check_lengths(self, lengths: npt.NDArray[np.int64]) -> None:
        if int(lengths.min()) == 0:
            raise InvalidArgument(f"body {int(np.argmin(lengths))} is empty: a message needs at least one byte")
        if int(lengths.max()) > self._config.body_bytes_max:
            index = int(np.argmax(lengths))
            raise MessageTooLarge(
                f"body {index} of {int(lengths[index])} bytes: at most {self._config.body_bytes_max} are allowed"
            )

    def _compressed(self, body: bytes) -> tuple[int, bytes]:
        if self._config.compression is None or len(body) < self._config.compress_bytes_min:
            return 0, body
        return compress(body, self._config.compression)

    def _compressed_pieces(self, whole: Part) -> Iterator[Part]:
        """Neighbours with the same flag together: one batch has one flag, and order must hold."""
        flags: list[int] = []
        bodies: list[bytes] = []
        for body in whole.bodies:
            flag, taken = self._compressed(body)
            flags.append(flag)
            bodies.append(taken)
        whole.bodies, whole.lengths = Column.of(bodies), None
        for run in np.split(np.arange(len(flags)), np.flatnonzero(np.diff(flags)) + 1):
            piece = whole.take(run)
            piece.sys_flag = flags[int(run[0])]
            piece.cost = UNCUT
            yield from limited(piece, self._config.batch_bytes_max, self._config.batch_count_max)
