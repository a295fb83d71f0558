"""Where the messages of a sharding key go: to the key's home, or elsewhere while that is away.

A key's home is a queue of any broker group that has the topic, with or without a living master, chosen by the key's
hash. So a group that has no master for the length of a failover moves no key. A group that stays without one is
*away*: its keys, and no others, are spread over the remaining groups until it is back.

Pure: no clock, no network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...cluster.queues import WriteQueues


@dataclass(frozen=True)
class KeyPlaces:
    """One answer to "where does this key go", for all keys."""

    homes: WriteQueues
    """The queues of all groups that have the topic."""
    away: frozenset[str] = frozenset()
    """Names of the groups whose keys go elsewhere for now."""
    _rest: WriteQueues = field(init=False, compare=False)
    """The queues of the groups that are not away; all of them if every group is."""

    def __post_init__(self) -> None:
        rest = WriteQueues(shard for shard in self.homes.shards if shard[0] not in self.away)
        object.__setattr__(self, "_rest", rest if rest.total else self.homes)

    def place(self, key_hash: int) -> tuple[str, int]:
        """Broker name and queue id for one hash."""
        name, queue_id = self.homes.queue(self.homes.index_of_hash(key_hash))
        if name in self.away:
            return self._rest.queue(self._rest.index_of_hash(key_hash))
        return name, queue_id

    def places(self, hashes: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Number of the group in ``homes.shards``, and queue id, for each hash; as :meth:`place`."""
        shards, queue_ids = self.homes.split_by_hash(hashes)
        if self.away:
            is_away = np.array([name in self.away for name, _ in self.homes.shards])[shards]
            numbers = np.array([self.number(name) for name, _ in self._rest.shards])
            elsewhere, ids = self._rest.split_by_hash(hashes[is_away])
            shards[is_away], queue_ids[is_away] = numbers[elsewhere], ids
        return shards, queue_ids

    def number(self, broker_name: str) -> int:
        """The group's number in ``homes.shards``, or -1 if it is not there."""
        return next((at for at, (name, _) in enumerate(self.homes.shards) if name == broker_name), -1)

    def changed(self, queues: WriteQueues, away: frozenset[str]) -> KeyPlaces:
        """The places when ``queues`` may be written now, and ``away`` lost their master too long ago."""
        return KeyPlaces(WriteQueues((dict(self.homes.shards) | dict(queues.shards)).items()), away)
