"""Retention: when messages go, and what is seen to before they do.

The log is one sequence of files for all topics, and whole files go (:mod:`..store.cleaning` decides which). Before
a file goes:

- what a group has not read of it is told, as warning and metric, from the round on in which it is known that the
  next deletion takes it;
- the master records topics, groups and committed offsets again whose records are in it, and where the queues end
  whose last record is in it, so that a slave which begins with an empty store finds everything in the log that is left;
- the snapshots of these tables are written beyond it, and the store notes a checkpoint beyond it.

A master keeps what a connected slave still has to get, or one that left within the hour; ``protectUnreadMessages``
keeps what a group has not consumed; what is staged for exactly-once writers, and what an archive has not got yet (its
watermark), are kept too; messages that wait for their time are stored anew, and the file goes then. All give way when
the disk forces it. A slave cleans
by its own configuration: the state that leaves with a file is in its snapshots, and if it becomes master, it records
it again.

A topic may keep its messages for a shorter time than the broker keeps its files: attribute ``retention.ms``. The
topic's queues then begin at the first message that is young enough. The bytes stay where they are, in files which
they share with other topics: they take space until the file goes, and are found by key or message id until then.
An attribute longer than ``fileReservedTime`` has no effect: no file is kept for the sake of one topic.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.proto.errors import DiskFull, PenstockError
from penstock.runtime.clock import SteadyClock

from ..core.core import Core
from ..core.feature import Feature, Hold
from ..core.journal import Journal
from ..core.metrics import Families
from ..core.tables.queue_ends import QueueEnd
from ..core.tables.table import StateRecord
from ..store.recovery.cleaning import (
    HOUR_MS,
    Choice,
    CleaningRules,
    DiskUse,
    FileAge,
    Wish,
    choose,
    is_writable,
    next_to_go,
)
from .forewarning import Forewarning
from .unread import Unread, first_unread

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0
TELL_S: Final = 60.0
FIRST_S_MAX: Final = 60.0
CONFIRM_S: Final = 5.0
MAKE_WAY_STEPS: Final = 300
MAKE_WAY_STEP_S: Final = 0.1
MAKE_WAY_FROM_MS: Final = 600_000
"""What was written later is not stored anew, however short the retention: it would fill the log with itself."""
_STEPS: Final = 50


class Retention(Feature):
    """Deletes old files and watches the disk; the slow calls are in threads."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        settings, clock = core.config.retention, core.clock
        self._store = core.store
        self._tables = core.tables
        self._rules = CleaningRules(
            reserved_ms=settings.reserved_hours * HOUR_MS,
            delete_hours=settings.delete_hours,
            used_max=settings.used_max,
            forced_from=settings.forced_from,
            full_from=settings.full_from,
            is_forcing=settings.is_forcing,
            files_max=settings.files_max,
        )
        self._interval_s = settings.interval_ms / 1000
        self._pause_s = settings.pause_ms / 1000
        self._grace_s = settings.grace_ms / 1000
        self._protect_unread = settings.protect_unread
        self._clock = clock
        self._steady = SteadyClock(clock.wall_ms(), clock.monotonic_s())
        self._writable = True
        self._journal: Journal | None = None
        self._is_state_complete = self._store.min_offset == 0
        self._is_new_role = False
        self._is_aligned = False
        self._forewarning = Forewarning(self._store, self._tables, protected=self._protect_unread)
        self._kept_by = ""
        self._failure, self._failures, self._tells_at_s = "", 0, 0.0  # the last one told, and those since then
        self.files_deleted = 0
        self.use = DiskUse(0, 1)

    def on_role(self, journal: Journal | None) -> None:
        self._journal = journal
        self._is_state_complete = self._store.min_offset == 0  # what the former master did is not known
        self._is_new_role = True

    def start(self) -> None:
        """Is there space, and where do the queues of short-lived topics begin?"""
        self.watch()
        try:
            self._store.reserve.adjust()
        except OSError as error:
            log.warning("disk reserve not taken, will be tried again error=%s", error)
        for _ in self._expire_topics():
            continue

    async def run(self) -> None:
        """Watch and clean until cancelled; what goes wrong is logged and tried again in the next round."""
        due = self._clock.monotonic_s() + min(FIRST_S_MAX, 6 * self._interval_s)
        while True:
            await asyncio.sleep(min(WATCH_S, self._interval_s))
            try:
                self.watch()
                await asyncio.to_thread(self._store.reserve.adjust)
                if self._is_new_role:  # at once: whoever begins with an empty store now may be master next
                    self._is_new_role = False
                    await self._complete_state()
                if self._clock.monotonic_s() >= due:
                    due = self._clock.monotonic_s() + self._interval_s
                    await self.clean()
            except (PenstockError, OSError) as error:
                self._tell(f"{type(error).__name__}: {error}")

    def _tell(self, failure: str) -> None:
        """Log why a round failed: what every round fails of, once a minute."""
        self._failures += 1
        now_s = self._clock.monotonic_s()
        if failure != self._failure or now_s >= self._tells_at_s:
            log.error("cleaning failed, will be tried again failures=%d error=%s", self._failures, failure)
            self._failure, self._failures, self._tells_at_s = failure, 0, now_s + TELL_S

    def watch(self) -> None:
        """Refuse messages while the disk is too full, welcome them again when it is not."""
        self.use = use = self._store.removal.disk_use()
        writable = is_writable(self._writable, use.percent, self._rules)
        if writable == self._writable:
            return
        self._writable = writable
        if writable:
            self._store.refusal = None
            log.info("disk has space again, messages are welcome used_percent=%d free=%d", use.percent, use.free)
            return
        rules = self._rules
        self._store.refusal = DiskFull(
            f"disk {use.percent} % full, above diskSpaceWarningLevelRatio={rules.full_from}: nothing was stored; "
            f"messages are welcome again at {rules.forced_from} %: free some space, or add some"
        )
        log.error("disk full, messages are refused used_percent=%d free=%d", use.percent, use.free)

    async def clean(self) -> None:
        """Warn, delete what may go, align queues and index. Raises StorageError, OSError: the next round goes on."""
        removal = self._store.removal
        await self._complete_state()
        for _ in self._expire_topics():
            await asyncio.sleep(0)
        files, self.use = removal.files(), removal.disk_use()
        end = next_to_go(files, self._rules, now_ms=self.now_ms(), percent=self._percent)
        old = [file.end for file in files if self.now_ms() - file.modified_ms >= MAKE_WAY_FROM_MS]
        self._make_way(min(end, old[-1] if old else 0))
        await self._forewarning.look(max(end, self._store.min_offset), self.now_ms(), self._clock.monotonic_s())
        if await self._delete(files):
            self._is_aligned = False
        if not self._is_aligned:
            for _ in removal.align():
                await asyncio.sleep(0)
            self._is_aligned = True
        if removal.waiting:
            await asyncio.to_thread(removal.delete_taken, self._grace_s)

    def now_ms(self) -> int:
        """The wall clock, unless somebody has just set it forward."""
        return self._steady.now_ms(self._clock.wall_ms(), self._clock.monotonic_s())

    def describe(self, families: Families) -> None:
        store = self._store
        families.gauge("penstock_disk_used_percent", "Of the fullest disk that the store needs", self.use.percent)
        is_full = store.refusal is not None or store.removal.is_out_of_space
        families.gauge("penstock_disk_full", "1: messages are refused", int(is_full))
        families.gauge("penstock_disk_reserve_held", "0: given away because the disk is full", store.reserve.is_held)
        families.gauge(
            "penstock_damaged_records", "Records that readers met and that cannot be read", len(store.reader.damages)
        )
        families.gauge("penstock_log_min_offset", "Begin of the log", store.min_offset)
        families.gauge("penstock_log_files_leaving", "Files that go when their readers are done", store.removal.waiting)
        families.counter("penstock_log_files_deleted", "Files deleted", self.files_deleted)
        self._forewarning.describe(families)

    async def _delete(self, files: list[FileAge]) -> int:
        """Delete what may go; how many files went."""
        store = self._store
        if store.removal.waiting:
            return 0  # its space is counted as used until it is gone: what is short now may not be short then
        choice = self._choose(files, store.dispatched_offset, self.core.features.holds())
        if choice.files and self._protect_unread and not choice.is_forced:
            choice = self._choose(files, store.dispatched_offset, await self._all_holds())
        if choice.files:
            await self._prepare(choice.end)
            holds = await self._all_holds()
            choice = self._choose(files, self._safe(), holds)
        if choice.kept_by != self._kept_by:
            self._kept_by = choice.kept_by
            if choice.kept_by:
                log.warning("log files kept although they are old enough because=%s", choice.kept_by)
        return await self._take_out(files[: choice.files], is_forced=choice.is_forced)

    async def _take_out(self, files: list[FileAge], *, is_forced: bool) -> int:
        """Delete these files one after the other; a forced deletion ends when there is space again."""
        count = 0
        removal, rules = self._store.removal, self._rules
        for file in files:
            expired = self.now_ms() - file.modified_ms >= rules.reserved_ms
            if count:
                await asyncio.sleep(self._pause_s)
                if not is_forced and any(hold.offset < file.end for hold in self.core.features.holds()):
                    break  # a slave has come that begins here, or data was staged
                if is_forced and not expired and removal.disk_use().percent <= rules.forced_from:
                    break
            if is_forced and self._make_way(file.end):
                for _ in range(MAKE_WAY_STEPS):
                    await asyncio.sleep(MAKE_WAY_STEP_S)
                    if not self._make_way(file.end):
                        break
            async with self._tables.files.writing:  # a cut of the log, and what reads it anew, is not under way
                if not self._store.min_offset < file.end <= self._safe():
                    break  # there was one
                await self._forewarning.on_delete(file.end)
                for hold in self.core.features.holds():
                    if hold.offset < file.end:
                        hold.on_taken(file.base, file.end)
                count += removal.take_out(file.end)
            self._store.checkpointer.want()
            log.info(
                "log file taken out base=%d end=%d age_hours=%.1f forced=%s used_percent=%d",
                file.base,
                file.end,
                (self.now_ms() - file.modified_ms) / HOUR_MS,
                is_forced,
                self.use.percent,
            )
            await asyncio.to_thread(removal.delete_taken, self._grace_s)
        self.files_deleted += count
        return count

    def _make_way(self, end: int) -> bool:
        """Tell those who hold the log below ``end`` to make way. True if there are any who can, as this is a master."""
        moving = [hold.make_way for hold in self.core.features.holds() if hold.offset < end and hold.make_way]
        for make_way in moving:
            make_way(end)
        return self._journal is not None and bool(moving)

    def _safe(self) -> int:
        """The broker itself needs nothing of the log below this, as things are now."""
        store = self._store
        return min(
            store.dispatched_offset, store.flushed_offset, store.checkpointed_offset, self._tables.files.covered()
        )

    def _choose(self, files: list[FileAge], must_keep: int, holds: Iterable[Hold]) -> Choice:
        wishes = [Wish(hold.who, hold.offset) for hold in holds]
        now_ms = self.now_ms()
        return choose(files, self._rules, now_ms=now_ms, percent=self._percent, must_keep=must_keep, wishes=wishes)

    @property
    def _percent(self) -> int:
        """How full the disk is, for the rules: wholly, where a log file that is needed fits nowhere."""
        return 100 if self._store.removal.is_out_of_space else self.use.percent

    async def _all_holds(self) -> list[Hold]:
        holds = self.core.features.holds()
        if self._protect_unread:
            unread = await first_unread(self._tables, self._store)
            if unread is not None:
                holds.append(unread)
        return holds

    async def _prepare(self, end: int) -> None:
        """Have everything that the broker itself needs of the log below ``end`` elsewhere.

        How far that came is seen from the positions; what fails for want of space leaves them as they are.
        """
        if self._journal is not None:
            recorded = await self._repeat_state(end)
            try:
                async with asyncio.timeout(CONFIRM_S):
                    await self.core.dispatcher.wait_dispatched(recorded)
            except TimeoutError:
                log.warning("records of the state not confirmed yet end=%d waited_s=%.0f", recorded, CONFIRM_S)
        store = self._store
        await self._tables.files.write_changed(lambda: store.dispatched_offset, at_once=True)
        if store.checkpointed_offset < end or store.flushed_offset < end:
            try:
                await asyncio.to_thread(store.checkpoint)
            except DiskFull as error:
                log.warning("checkpoint before a deletion not written error=%s", error)

    async def _complete_state(self) -> None:
        """Have the log say all that the tables know: in an earlier role, or before a start, files may have gone."""
        if not self._is_state_complete and self._journal is not None:
            self._is_state_complete = True  # unless the repetition says otherwise
            try:
                await self._repeat_state(self._store.min_offset)
            except BaseException:
                self._is_state_complete = False
                raise

    async def _repeat_state(self, position: int) -> int:
        """Record again what the tables have from records below ``position``; the end of the last record."""
        journal = self._journal
        assert journal is not None
        end, count = 0, 0
        try:
            for kind, document in itertools.chain(self._ended(position), self._tables.repeated(position)):
                end = journal.put(kind, document)
                count += 1
                if count % _STEPS == 0:
                    await asyncio.sleep(0)
                    if journal.is_over:  # the log is another's to write
                        self._is_state_complete = False
                        break
        except DiskFull as error:
            # The tables are in the snapshots; the records follow when the deletion has made space.
            self._is_state_complete = False
            log.error("state not recorded again error=%s", error)
        if count:
            log.info("state recorded again records=%d older_than=%d end=%d", count, position, end)
        return end

    def _ended(self, position: int) -> Iterator[StateRecord]:
        """Records that say where the queues end that will have none in a log that begins at ``position``."""
        ends = itertools.starmap(QueueEnd, self._store.removal.ended_before(position))
        return self._tables.queue_ends.missing(end for end in ends if self._is_end(end))

    def _is_end(self, end: QueueEnd) -> bool:
        """True if the queue ends there now: others have had their turn, and a topic made anew begins at 0."""
        is_deleted = self._tables.topics.deleted_at(end.topic) >= self._store.dispatched_offset
        return not is_deleted and self._store.reader.queue_range(end.topic, end.queue_id)[1] == end.offset

    def _expire_topics(self) -> Iterator[None]:
        """Begin queues of topics with a retention of their own at the first young message; yields after each topic."""
        now_ms = self.now_ms()
        queues: dict[str, list[int]] = {}
        groups: dict[str, list[str]] = {}
        for topic in self._tables.topics.values():
            kept_ms = topic.retention_ms
            if kept_ms is None:
                continue
            if not queues:
                queues = self._store.queues()
                for group, consumed in self._tables.offsets.pairs():
                    groups.setdefault(consumed, []).append(group)
            for queue_id in queues.get(topic.name, ()):
                self._expire_queue(topic.name, queue_id, now_ms - kept_ms, groups.get(topic.name, []))
            yield

    def _expire_queue(self, topic: str, queue_id: int, before_ms: int, groups: list[str]) -> None:
        low, high = self._store.reader.queue_range(topic, queue_id)
        stored_ms = self._store.lookup.store_timestamp_at(topic, queue_id, low) if low < high else None
        if low == high or (stored_ms is not None and stored_ms >= before_ms):
            return
        minimum = self._store.lookup.search_offset(topic, queue_id, before_ms)
        for group in groups:
            committed = self._tables.offsets.get(group, topic, queue_id)
            unread = minimum - max(committed, low)
            if committed < 0 or unread <= 0:
                continue
            if self._protect_unread and self.use.percent <= self._rules.forced_from:
                minimum = max(committed, low)
                continue
            self._forewarning.on_lost(Unread(topic, group, unread))
        if minimum > low:
            self._store.removal.raise_min_offset(topic, queue_id, minimum)
            log.info("messages of a short-lived topic expired topic=%s queue=%d begins_at=%d", topic, queue_id, minimum)
