"""Replies on their way from the topic that holds them to the clients that wait for them.

The topic is read once for all clients as it grows; a reply that is acknowledged once it is appended, and has nothing
before it that waits, goes out by the append itself. A client that listens from further back, or has read too slowly, is
*behind*: it gets its replies from the topic by itself until it has caught up. So no reply that is acknowledged is lost
by a slow client or a failover; some may come twice, which their correlation ids tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from penstock.formats.record.kernels import gather
from penstock.formats.record.replies import clients_of
from penstock.proto import names

from ...core.core import Core
from ...core.dispatch import Arrivals, Watcher
from ...core.journal import Journal
from ...core.tables.producers import Receipt
from ...store.absent import bring, uncached
from ...store.disk import Bytes
from ...store.queues.kernels import Ints, Longs
from ...store.results import ReadResult
from .listeners import Listener, Listeners

log = logging.getLogger(__name__)

SLICE_BYTES: Final = 1 << 18
SLICE_COUNT: Final = 256
"""What is read at once, before others have their turn."""
AT_ONCE_COUNT: Final = 16
"""So many that have just been dispatched are pushed there and then."""
_AT_BEGIN: Final = np.zeros(1, np.int64)
LOOK_BACK_MAX: Final = 1 << 20
"""Replies of all clients that are looked through for one that listens anew: those before are not sent to it."""


class Pusher(Watcher):
    """Reads the topic of replies of one broker; event loop only, and only a master pushes."""

    def __init__(self, core: Core) -> None:
        self.topic = names.reply_topic(core.config.identity.cluster)
        self.listeners = Listeners(core.clock, core.config.limits, self._find, self.poke)
        self.pushed = self.unheard = self.postponed = 0
        self._core = core
        self._store = core.store
        self._journal: Journal | None = None  # of this mastership
        self._behind: dict[Listener, None] = {}  # in the order in which they fell behind
        self._next = 0  # queue offset up to which everybody has got what is his, except those that are behind
        self._pushed_end = 0  # log position behind the newest reply that was pushed by its append
        self._newest = -1  # log position at or below which the newest reply begins
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self.listeners.by_hash) and self._store.dispatched_offset <= self._newest

    def waits_for(self, topic: str) -> bool:
        return topic == self.topic and bool(self)

    def expect(self) -> None:
        """A reply is about to be appended: as soon as it can be read, it is wanted, unless its append pushes it."""
        if not self._core.acknowledgements.is_immediate:
            self._newest = self._store.appended_offset

    def on_stored(self, receipt: Receipt, count: int) -> None:
        """Replies are in the log. One that is acknowledged by that, and is next, is pushed; else dispatch hurries."""
        if not self.listeners.by_hash:
            return
        is_next = count == 1 and receipt.queue_offsets[0] == self._next and not self._behind
        if is_next and receipt.end <= self._store.confirm_offset and self._push_one(receipt):
            return
        self._newest = max(self._newest, receipt.start)
        self._core.dispatcher.hurry()

    def _push_one(self, receipt: Receipt) -> bool:
        """Push the one reply of an append. False if its client has no room."""
        record = self._store.read_bytes(receipt.start, receipt.end - receipt.start)
        sizes, clients = np.array([len(record)], np.int32), np.empty(1, np.int64)
        clients_of(np.frombuffer(record, np.uint8), _AT_BEGIN, sizes, clients)
        listener = self.listeners.by_hash.get(int(clients[0]))
        if listener is None:
            self.unheard += 1
        elif listener.link.has_room:
            listener.send(bytes(record))
            self.pushed += 1
        else:
            return False
        self._next += 1
        self._pushed_end = receipt.end
        return True

    def on_arrived(self, arrivals: Arrivals) -> None:
        if self.topic not in arrivals or not self.listeners.by_hash:
            return
        start, end = self._new()
        if 0 < end - start <= AT_ONCE_COUNT:  # what has just come is in memory: no other task need bring it
            self._hand_out(start, self._read(start, end))
        if self._next < end:
            self.poke()

    def poke(self) -> None:
        """There may be something to push."""
        self._wake.set()

    def on_role(self, journal: Journal | None) -> None:
        """The broker has become master, or slave (None)."""
        self._journal = journal
        self._next = self._range()[1]
        self._newest = self._store.appended_offset - 1  # of the last master's, some may not be readable yet

    def pass_over(self) -> None:
        """Count what came while nobody listened."""
        high = self._range()[1]
        if not self.listeners.by_hash and self._journal is not None:
            self.unheard += max(high - self._next, 0)
            self._next = high

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.turn()

    async def turn(self) -> None:
        """Push everything that can be pushed now."""
        journal = self._journal
        while journal is not None and not journal.is_over and self.listeners.by_hash:
            is_more = await self._push_new(journal)
            for listener in list(self._behind):
                if listener.is_over or listener.behind is None:
                    del self._behind[listener]
                elif listener.link.has_room:
                    is_more |= await self._push_old(journal, listener, listener.behind)
                    await asyncio.sleep(0)  # many may be behind, after a failover all
            if not is_more:
                return
            await asyncio.sleep(0)

    def _range(self) -> tuple[int, int]:
        return self._store.reader.queue_range(self.topic, 0)

    def _find(self, listener: Listener, position: int) -> None:
        """Have the client get what lies in the log from ``position`` on. Raises NotMaster: nothing comes here."""
        self._core.role.check_master()
        self._core.dispatcher.catch_up()
        self._newest = max(self._newest, self._store.appended_offset - 1)  # some may not be readable yet
        self.pass_over()
        first = self._store.removal.first_from(self.topic, 0, position)
        first = max(first, self._next - LOOK_BACK_MAX)
        if first < self._next:
            self._set_behind(listener, first)
        self.poke()

    def _set_behind(self, listener: Listener, offset: int) -> None:
        listener.behind = offset
        self._behind[listener] = None

    async def _push_new(self, journal: Journal) -> bool:
        """Push a slice to everybody who is not behind. True if there may be more."""
        start, end = self._new()
        if start >= end or not await self._bring(journal, start, end):
            return False
        if start == self._next:
            self._hand_out(start, self._read(start, end))
        return True

    def _new(self) -> tuple[int, int]:
        """[first, end) of what nobody has got yet."""
        low, high = self._range()
        is_anew = self._next > high and self._store.dispatched_offset >= self._pushed_end
        self._next = low if is_anew else max(self._next, low)  # a topic made anew begins again
        return self._next, high

    def _hand_out(self, start: int, found: ReadResult) -> None:
        """Give everybody who is not behind what is his of a slice, which begins at ``start``."""
        self._next = found.next_offset
        for client, records, count in self._by_client(found):
            listener = self.listeners.by_hash.get(client)
            if listener is None:
                self.unheard += count
            elif listener.behind is not None:
                continue  # gets them in its own time
            elif listener.link.has_room:
                listener.send(records())
                self.pushed += count
            else:
                self._set_behind(listener, start)
                self.postponed += count
                log.warning("client reads its replies too slowly client=%s offset=%d", listener.client_id, start)

    async def _push_old(self, journal: Journal, listener: Listener, behind: int) -> bool:
        """Push a slice to one that is behind. True if it gets on."""
        if self._range()[1] < self._next:  # pushed, and not dispatched
            self._core.dispatcher.catch_up()
        start, end = max(behind, self._range()[0]), self._next
        if start >= end:
            listener.behind = None
            return True
        if not await self._bring(journal, start, end) or listener.is_over:
            return False
        found = self._read(start, end)
        for client, records, count in self._by_client(found):
            if client == listener.client:
                listener.send(records())
                self.pushed += count
        listener.behind = found.next_offset if found.next_offset < self._next else None
        return True

    async def _bring(self, journal: Journal, start: int, end: int) -> bool:
        """Have what is to be read in memory. Returns False if the mastership is over."""
        entries = self._store.reader.absent_entries(self.topic, 0, start, min(end - start, SLICE_COUNT))
        if entries:
            await asyncio.to_thread(bring, entries)
        records = uncached(self._store.reader.absent(self.topic, 0, start, SLICE_BYTES))
        if records:
            await asyncio.to_thread(bring, records)
        return not journal.is_over

    def _read(self, start: int, end: int) -> ReadResult:
        """Records from ``start`` on, none from ``end`` on."""
        return self._store.reader.read(self.topic, 0, start, SLICE_BYTES, max_count=min(end - start, SLICE_COUNT))

    @staticmethod
    def _by_client(found: ReadResult) -> Iterator[tuple[int, Callable[[], bytes], int]]:
        """For each client: its id's hash, a call that gives its records end to end, and how many there are."""

        def joined(source: Bytes, positions: Longs, sizes: Ints) -> bytes:
            records = np.empty(int(sizes.sum()), np.uint8)
            copied = int(gather(source, positions, sizes, records.ctypes.data))
            assert copied == len(records), "read checks every entry against its file"
            return records.tobytes()

        for source, positions, sizes in found.parts:
            clients = np.empty(len(positions), np.int64)
            clients_of(source, positions, sizes, clients)
            order = np.argsort(clients, kind="stable")
            for chosen in np.split(order, np.flatnonzero(np.diff(clients[order])) + 1):
                take = partial(joined, source, positions[chosen], sizes[chosen])
                yield int(clients[chosen[0]]), take, len(chosen)
