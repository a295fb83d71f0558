"""From what users hand in to parts: checked, compressed where configured, within the limits of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats.hashing import string_hash
from penstock.formats.record.unique_key import new_unique_key
from penstock.proto.errors import InvalidArgument, MessageTooLarge

from ..message import Message
from .accumulator import limited, new_part
from .columns import Column, bytes_list, column_of, lengths_of
from .compression import compress
from .config import ProducerConfig
from .due import DeliverAt, with_time
from .keys import checked_body, checked_sharding_key, hashes_of, key_column, property_bytes, property_column, set_hashes
from .parts import Kind, Part

UNCUT = 1 << 62  # more than any limit


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
        """One message that nobody waits for."""
        flag, taken = self._compressed(checked_body(body, self._config.body_bytes_max))
        part = new_part(kind, [taken], [encoded], deadline)
        part.sys_flag = flag
        part.hashes = _hash_of_one(sharding_key)
        return part

    def awaited(
        self,
        body: object,
        tag: str | None,
        keys: Sequence[str] | str | None,
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        deliver_at: DeliverAt | None,
        deadline: float,
    ) -> Part:
        """One message with a future and a UNIQ_KEY."""
        unique_key = new_unique_key()
        properties = with_time(properties, deliver_at)
        encoded = property_bytes(tag, keys, properties, sharding_key, unique_key)
        part = self.single(Kind.SEND, body, encoded, sharding_key, deadline)
        part.futures.append(Future())
        part.message_ids.append(unique_key)
        return part

    def waiting(self, messages: Sequence[Message], deadline: float) -> Part:
        """Messages with a future and a UNIQ_KEY each. One alone is compressed; several are not, as in RocketMQ."""
        if len(messages) == 1:
            (one,) = messages
            return self.awaited(one.body, one.tag, one.keys, one.properties, one.sharding_key, one.deliver_at, deadline)
        bodies: list[bytes] = []
        encoded: list[bytes | None] = []
        ids: list[str] = []
        for message in messages:
            unique_key = new_unique_key()
            bodies.append(checked_body(message.body, self._config.body_bytes_max))
            encoded.append(
                property_bytes(
                    message.tag,
                    message.keys,
                    with_time(message.properties, message.deliver_at),
                    message.sharding_key,
                    unique_key,
                )
            )
            ids.append(unique_key)
        part = new_part(Kind.SEND, bodies, encoded, deadline)
        part.futures = [Future() for _ in messages]
        part.message_ids = ids
        sharding_keys = [message.sharding_key for message in messages]
        if any(key is not None for key in sharding_keys):
            set_hashes(part, sharding_keys)
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
        properties, hashes, keyed = None, None, None
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


def _hash_of_one(sharding_key: str | None) -> Any:
    if sharding_key is None:
        return None
    return np.array([string_hash(checked_sharding_key(sharding_key))], dtype=np.int32)
