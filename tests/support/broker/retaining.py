"""A store with its tables and its retention, on a disk whose use a test sets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.broker.core.dispatch import Dispatcher, apply
from penstock.broker.core.metrics import Families
from penstock.broker.core.producers import ProducerTable
from penstock.broker.core.snapshots import Snapshots
from penstock.broker.core.state import State, Topic
from penstock.broker.core.state_log import StateLog
from penstock.broker.retention.retention import Retention, RetentionTimes
from penstock.broker.store import RealDisk, Store
from penstock.broker.store.recovery.cleaning import CleaningRules
from tests.support.broker.broker_parts import BORN
from tests.support.broker.stores import batch, store_config
from tests.support.clock import ManualClock

SEGMENT = 16384
KEEPS = Topic("keeps", 1, 1)


class MeasuredDisk(RealDisk):
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


class Slaves:
    def __init__(self) -> None:
        self.needed: int | None = None

    def needed_from(self, patience_s: float) -> int | None:
        return self.needed


class Node:
    """A store with its tables and its retention; the clock stands at noon."""

    def __init__(self, root: Path, *, master: bool = True, protect: bool = False, **rules: Any) -> None:
        self.root = root
        noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
        self.clock = ManualClock(int(noon.timestamp() * 1000))
        self.disk = MeasuredDisk()
        self.disk.noon_ms = self.clock.wall_ms()
        self.store = Store.open(store_config(root), disk=self.disk, clock=self.clock)
        self.producers, self.slaves = ProducerTable(), Slaves()
        self.state = State(self.producers)
        self.snapshots = Snapshots(root / "config", self.state, self.producers)
        found = self.snapshots.load(self.store.min_offset, self.store.end_offset, log_has_all=True)
        for result in self.store.replay(found.replay_from):
            apply(result, self.state, self.producers)
        self.dispatcher = Dispatcher(self.store, self.state, self.producers, lambda arrivals: None)
        self.log = StateLog(self.state, self.store, BORN, lambda end: self.dispatch())
        self.retention = Retention(
            self.store,
            self.state,
            self.snapshots,
            self.slaves,
            self.log if master else None,
            CleaningRules(**rules),
            RetentionTimes(interval_s=0.01, pause_s=0, grace_s=120),
            protect_unread=protect,
            wait_dispatched=self.dispatcher.wait_dispatched,
            first_waiting=lambda: None,
            clock=self.clock,
        )

    def dispatch(self) -> None:
        self.store.set_confirm(self.store.end_offset)
        while self.dispatcher.dispatch_slice():
            pass

    def fill(self, files: int = 4, topic: str = "keeps", **how: Any) -> None:
        """Messages of 1 KiB until the log has so many files."""
        end = self.store.end_offset + (files - 1) * SEGMENT
        while self.store.end_offset < end:
            self.store.append(topic, batch(topic, [bytes(1000)]), queues=1)
        self.dispatch()

    def at_four(self, days: float = 10) -> None:
        """Some days later, four in the morning."""
        self.clock.advance(int(days) * 86400 + 16.5 * 3600)

    def log_begin(self) -> int:
        return min(int(path.name) for path in (self.root / "commitlog").iterdir())

    def metrics(self) -> dict[tuple[str, str], float]:
        families = Families({})
        self.retention.describe(families)
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in families.made
            for sample in family.samples
        }


@contextlib.asynccontextmanager
async def node(root: Path, **how: Any) -> AsyncIterator[Node]:
    found = Node(root, **how)
    try:
        yield found
    finally:
        found.store.close()
