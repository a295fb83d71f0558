"""Committed offsets: at the brokers for groups, in a file for broadcasting consumers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from penstock.proto.errors import ConfigError, PenstockError
from penstock.proto.wire.broker_pb2 import (
    CommitOffsetsReply,
    CommitOffsetsRequest,
    QueryOffsetsRequest,
    SearchOffsetRequest,
)
from penstock.proto.wire.common_pb2 import TopicOffsets, TopicQueues

from ..cluster.connections import Connections
from ..message import MessageQueue

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 3.0
NEVER_COMMITTED = -1


def commit_request(
    group: str, client_id: str, session_id: int, offsets: Mapping[MessageQueue, int], *, force: bool = False
) -> CommitOffsetsRequest:
    """The request that commits ``offsets`` of one broker group; with ``force`` they may be lower than before."""
    by_topic: dict[str, TopicOffsets] = {}
    for each, offset in sorted(offsets.items()):
        found = by_topic.setdefault(each.topic, TopicOffsets(topic=each.topic))
        found.queue_ids.append(each.queue_id)
        found.offsets.append(offset)
    return CommitOffsetsRequest(
        group=group, client_id=client_id, session_id=session_id, offsets=by_topic.values(), force=force
    )


def refused_queues(reply: CommitOffsetsReply, broker_name: str) -> list[MessageQueue]:
    """The queues whose offsets the broker did not take."""
    return [MessageQueue(each.topic, broker_name, queue_id) for each in reply.refused for queue_id in each.queue_ids]


def query_committed(
    connections: Connections, address: str, group: str, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """What the broker at ``address`` has of ``group`` for these of its queues; -1 where nothing was committed."""
    wanted = list(queues)
    by_topic: dict[str, list[int]] = {}
    for each in wanted:
        by_topic.setdefault(each.topic, []).append(each.queue_id)
    request = QueryOffsetsRequest(
        group=group, queues=[TopicQueues(topic=topic, queue_ids=ids) for topic, ids in by_topic.items()]
    )
    reply = connections.call(address, "QueryOffsets", request, REQUEST_TIMEOUT_S)
    known = {
        (offsets.topic, queue_id): offset
        for offsets in reply.offsets
        for queue_id, offset in zip(offsets.queue_ids, offsets.offsets, strict=True)
    }
    return {each: known.get((each.topic, each.queue_id), NEVER_COMMITTED) for each in wanted}


def query_range(connections: Connections, address: str, queue: MessageQueue) -> tuple[int, int]:
    """The first offset that the broker has of ``queue``, and the one behind its last message."""
    request = TopicQueues(topic=queue.topic, queue_ids=[queue.queue_id])
    reply: Any = connections.call(address, "QueryQueueRanges", request, REQUEST_TIMEOUT_S)
    for each in reply.ranges:
        if each.queue_id == queue.queue_id:
            return each.min_offset, each.max_offset
    return 0, 0


def search_offset(connections: Connections, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first offset whose message was stored at ``timestamp_ms`` or later; the queue's end when there is none."""
    request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
    offset: int = connections.call(address, "SearchOffset", request, REQUEST_TIMEOUT_S).offset
    return offset


class FileOffsets:
    """Offsets of one broadcasting consumer, in ``<directory>/<client id>/<group>.json``.

    The file is replaced whole, by renaming, so a crash leaves the old or the new one. One process at a time may use
    it: two with one client id would each skip what the other has read.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        """Open and lock the file.

        Raises:
            ConfigError: another process uses it, it cannot be read, or it is not what this class writes.
        """
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
            self._offsets = self._load()
        except OSError as error:
            raise ConfigError(f"broadcasting offsets {self._path}: {error}") from error

    def get(self, queue: MessageQueue) -> int:
        """Where to go on, -1 if the queue is new."""
        return self._offsets.get(queue, NEVER_COMMITTED)

    def put(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these offsets; they are in the file on return, and on the disk when the system writes it."""
        if all(self._offsets.get(each) == offset for each, offset in offsets.items()):
            return
        self._offsets.update(offsets)
        rows = [[*each, offset] for each, offset in sorted(self._offsets.items())]
        fresh = self._path.with_suffix(".json.new")
        fresh.write_text(json.dumps({"offsets": rows}, indent=0))
        os.replace(fresh, self._path)

    def close(self) -> None:
        """Let another process use the file."""
        with contextlib.suppress(OSError):
            self._lock.close()

    def _load(self) -> dict[MessageQueue, int]:
        try:
            document = json.loads(self._path.read_text())
            return {
                MessageQueue(str(topic), str(broker_name), int(queue_id)): int(offset)
                for topic, broker_name, queue_id, offset in document["offsets"]
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"broadcasting offsets {self._path} are damaged ({error}): repair or delete it"
            ) from error


def describe_failure(error: PenstockError, offsets: Mapping[MessageQueue, int]) -> str:
    """One line for the log about a commit that failed."""
    first = next(iter(offsets), None)
    return f"queues={len(offsets)} first={first} error={error.message}"
