"""A broker with its retention, on a disk whose use a test sets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.broker.core.feature import Feature
from penstock.broker.core.tables.topics import Topic
from penstock.broker.group.group import BrokerGroup
from penstock.broker.retention.retention import Retention
from penstock.broker.store import Disk
from tests.support.broker.kit import FEATURES, Kit
from tests.support.broker.stores import batch
from tests.support.clock import ManualClock

SEGMENT = 16384
KEEPS = Topic("keeps", 1, 1)


class MeasuredDisk(Disk):
    """A disk whose use a test sets, in per cent; deleted log files give back ``per_file``. All files are of noon."""

    percent = 20
    per_file = 0
    noon_ms = 0

    def modified_ms(self, path: str) -> int:
        return self.noon_ms

    def used_bytes(self, path: str) -> int:
        return self.percent << 30

    def free_bytes(self, path: str) -> int:
        return (100 - self.percent) << 30

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if "/commitlog/" in path:
            self.percent -= self.per_file


class Node(Kit):
    """A broker with small files that dispatches at once, with ``more`` features; the clock stands at noon."""

    def __init__(
        self, root: Path, *, protect: bool = False, more: Sequence[type[Feature]] = (), **settings: Any
    ) -> None:
        noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
        self.manual = ManualClock(int(noon.timestamp() * 1000))
        self.disk = MeasuredDisk()
        self.disk.noon_ms = self.manual.wall_ms()
        super().__init__(
            root,
            features=(*FEATURES, *more, BrokerGroup, Retention),
            clock=self.manual,
            disk=self.disk,
            sizes={"segment_bytes": SEGMENT, "consume_queue_bytes": 400},
            protectUnreadMessages=protect,
            cleanResourceInterval=100,
            deleteCommitLogFilesInterval=0,
            **settings,
        )
        self.retention = self[Retention]

    def confirm(self) -> None:
        super().confirm()
        self.dispatch()

    def fill(self, files: int = 4, topic: str = "keeps") -> None:
        """Messages of 1 KiB until the log has so many files."""
        end = self.store.end_offset + (files - 1) * SEGMENT
        while self.store.end_offset < end:
            self.store.append(topic, batch(topic, [bytes(1000)]), queues=1)
        self.confirm()

    def at_four(self, days: float = 10) -> None:
        """Some days later, four in the morning."""
        self.manual.advance(int(days) * 86400 + 16.5 * 3600)

    def log_begin(self) -> int:
        return min(int(path.name) for path in (self.root / "commitlog").iterdir())


def follow(slave: Kit, master: Kit) -> None:
    """Bring the slave, which may begin with an empty store, up to the master's log."""
    if not slave.store.end_offset:
        slave.store.start_at(master.store.min_offset)
    while (at := slave.store.end_offset) < master.store.end_offset:
        slave.store.append_bytes(at, master.store.read_bytes(at, 1 << 20))
    slave.confirm()
    slave.dispatch()


@contextlib.asynccontextmanager
async def node(root: Path, **how: Any) -> AsyncIterator[Node]:
    found = Node(root, **how)
    try:
        yield found
    finally:
        found.close()
