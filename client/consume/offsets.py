"""Committed offsets: at the brokers for groups, in a file for broadcasting consumers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from penstock.proto.errors import BrokerUnavailable, CommitRefused, ConfigError
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, QueryOffsetsRequest, SearchOffsetRequest
from penstock.proto.wire.common_pb2 import TopicQueues

from ..cluster import Connections, Directory, offsets_by_broker, offsets_in, queues_in, topic_offsets, topic_queues
from ..message import MessageQueue

REQUEST_TIMEOUT_S = 3.0
NEVER_COMMITTED = -1


def query_committed(connections: Connections, address: str, group: str, queue: MessageQueue) -> int:
    """What the broker at ``address`` has of ``group`` for one of its queues; -1 if nothing was committed."""
    request = QueryOffsetsRequest(group=group, queues=topic_queues([queue]))
    reply = connections.call(address, "QueryOffsets", request, REQUEST_TIMEOUT_S)
    return offsets_in(reply.offsets, queue.broker_name).get(queue, NEVER_COMMITTED)


def query_range(connections: Connections, address: str, queue: MessageQueue) -> tuple[int, int]:
    """The first offset that the broker has of ``queue``, and the one behind its last message."""
    request = TopicQueues(topic=queue.topic, queue_ids=[queue.queue_id])
    reply: Any = connections.call(address, "QueryQueueRanges", request, REQUEST_TIMEOUT_S)
    for each in reply.ranges:
        if each.queue_id == queue.queue_id:
            return each.min_offset, each.max_offset
    return 0, 0


def search_offset(connections: Connections, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first offset whose message was stored at ``timestamp_ms`` or later, else the queue's end."""
    request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
    offset: int = connections.call(address, "SearchOffset", request, REQUEST_TIMEOUT_S).offset
    return offset


class BrokerOffsets:
    """Offsets of a group at the brokers, written by somebody who is no member of it.

    What :class:`FileOffsets` has too: ``load`` gives the next offset to consume (-1: nothing is known), and the epoch
    of the log that it is of (0: nobody knows); ``save`` with ``force`` keeps offsets that are lower than before;
    ``close`` lets others use it.
    """

    def __init__(self, connections: Connections, directory: Directory, group: str, client_id: str) -> None:
        self._connections = connections
        self._directory = directory
        self._group = group
        self._client_id = client_id

    def load(self, queue: MessageQueue) -> tuple[int, int]:
        return query_committed(self._connections, self._address(queue.broker_name), self._group, queue), 0

    def save(self, offsets: Mapping[MessageQueue, int], timeout_s: float, *, force: bool, epoch: int = 0) -> None:
        refused = []
        for name, of_broker in offsets_by_broker(offsets).items():
            request = CommitOffsetsRequest(
                group=self._group,
                client_id=self._client_id,
                offsets=topic_offsets(of_broker),
                force=force,
                epoch=epoch,
            )
            reply = self._connections.call(self._address(name), "CommitOffsets", request, timeout_s)
            refused += queues_in(reply.refused, name)
        if refused:
            raise CommitRefused(
                f"{len(refused)} queues, first {refused[0]}: a member of the group has committed more, or a failover "
                "has cut off what was read: poll again"
            )

    def close(self) -> None:
        """Nothing is held."""

    def _address(self, broker_name: str) -> str:
        address = self._directory.read_address(broker_name)
        if address is None:
            raise BrokerUnavailable(f"broker group {broker_name}: no member lives")
        return address


class FileOffsets:
    """Offsets of one broadcasting consumer, in ``<directory>/<client id>/<group>.json``.

    The file is replaced whole, by renaming, so a crash leaves the old or the new one. One process at a time may use
    it: two with one client id would each skip what the other has read. A row is a queue, its offset, and the epoch of
    the log that the offset is of.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        """Open and lock the file.

        Raises:
            ConfigError: another process uses it, it cannot be read, or it is not what this class writes.
        """
        self._saving = threading.Lock()  # a reset comes from another thread than commits do
        self._path = directory / client_id.replace("/", "_") / f"{group}.json"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = self._path.with_suffix(".lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._lock.close()
                raise ConfigError(
                    f"broadcasting offsets {self._path} are in use by another consumer: give this one a client_id"
                ) from error
            self._offsets = self._read()
        except OSError as error:
            raise ConfigError(f"broadcasting offsets {self._path}: {error}") from error

    def load(self, queue: MessageQueue) -> tuple[int, int]:
        return self._offsets.get(queue, (NEVER_COMMITTED, 0))

    def save(self, offsets: Mapping[MessageQueue, int], timeout_s: float, *, force: bool, epoch: int = 0) -> None:
        """Keep these offsets; they are in the file on return, and on the disk when the system writes it."""
        kept = {each: (offset, epoch) for each, offset in offsets.items()}
        with self._saving:
            if kept.items() <= self._offsets.items():
                return
            wanted = {**self._offsets, **kept}
            rows = [[*each, *row] for each, row in sorted(wanted.items())]
            fresh = self._path.with_suffix(".json.new")
            fresh.write_text(json.dumps({"offsets": rows}, indent=0))
            os.replace(fresh, self._path)
            self._offsets = wanted  # not before: a save that failed is made again

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lock.close()

    def _read(self) -> dict[MessageQueue, tuple[int, int]]:
        try:
            document = json.loads(self._path.read_text())
            return {
                MessageQueue(str(topic), str(broker_name), int(queue_id)): (int(offset), int(epoch))
                for topic, broker_name, queue_id, offset, epoch in document["offsets"]
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"broadcasting offsets {self._path} are damaged ({error}): repair or delete it"
            ) from error
