"""From what users hand in to parts: checked, compressed where configured, within the limits of a batch."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column, bytes_list, column_of, hashes_of, lengths_of
from penstock.formats.destination import LATER_S_MAX, Delayed, Destination, Later, Ordinary, Reply
from penstock.formats.hashing import string_hash
from penstock.formats.record import properties as names
from penstock.formats.record.compression import Packed, compress
from penstock.formats.record.layout import SysFlag
from penstock.formats.record.unique_key import new_unique_key
from penstock.proto.errors import InvalidArgument, MessageTooLarge
from penstock.proto.names import check_topic

from .. import arguments
from ..cluster.choices import Choices, Selector
from ..message import DeliverAt, Message, MessageQueue
from ..telemetry import Telemetry
from .config import ProducerConfig
from .keys import checked_body, checked_sharding_key, key_column, no_properties, property_bytes, property_column
from .parts import RECORD_COST, Kind, Part, limited, new_part

UNCUT = 1 << 62  # more than any limit
LEVEL_MAX: Final = 128
"""No broker needs more delay levels; how many it has, it says itself."""


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
    delay_s: float | None = None
    delay_level: int | None = None
    queue: MessageQueue | None = None
    selector: Selector | None = None
    wait: bool = True
    message_id: str | None = None
    """UNIQ_KEY, where another has made it; else one is made."""
    due_ms: int | None = field(init=False, default=None)
    """When it is to be delivered; None: at once, or when its delay level is over."""
    replies_at: tuple[str, str] | None = field(init=False, default=None)
    """Of a reply: cluster and broker group that have the request, which was sent to ``topic``."""

    def __post_init__(self) -> None:
        try:
            if self.properties and not names.LATER_WISHES.isdisjoint(self.properties):
                self._take_wishes()
        except (TypeError, ValueError):
            raise no_properties(self.properties) from None
        if self.deliver_at is None and self.delay_s is None and self.delay_level is None:
            return
        given = [name for name in ("deliver_at", "delay_s", "delay_level") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"{' and '.join(given)} for one message: give one of them")
        if self.delay_level is not None:
            checked_level(self.delay_level)
        elif self.delay_s is not None:
            self.due_ms = due_after(self.delay_s)
        elif self.deliver_at is not None:
            self.due_ms = due_ms(self.deliver_at)

    def _take_wishes(self) -> None:
        """Take RocketMQ's properties for a delivery later as the arguments that mean the same."""
        properties = dict(self.properties or {})
        for name in sorted(names.LATER_WISHES.intersection(properties)):
            text = properties.pop(name)
            if not isinstance(text, str) or not (text.isascii() and text.isdecimal() and len(text) <= 18):
                raise InvalidArgument(f"property {name!r}: {text!r:.60} is no whole number in decimal digits")
            argument, value = _WISHES[name](int(text))
            if value is None:
                continue
            if getattr(self, argument) is not None:
                raise InvalidArgument(f"property {name!r} beside another time for the same message: give one")
            setattr(self, argument, value)
        self.properties = properties

    @classmethod
    def of(cls, message: Message) -> Draft:
        if not isinstance(message, Message):
            raise InvalidArgument(f"a batch is of Message, not of {message!r:.60}")
        topic = message.topic if isinstance(message.topic, str) else check_topic(message.topic)
        return cls(
            *(topic, message.body, message.tag, message.keys, message.properties, message.sharding_key),
            *(message.deliver_at, message.delay_s, message.delay_level),
            message_id=message.message_id,
        )

    @classmethod
    def batch(cls, messages: Sequence[Message]) -> list[Draft]:
        """Those of messages that are sent together. Raises InvalidArgument: that is no list of any."""
        if not isinstance(messages, Iterable):
            raise InvalidArgument(f"messages={messages!r:.60}: must be a list of Message")
        drafts = [cls.of(message) for message in messages]
        if not drafts:
            raise InvalidArgument("a batch of no messages: give at least one")
        return drafts

    @property
    def destination(self) -> Destination:
        """Where brokers are to store it."""
        if self.delay_level is not None:
            return Delayed(self.topic, self.delay_level)
        if self.replies_at is not None:
            return Reply(self.topic, self.replies_at[0])
        return Ordinary(self.topic) if self.due_ms is None else Later(self.topic)

    @property
    def is_keyed(self) -> bool:
        return self.sharding_key is not None

    def place(self, choices: Choices) -> tuple[str, int] | None:
        """The queue that its sender chose, or None. Raises what :meth:`.choices.Choices.place` raises."""
        if self.replies_at is not None:
            return self.replies_at[1], 0
        if self.queue is None and self.selector is None:
            return None
        body: Any = self.body
        keys, properties = self.keys or (), self.properties or {}
        message = Message(self.topic, body, self.tag, keys, properties, self.sharding_key, self.deliver_at)
        return choices.place(self.topic, self.queue, self.selector, message)

    @property
    def no_wait(self) -> bool:
        """True if the answer is to come when the master has it: ``wait`` or RocketMQ's property says so."""
        if not self.wait:
            return True
        wish = self.properties.get(names.WAIT) if self.properties else None
        return isinstance(wish, str) and wish.lower() not in ("", "true")

    def encoded(self, unique_key: str | None = None) -> bytes | None:
        """The property string, or None where there are no properties. Raises what :func:`.keys.property_bytes` does."""
        try:
            waits = self.wait is True or arguments.flag("wait", self.wait, InvalidArgument)
            properties = self.properties if waits else {**(self.properties or {}), names.WAIT: "false"}
        except TypeError:
            raise no_properties(self.properties) from None
        return property_bytes(self.tag, self.keys, properties, self.sharding_key, unique_key, self.due_ms)


