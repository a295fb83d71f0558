"""Records that wait become messages of the topics that their properties name.

What such records are: :mod:`penstock.formats.record.reposting.timers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from penstock.formats.record.producer_mark import ProducerMark, mark_property
from penstock.formats.record.reposting.timers import GROWTH_MAX, TOPIC_GROWTH_MAX, delivered_records, real_topics
from penstock.proto.errors import MessageTooLarge

from ..store.disk import Bytes
from ..store.queues.kernels import Longs
from .journal import Target
from .reposting import Records

_AS_BEFORE: Final = np.empty(0, np.int64)


class Waiting:
    """Some of ``records``, in the order in which they are to be delivered."""

    def __init__(self, records: Records, order: Longs) -> None:
        """``order``: places in ``records``."""
        self.data = records.data
        self.positions, self.sizes = records.positions[order], records.sizes[order]
        self._topics, self._hashes = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        recalls = np.empty(len(order), np.uint8)
        real_topics(self.data, self.positions, self.sizes, self._topics, self._hashes, recalls)
        self.recalls: Longs = np.flatnonzero(recalls)
        """Those that take a message back, if they are records of the timer topic."""
        self.lost = int((self._topics < 0).sum())
        """How many belong nowhere."""

    def by_topic(self) -> Iterator[tuple[str, Longs]]:
        """Each topic, and which messages belong there."""
        for found in dict.fromkeys(self._hashes[self._topics >= 0].tolist()):
            chosen = np.flatnonzero((self._hashes == found) & (self._topics >= 0))
            yield topic_at(self.data, int(self._topics[chosen[0]])), chosen

    def batch(self, chosen: Longs, target: Target, mark: ProducerMark, *, keep: bool = False, due: Any = None) -> Any:
        """The records of a batch of ``target``. ``keep``: they go on waiting, until ``due``, or as before without.

        Raises MessageTooLarge: the properties of one leave no room for what is added.
        """
        positions, sizes = self.positions[chosen], self.sizes[chosen]
        out = np.empty(int(sizes.sum()) + GROWTH_MAX + (len(chosen) + 1) * TOPIC_GROWTH_MAX, np.uint8)
        name, prefix = np.frombuffer(target.topic.encode(), np.uint8), np.frombuffer(mark_property(*mark), np.uint8)
        times = _AS_BEFORE if due is None else np.ascontiguousarray(due, np.int64)
        length = int(
            delivered_records(self.data, positions, sizes, name, max(target.queues, 1), prefix, keep, times, out)
        )
        if length < 0:
            raise MessageTooLarge("the properties of a message leave no room for what its delivery adds")
        return out[:length].data


def topic_at(data: Bytes, start: int) -> str:
    """The name of a topic that begins there, as a property's value."""
    return data[start : start + 255].tobytes().partition(b"\x02")[0].decode("utf-8", "replace")
