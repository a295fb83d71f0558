"""Asking producers about halves that nobody has decided.

A half is due some time after it was stored, and some time after each question. Who is asked is any member of its
producers' group that is connected; without one it waits, which does not count as a question. A half that was asked
about is stored anew with one more in its count, as RocketMQ does, and one that was asked about too often is parked.
Halves in log files that are about to go are stored anew as well.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import numpy as np

from penstock.proto import names
from penstock.proto.errors import MessageNotFound
from penstock.proto.wire import transactions_pb2 as wire
from penstock.proto.wire.transactions_pb2 import ProducerEvent

from ...core.core import Core
from ...core.failed import ensure_topic
from ...core.journal import Journal
from ...core.reposting import Records
from .decisions import QUEUE, Decisions
from .halves import Longs
from .producers import ProducerSessions

log = logging.getLogger(__name__)

ASKED_AT_ONCE: Final = 1024
"""Halves of one group, each turn."""


class Checks:
    """Looks at the open halves of one broker; event loop only."""

    def __init__(self, core: Core, decisions: Decisions, producers: ProducerSessions) -> None:
        self.asked = 0
        self._core = core
        self._decisions = decisions
        self._producers = producers
        self._check_max = core.config.transactions.check_max
        self._renew_below = 0  # halves below this offset are in the way of a deletion

    async def turn(self, journal: Journal) -> None:
        """Store anew what is in the way, ask about what is due, park what was asked about too often."""
        decisions = self._decisions
        waiting = decisions.known().waiting
        if not len(waiting):
            return
        await self._each(journal, "N", waiting.offsets[waiting.offsets < self._renew_below])
        waiting = decisions.known().waiting
        waiting = waiting.part(waiting.due <= decisions.now_ms())
        is_over = waiting.times >= self._check_max
        due = np.flatnonzero(~is_over & self._producers.are_here(waiting.groups))
        due = due[np.argsort(waiting.groups[due], kind="stable")]
        for chosen in np.split(due, np.flatnonzero(np.diff(waiting.groups[due])) + 1):
            group = int(waiting.groups[chosen[0]]) if len(chosen) else 0
            if self._producers.can_answer(group):
                await self._each(journal, "K", waiting.offsets[chosen[:ASKED_AT_ONCE]], group)
                await asyncio.sleep(0)  # there may be thousands of groups
        if is_over.any():  # last: where their topic cannot be made, the others have been asked about
            ensure_topic(self._core, journal, names.PARKED_TOPIC, 1)
            await self._each(journal, "P", waiting.offsets[is_over])

    def make_way(self, position: int) -> None:
        """Open halves in the log below ``position`` are in the way of its deletion."""
        self._renew_below = max(
            self._renew_below, self._core.store.removal.first_from(names.HALF_TOPIC, QUEUE, position)
        )

    def on_taken(self, base: int, position: int) -> None:
        """The log goes below ``position``, whatever halves are open there."""
        halves = self._decisions.halves
        end = self._core.store.removal.first_from(names.HALF_TOPIC, QUEUE, position)
        if halves is None or halves.floor >= end:
            return
        lost = halves.waiting.offsets[halves.waiting.offsets < end]
        halves.decide(np.arange(halves.floor, end), wire.ENDED)
        log.error(
            "undecided halves are deleted count=%d below=%d: the disk forces their log file out, and they could not be "
            "stored anew; free some space, or add some",
            *(len(lost), position),
        )

    async def _each(self, journal: Journal, letter: str, offsets: Longs, group: int = 0) -> None:
        """Decide so about these halves, as far as they are open still."""
        decisions = self._decisions
        while len(offsets):
            await decisions.finish(journal)
            halves = decisions.known()
            offsets = offsets[halves.states(offsets) == wire.OPEN]
            if not len(offsets):
                return
            try:
                records = await decisions.read(journal, offsets)
            except MessageNotFound as error:
                log.error("undecided halves cannot be read error=%s", error)
                return
            if not len(records.offsets):
                return
            is_open = decisions.known().states(records.offsets) == wire.OPEN
            if decisions.unfinished is not None or not is_open.all():
                continue  # others had their turn meanwhile
            firsts, waiting = halves.firsts(records.offsets), halves.waiting
            times = waiting.times[np.searchsorted(waiting.offsets, records.offsets)]
            decisions.carry_out(journal, letter, records)
            if letter == "K":
                self._ask(group, records, firsts, times + 1)
            elif letter == "P":
                log.warning(
                    "transactions given up, their producers were asked often enough topic=%s count=%d first_offset=%d",
                    *(names.PARKED_TOPIC, len(firsts), firsts[0]),
                )

    def _ask(self, group: int, records: Records, firsts: Longs, times: Longs) -> None:
        self.asked += len(firsts)
        check = ProducerEvent.Check(offsets=firsts.tolist(), times=times.tolist(), records=records.data.tobytes())
        self._producers.ask(group, check)