_WISHES: Final[dict[str, Callable[[int], tuple[str, float | int | None]]]] = {
    names.DELAY: lambda level: ("delay_level", level or None),  # 0 is RocketMQ's word for none
    names.TIMER_DELAY_SECONDS: lambda seconds: ("delay_s", seconds),
    names.TIMER_DELAY_MS: lambda milliseconds: ("delay_s", milliseconds / 1000),
    names.TIMER_DELIVER_MS: lambda at_ms: ("deliver_at", at_ms),
    names.START_DELIVER_TIME: lambda at_ms: ("deliver_at", at_ms),
}


def checked_level(level: object) -> int:
    """``level``, if a broker may have it; most have 18. Raises InvalidArgument: it cannot be one."""
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= LEVEL_MAX:
        raise InvalidArgument(f"delay_level {level!r:.60}: must be one of the broker's, 1..18 (messageDelayLevel)")
    return level


def due_after(delay_s: object) -> int:
    """The time so many seconds from now, in ms since 1970 UTC. Raises InvalidArgument: no such time."""
    is_number = isinstance(delay_s, (int, float)) and not isinstance(delay_s, bool)
    if not is_number or not 0 <= delay_s <= LATER_S_MAX:  # type: ignore[operator]
        raise InvalidArgument(f"delay_s {delay_s!r:.60}: must be 0..{LATER_S_MAX} seconds")
    return time.time_ns() // 1_000_000 + math.ceil(delay_s * 1000)  # type: ignore[operator]


