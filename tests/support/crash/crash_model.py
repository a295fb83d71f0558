"""A store on a simulated disk in random histories: appends, syncs, rolls, checkpoints, power cuts, recoveries.

Retention takes old files away meanwhile, and topics are deleted and made anew: see :mod:`.crash_removals`.

After each recovery the store is compared with what was appended: all that was acknowledged is there, then a prefix of
the rest, and nothing else; queues and index follow from that.

In a fifth of the histories appends go to a transient store pool: what is not committed goes with the process.

Half of the large bodies begin with a sound record of their own place, as a hostile sender may make them.

Record sizes are few, so that new records end where old ones did, and a leftover behind the log's end fits exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from penstock.broker.core.tables.topics import deleted_topic
from penstock.broker.store import FlushMode, Store, StoreConfig
from penstock.formats.record.layout import Host
from penstock.formats.record.producer_mark import producer_mark
from tests.support.broker.log_history import (
    LogHistory,
    Slack,
    check_derived,
    check_end,
    check_index_files,
    check_key,
    check_reading,
)
from tests.support.broker.stepped_store import (
    abandon,
    committer_of,
    flusher_of,
    forget_background,
    run_background,
)
from tests.support.broker.stores import BODY_AT, forged
from tests.support.clock import ManualClock
from tests.support.crash.crash_doubt import Doubt
from tests.support.crash.crash_removals import clean, delete_topic, interrupted
from tests.support.crash.crash_steps import Step, is_pooled, is_replica
from tests.support.crash.simulated_disk import PowerCut, SimulatedDisk
from tests.support.record.encoding import encode_messages

SEGMENT_BYTES = 8192
INDEX_SLOTS, INDEX_ENTRIES = 7, 24
HOST = Host.parse("10.0.0.1:10911")
TOPICS = ("orders", "clicks")
QUEUES = 3
BODY_SIZES = (16, 280, 900)
_LIGHTS = (b"", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02", b"", b"", b"INNER_MULTI_DISPATCH\x01%LMQ%b,%LMQ%a\x02", b"", b"")


class CrashRun:
    """One history in progress: disk, store, and what the store must hold."""

    def __init__(self, seed: int, root: str = "/srv/broker/store") -> None:
        chooser = random.Random(seed ^ 0x5EED)
        self.cuts = self.recoveries = self.messages = 0
        self.pool_size = 1 + seed % 3 if is_pooled(seed) else 0
        self.sync_mode = chooser.random() < 0.7 and not self.pool_size
        self.master: CrashRun | None = None
        self.root = root
        self.chooser = chooser
        self.clock = ManualClock()
        self.disk = SimulatedDisk(chooser.getrandbits(32))
        self.history = LogHistory()
        self.may_rebuild = True  # all queues; a crash alone must not cost that
        self.noted = 0  # up to where the last checkpoint had things dispatched
        self.slack = Slack()
        self.doubt = Doubt()
        self.minimum = 0  # the log begins there, or later
        self.acknowledged = 0  # every byte below survives whatever happens
        self.sequence = 0
        self.store: Store | None = None
        if is_replica(seed):
            self.master = CrashRun(seed & ~3, "/srv/master/store")

    @property
    def open(self) -> Store:
        """The store, which has to be open."""
        assert self.store is not None
        return self.store

    def play(self, step: Step) -> None:
        """Do one step."""
        self.chooser = random.Random(step.seed)
        if self.store is None:
            self._open()
        self.clock.set_wall(self.clock.wall_ms() + self.chooser.choice((0, 0, 1, 1, 1000, -5)))
        self.disk.now_ms = self.clock.wall_ms()
        self.play_now(step.name)

    def play_now(self, name: str) -> None:
        """A step inside another."""
        action: Callable[[], None] = getattr(self, f"_{name}")
        action()

    def finish(self) -> None:
        """Close what is left, and look into the files."""
        if self.store is None:
            self._open()
        self._dispatch_all()
        end = self.open.dispatched_offset
        self.open.close()
        self.store = None
        index = f"{self.root}/index"
        files = [self.disk.contents(f"{index}/{name}") for name in self.disk.list(index)]
        check_index_files(files, INDEX_SLOTS, INDEX_ENTRIES, self._known(), self.slack, end)

    def close(self) -> None:
        """Give the lock back, however it ended."""
        for run_ in (self, self.master):
            if run_ is not None and run_.store is not None:
                abandon(run_.store)
                run_.store = None

    @cached_property
    def _config(self) -> StoreConfig:
        return StoreConfig(
            root=Path(self.root),
            segment_bytes=SEGMENT_BYTES,
            consume_queue_bytes=7 * 20,
            flush_mode=FlushMode.SYNC_FLUSH if self.sync_mode else FlushMode.ASYNC_FLUSH,
            store_host=HOST,
            index_slots=INDEX_SLOTS,
            index_entries=INDEX_ENTRIES,
            lmq_enable=True,
            multi_dispatch=True,
            is_pooled=self.pool_size > 0,
            pool_size=self.pool_size or 1,
        )

    def _open(self) -> None:
        """Open, perhaps with cuts on the way, and compare."""
        while True:
            if self.disk.cut_after is None and self.chooser.random() < 0.3:
                self.disk.cut_after = self.chooser.randint(0, 60)
            try:
                config = self.doubt.config(self._config)
                store = Store.open(config, disk=self.disk, clock=self.clock, deletes=deleted_topic)
                break
            except PowerCut:
                self._power_cut()
        self.disk.cut_after = None
        self.store = store
        store.on_flushed = self._on_flushed
        self.recoveries += 1
        self.doubt.check(store, config, self.disk)
        history = self._known()
        deleted = any(one.end > self.noted for one in history.deletions)
        assert self.may_rebuild or deleted or not store.end_offset or not store.recovery.queues_rebuilt, (
            "the checkpoint did not fit the queues"
        )
        self.may_rebuild = self.may_rebuild and self.recoveries > 1  # the first start notes where it stands
        assert self.minimum <= store.min_offset <= self.slack.taken, (
            f"the log begins at {store.min_offset}, not at {self.minimum}..{self.slack.taken}"
        )
        assert store.min_offset % SEGMENT_BYTES == 0, "half a file has come back"
        self.minimum = store.min_offset
        end = check_end(store, history, self.acknowledged)
        history.truncate(end)
        self.history = history
        if not store.recovery.clean:
            self.acknowledged = history.whole_below(self.acknowledged)
        assert store.recovery.clean or store.dispatched_offset == end, "everything recovered is dispatched"
        self.compare()
        check_reading(store, history, self.chooser.choice(TOPICS), self.chooser.randrange(QUEUES))
        check_reading(store, history, "%LMQ%a", 0)
        for _ in range(2):
            check_key(store, history, self.chooser.choice(TOPICS), f"k{self.chooser.randrange(6)}", self.slack)
        if self.sync_mode:
            self.acknowledged = max(self.acknowledged, end)  # consumers have seen it

    def compare(self) -> None:
        """Queues and marks with the history, which learns what queues have forgotten."""
        if self.master is None:
            self.history.forget(self.open, self.slack.forgotten)
        check_derived(self.open, self._known(), self.slack)

    def _known(self) -> LogHistory:
        """What the log can be a prefix of."""
        return self.history if self.master is None else self.master.history.copy()

    def _on_flushed(self, offset: int) -> None:
        self.acknowledged = max(self.acknowledged, offset)

    def _append(self) -> None:
        self._produce(self.chooser.choice((1, 1, 2, 3)), marked=False)

    def _marked(self) -> None:
        self._produce(self.chooser.choice((1, 2, 2, 4)), marked=True)

    def _produce(self, count: int, *, marked: bool, size: int | None = None) -> None:
        if self.master is not None:
            self.open_master()._produce(count, marked=marked, size=size)
            return
        topic = self.chooser.choice(TOPICS)
        bodies, properties = [], []
        for _ in range(count):
            self.sequence += 1
            length = size or self.chooser.choice(BODY_SIZES)
            bodies.append((b"%08d" % self.sequence * (length // 8 + 1))[:length])
            if length == BODY_SIZES[-1] and len(bodies) == 1 and self.sequence % 2:
                record = forged(self.history.end + BODY_AT)
                bodies[0] = record + bodies[0][len(record) :]
            keys = " ".join(f"k{self.chooser.randrange(6)}" for _ in range(self.chooser.choice((0, 1, 2))))
            fields = [b"TAGS\x01tag%d\x02" % self.chooser.randrange(3)]
            fields += [b"KEYS\x01%s\x02" % keys.encode()] if keys else []
            fields += [b"UNIQ_KEY\x01u%06d\x02" % self.sequence] if self.chooser.random() < 0.5 else []
            fields += [b"PAD\x01%s\x02" % (b"." * 600)] if size is None and self.chooser.random() < 0.1 else []
            fields += [_LIGHTS[self.sequence % len(_LIGHTS)]] if size is None else []
            properties.append(b"".join(fields))
        queues = np.array([self.chooser.randrange(QUEUES) for _ in range(count)], np.int32)
        mark = producer_mark(7, 1, 0, self.sequence, count) if marked else None
        records = encode_messages(topic, bodies, properties, queues, born_host=HOST, mark=mark, born_timestamp_ms=1)
        self.history.append(self.open, topic, records, queues=QUEUES, marked=marked)
        self.messages += count

    def open_master(self) -> CrashRun:
        """The master, which makes what it appends from this step's seed."""
        assert self.master is not None
        if self.master.store is None:
            self.master.chooser = random.Random(0)
            self.master._open()
        self.master.chooser = self.chooser
        return self.master

    def _roll(self) -> None:
        """Fill the file up to a few bytes, exactly, or beyond."""
        history = self.history if self.master is None else self.master.history
        left = SEGMENT_BYTES - history.end % SEGMENT_BYTES
        size = left - 91 - 8 - 6 - 11 - self.chooser.choice((0, 1, 7, 8, 9, 100))
        if 8 <= size < 3000:
            self._produce(1, marked=False, size=size)
        elif size >= 3000:
            self._produce(3, marked=self.chooser.random() < 0.5, size=size // 3 - 130)

    def _ship(self) -> None:
        """A slave takes some of the master's bytes, wherever they are divided."""
        if self.master is None or self.master.store is None:
            return
        if self.master.pool_size and self.chooser.random() < 0.7:
            committer_of(self.master.open).step()
        for _ in range(self.chooser.randint(1, 4)):
            start = self.open.end_offset
            wanted = self.chooser.choice((1, 8, 20, 50, 300, 700, 2000, 8192))
            self.open.append_bytes(start, self.master.open.read_bytes(start, wanted))

    def _promote(self) -> None:
        """The slave becomes master: its log ends behind the last whole record, or batch, that it has."""
        if self.master is None:
            return
        if self.master.store is not None:
            abandon(self.master.store)
        history, self.master = self.master.history, None
        sent = self.open.end_offset
        end = history.whole_below(sent)
        history.truncate(end)
        self.history = history
        self._produce(1, marked=False)
        self.acknowledged = min(self.acknowledged, end)  # the part that was cut off may have been synced first

    def _truncate(self) -> None:
        """The log's end is cut off, perhaps with a power cut on the way: then any of its ends behind may be left."""
        store, history = self.open, self.history
        low = max(store.min_offset, self.slack.taken, store.end_offset - self.chooser.choice((300, 3000, 20_000)))
        offset = self.chooser.randint(low, store.end_offset)
        if self.master is None:
            offset = history.whole_below(offset)
        lowered = offset if self.master is None else self._known().whole_below(offset)
        if self.chooser.random() < 0.4:
            self.disk.cut_after = self.chooser.randint(0, 30)
        deleted = any(offset < one.end <= store.dispatched_offset for one in self._known().deletions)
        rebuild = self.chooser.random() < 0.2 or deleted
        self.may_rebuild = self.may_rebuild or rebuild
        try:
            store.truncate_to(offset, rebuild=rebuild)
        except PowerCut:
            self.acknowledged = min(self.acknowledged, lowered)
            self._power_cut()
            self._open()
            return
        self.acknowledged = min(self.acknowledged, offset)  # all of it has been synced, half a record too
        self.disk.cut_after = None
        assert store.end_offset == offset
        assert store.dispatched_offset <= offset
        if self.master is None:
            history.truncate(offset)
        self.compare()
        check_reading(store, self._known(), self.chooser.choice(TOPICS), self.chooser.randrange(QUEUES))

    def _commit(self) -> None:
        committer_of(self.open).step()

    def _sync(self) -> None:
        self._meanwhile()
        self.open.request_flush(self.open.end_offset)
        flusher_of(self.open).step()
        self.disk.on_synced = None

    def _meanwhile(self) -> None:
        """Perhaps something is appended, and dispatched, while a sync is under way."""
        if self.chooser.random() < 0.3:
            self.disk.on_synced = self._happens_meanwhile

    def _happens_meanwhile(self) -> None:
        store = self.open
        if store._queues.lock._is_owned() or store._parts.index.lock.locked():  # type: ignore[attr-defined]
            return
        self._append()
        if self.chooser.random() < 0.7:
            self._dispatch()

    def _dispatch(self) -> None:
        store = self.open
        store.set_confirm(store.flushed_offset if self.sync_mode else store.end_offset)
        for _ in range(self.chooser.randint(1, 3)):
            store.dispatch(self.chooser.choice((1, 400, 2000, 1 << 20)))
        if self.sync_mode:
            self.acknowledged = max(self.acknowledged, store.dispatched_offset)

    def _dispatch_all(self) -> None:
        store = self.open
        self._sync()
        store.set_confirm(store.end_offset)
        before = -1
        while store.dispatched_offset != before:
            before = store.dispatched_offset
            store.dispatch()
        self.compare()

    def _checkpoint(self) -> None:
        self._meanwhile()
        self.checkpoint()
        if self.chooser.random() < 0.2:
            self.doubt.end(self.open)
        self.disk.on_synced = None

    def checkpoint(self) -> None:
        """Note how far everything is: a crash alone must not cost more than what follows."""
        begin = self.open.min_offset
        self.open.checkpoint()
        self.may_rebuild, self.minimum = False, begin

    def _clean(self) -> None:
        interrupted(self, clean)

    def _delete_topic(self) -> None:
        interrupted(self, delete_topic)

    def _write_back(self) -> None:
        self.disk.write_back()

    def _background(self) -> None:
        run_background()

    def _cut(self) -> None:
        """The power fails: now, or in the middle of the next few things."""
        if self.chooser.random() < 0.5:
            self.disk.cut_after = self.chooser.randint(0, 6)
            try:
                for name in self.chooser.choices(("append", "marked", "roll", "sync", "dispatch", "checkpoint"), k=4):
                    self.play_now(name)
            except PowerCut:
                pass
            self.disk.on_synced = None
        self._power_cut()
        self._open()

    def _power_cut(self) -> None:
        self.cuts += 1
        self.doubt.has_booted = True
        self._gone()
        self.disk = self.disk.cut()

    def _kill(self) -> None:
        """The process ends without a word, the system goes on: nothing that reached the files is missing."""
        whole, cuts = self._known().whole_below(self.open.end_offset), self.cuts
        self.end_unclean(by_cut=False)
        left = self.open.end_offset
        blank_end = -(-whole // SEGMENT_BYTES) * SEGMENT_BYTES  # a slave may have had a part of a file's blank end
        assert self.cuts > cuts or left in (whole, blank_end if self.master else whole), f"kill at {whole} left {left}"

    def _fail_sync(self) -> None:
        """A sync fails, what it should have written counts as written, and the process ends and starts again."""
        store = self.open
        self.disk.forgets = True
        store.request_flush(store.end_offset)
        flusher_of(store).step()
        if self.disk.forgets:
            self.disk.forgets = False  # there was nothing to sync
            return
        self.end_unclean(by_cut=False)

    def end_unclean(self, *, by_cut: bool) -> None:
        """The power fails, or only the process ends; then the store is opened."""
        if by_cut:
            self._power_cut()
        else:
            self._gone()
            self.disk = self.disk.kill()
        self._open()

    def _gone(self) -> None:
        if self.store is not None:
            self.noted = self.store.checkpointed_offset
            self.doubt.may_be |= flusher_of(self.store).failure is not None
            abandon(self.store)
        forget_background()
        self.store = None

    def _close(self) -> None:
        """A clean end; afterwards perhaps a power cut."""
        self.open.close()
        self.may_rebuild, self.noted = False, self.open.dispatched_offset
        self.acknowledged = max(self.acknowledged, self.open.end_offset)
        self.store = None
        if self.chooser.random() < 0.5:
            self._power_cut()
        self._open()

    def _lose_derived(self) -> None:
        """Somebody deletes queues, index or both, of a store that is not open."""
        if self.chooser.random() < 0.5:
            self.open.close()
            self.acknowledged = max(self.acknowledged, self.open.end_offset)
        else:
            self._gone()
            self.disk = self.disk.kill()
        self.store = None
        for name in self.chooser.choice((("consumequeue",), ("index",), ("consumequeue", "index"))):
            self.disk.lose(f"{self.root}/{name}")
        self.may_rebuild = True
        self.slack.forgotten.update(name for name, _ in self._known().by_queue)
        self.clock.advance(10)  # a new index file gets no name that one had
        self._open()
