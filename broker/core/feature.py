"""A feature: one concern of a broker, with everything that belongs to it in one folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from penstock.proto.errors import Forbidden, PenstockError
from penstock.runtime.data.port import Converse

from .intake import ORDINARY, Intake, Intakes
from .journal import Journal
from .metrics import Families
from .tables.table import Table
from .wire import Service

if TYPE_CHECKING:
    from .core import Core

F = TypeVar("F", bound="Feature")


class Hold(NamedTuple):
    """Somebody who needs the log from ``offset`` on. Retention waits for all of them, until the disk forces it.

    ``make_way(end)``, where there is such a thing, is told before: what lies below is old, and goes as soon as nobody
    holds it. ``on_taken(base, end)`` is told when the disk has forced it, once for each log file that goes.
    """

    who: str
    offset: int
    on_taken: Callable[[int, int], None] = lambda base, end: None
    make_way: Callable[[int], None] | None = None


class Feature:
    """One concern of a broker. The base does nothing; a feature overrides what it has. Event loop only."""

    tables: ClassVar[tuple[type[Table], ...]] = ()
    """By class, for tables are filled before there is a core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def services(self) -> Iterable[Service]:
        """The wire's methods."""
        return ()

    def data_methods(self) -> Mapping[int, Converse]:
        """Methods of the data port, by number."""
        return {}

    def intakes(self) -> Mapping[int, Intake]:
        """What an append may ask for besides being stored, by number."""
        return {}

    def admit(self, writer: str, run: str) -> None:
        """Refuse what a run of a named writer appends. Raises StaleProducer: says which other run has taken over."""

    def consumed_by(self, group: str) -> str:
        """Who consumes the group's messages by way of this feature now, one consumer beside another; empty: nobody."""
        return ""

    def holds(self) -> Iterable[Hold]:
        """What retention has to keep of the log. Asked for each file: answered at once, and never before its begin."""
        return ()

    def describe(self, families: Families) -> None:
        """Add metrics."""

    def start(self) -> None:
        """Everything in the log that can be read is in the tables and queues; the first request is yet to come."""

    def on_role(self, journal: Journal | None) -> None:
        """The broker has become master, or slave (None). A broker begins as slave."""

    async def run(self) -> None:
        """Do the background work; cancelled at the end."""

    async def take_turns(
        self, turn: Callable[[], Awaitable[object]], tick_s: float, retry_s: float, failed: str
    ) -> None:
        """For :meth:`run`: a turn every ``tick_s``; after one that failed none for ``retry_s``, and the log says so.

        That holds for errors that nobody has reckoned with, too: messages at which a turn breaks would end this master,
        and then each that is elected after it.
        """
        log, clock, not_before = logging.getLogger(type(self).__module__), self.core.clock, 0.0
        while True:
            await asyncio.sleep(tick_s)
            if clock.monotonic_s() < not_before:
                continue
            try:
                await turn()
            except Exception as error:
                not_before = clock.monotonic_s() + retry_s
                unforeseen = None if isinstance(error, PenstockError) else error
                log.warning("%s error=%s: %s", failed, type(error).__name__, error, exc_info=unforeseen)

    async def stop(self) -> None:
        """Take nothing new, and return when what was taken has its answer."""


class Features:
    """The features of one broker, in the order in which they start."""

    def __init__(self) -> None:
        self.made: tuple[Feature, ...] = ()
        self._consuming: list[Feature] = []  # of those, by which messages may be consumed
        self.intakes = Intakes({ORDINARY: Intake()})

    def make(self, kinds: Iterable[type[Feature]], core: Core) -> None:
        """Make them all."""
        self.made = tuple(kind(core) for kind in kinds)
        self._consuming = [each for each in self.made if type(each).consumed_by is not Feature.consumed_by]
        for feature in self.made:
            self.intakes.update(feature.intakes())

    def __getitem__(self, kind: type[F]) -> F:
        """The feature of that class."""
        return next(feature for feature in self.made if isinstance(feature, kind))

    def admit(self, writer: str, run: str) -> None:
        """See :meth:`Feature.admit`."""
        for feature in self.made:
            feature.admit(writer, run)

    def check_consumer(self, feature: Feature, group: str) -> None:
        """Refuse a consumer of ``feature`` while the group's messages are consumed by way of another: both would have
        the same messages.

        Raises Forbidden: says who does.
        """
        for other in self._consuming:
            if other is not feature and (who := other.consumed_by(group)):
                raise Forbidden(f"group {group} is consumed by {who}: stop those first, or use another group")

    def holds(self) -> list[Hold]:
        """What retention has to keep, and for whom."""
        return [hold for feature in self.made for hold in feature.holds()]

    def describe(self, families: Families) -> None:
        """Add the metrics of all."""
        for feature in self.made:
            feature.describe(families)