def due_ms(deliver_at: DeliverAt) -> int:
    """The time in ms since 1970 UTC, rounded up, and 0 for everything before 1970. Raises InvalidArgument: none."""
    if isinstance(deliver_at, dt.datetime):
        if deliver_at.tzinfo is None:
            raise InvalidArgument(f"deliver_at {deliver_at}: has no time zone: give one, as datetime.UTC")
        return max(0, -(-round(deliver_at.timestamp() * 1_000_000) // 1000))
    if not isinstance(deliver_at, int) or isinstance(deliver_at, bool):
        raise InvalidArgument(f"deliver_at {deliver_at!r:.60}: must be a datetime, or milliseconds since 1970 UTC")
    return max(0, deliver_at)


class PartMaker:
    """Makes parts as one producer's configuration wants them. Holds no state."""

    def __init__(self, config: ProducerConfig, telemetry: Telemetry | None = None) -> None:
        self._config = config
        self._telemetry = telemetry
        compress_from = config.compress_bytes_min if config.compression else config.body_bytes_max + 1
        self.plain_below = min(compress_from, config.body_bytes_max + 1)
        """Bodies of fewer bytes need neither compression nor refusal, and no span."""
        if telemetry is not None:
            self.plain_below = 0
        self.batch_bytes_max = config.batch_bytes_max

    def single(
        self, kind: Kind, body: object, encoded: bytes | None, sharding_key: str | None, deadline: float
    ) -> Part:
        """One message, whose properties are encoded already."""
        taken = checked_body(body, self._config.body_bytes_max)
        flag, taken = (int(SysFlag.COMPRESSED), taken) if isinstance(body, Packed) else self._compressed(taken)
        part = new_part(kind, [taken], [encoded], deadline)
        part.sys_flag = flag
        if sharding_key is not None:
            part.hashes = np.array([string_hash(checked_sharding_key(sharding_key))], dtype=np.int32)
        return part

    def produced(
        self, topic: str, body: object, encoded: bytes | None, sharding_key: str | None, deadline: float
    ) -> Part:
        """One message that nobody waits for, with its encoded properties."""
        if self._telemetry is not None:
            encoded = self._telemetry.created(topic, encoded)
        return self.single(Kind.PRODUCE, body, encoded, sharding_key, deadline)

    def one(self, kind: Kind, draft: Draft, deadline: float) -> Part:
        """One message, with a future and a UNIQ_KEY if somebody waits for it."""
        if self._telemetry is not None:
            return self._telemetry.sent([draft], lambda: self._one(kind, draft, deadline))
        return self._one(kind, draft, deadline)

    def _one(self, kind: Kind, draft: Draft, deadline: float) -> Part:
        unique_key = _id_of(draft) if kind is Kind.SEND else draft.message_id
        part = self.single(kind, draft.body, draft.encoded(unique_key), draft.sharding_key, deadline)
        part.no_wait = draft.no_wait
        if kind is Kind.SEND and unique_key is not None:
            part.futures.append(Future())
            part.message_ids.append(unique_key)
            if draft.due_ms is not None:
                part.dues_ms.append(draft.due_ms)
        return part

    def together(self, drafts: Sequence[Draft], deadline: float) -> Part:
        """Messages with a future and a UNIQ_KEY each. One alone is compressed; several are not, as in RocketMQ."""
        if len(drafts) == 1:
            return self.one(Kind.SEND, drafts[0], deadline)
        if self._telemetry is not None:
            return self._telemetry.sent(drafts, lambda: self._together(drafts, deadline))
        return self._together(drafts, deadline)

    def _together(self, drafts: Sequence[Draft], deadline: float) -> Part:
        ids = [_id_of(draft) for draft in drafts]
        bodies = [checked_body(draft.body, self._config.body_bytes_max) for draft in drafts]
        encoded = [draft.encoded(unique_key) for draft, unique_key in zip(drafts, ids, strict=True)]
        part = new_part(Kind.SEND, bodies, encoded, deadline)
        part.no_wait = all(draft.no_wait for draft in drafts)
        part.futures = [Future() for _ in drafts]
        part.message_ids = ids
        part.dues_ms = [draft.due_ms for draft in drafts if draft.due_ms is not None]
        sharding_keys = [draft.sharding_key for draft in drafts]
        if any(key is not None for key in sharding_keys):
            part.set_hashes(sharding_keys)
        return part

    def whole(self, bodies: Column, properties: Column, deadline: float) -> Part | None:
        """Messages with encoded properties and one future; None: they cannot be sent as one, or not as they are.

        One alone is an ordinary message, which others may join.
        """
        config, count, size = self._config, len(bodies), len(bodies.data)
        cost = size + len(properties.data) + RECORD_COST * count
        is_plain = size <= config.body_bytes_max if count > 1 else size < self.plain_below
        if (
            self._telemetry is not None
            or not is_plain
            or cost > config.batch_bytes_max
            or count > config.batch_count_max
        ):
            return None
        if count == 1:
            part = Part(Kind.SEND, [bodies[0]], [properties[0]], cost=cost, deadline=deadline, message_ids=[""])
        else:
            part = Part(Kind.SEND, bodies, properties, cost=cost, deadline=deadline, is_whole=True)
        part.futures.append(Future())
        return part

    def limited(self, part: Part) -> list[Part]:
        """The part, or pieces of it that each fit a batch. A part that is a little above the limits is one piece."""
        return limited(part, self._config.batch_bytes_max * 2, self._config.batch_count_max * 2)

    def columnar(self, topic: str, bodies: Any, tags: Any, keys: Any, sharding_keys: Any) -> Iterator[Part]:
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
        if self._telemetry is not None:
            properties = self._telemetry.created_many(topic, count, properties)
        # The cost of the pieces is counted when they are cut.
        whole = Part(
            Kind.PRODUCE, taken, properties, cost=UNCUT, deadline=0.0, lengths=lengths, hashes=hashes, keyed=keyed
        )
        if self._config.compression and int(lengths.max()) >= self._config.compress_bytes_min:
            return self._compressed_pieces(whole)
        pieces = limited(whole, self._config.batch_bytes_max, self._config.batch_count_max)
        if isinstance(bodies, np.ndarray) and isinstance(taken, Column) and np.may_share_memory(taken.data, bodies):
            return map(_with_own_bodies, pieces)  # whose owner may write it as soon as the call returns
        return iter(pieces)

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


def _id_of(draft: Draft) -> str:
    """The id of a message whose receipt is waited for."""
    return new_unique_key() if draft.message_id is None or draft.message_id == "" else draft.message_id


def _with_own_bodies(part: Part) -> Part:
    """The part with a copy of its bodies: a piece at a time, which stays in the cache until it is encoded."""
    bodies = part.body_column()
    part.bodies = Column(bodies.data.copy(), bodies.ends)
    return part
