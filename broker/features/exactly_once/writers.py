"""The coordinator's side of exactly-once writers: which run may decide, and what is decided. See :mod:`.staging`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from penstock.proto.errors import FlowControl, InvalidArgument, LimitReached, StagedDataGone, StaleProducer

from ...core.core import Core
from ...core.wire import NAME_LENGTH_MAX, check_count, check_name, compact_in_turns, in_turns
from .staging_table import WRITER, Keys, StagingTable, Writer

log = logging.getLogger(__name__)

CHUNK_MAX: Final = 1 << 24
"""Chunks of one key at one shard."""
KEYS_MAX: Final = 25_000
SHARDS_MAX: Final = 1_000
"""Broker groups at which one key has staged something."""
TOPICS_MAX: Final = 1_000
LAYOUT_LENGTH_MAX: Final = 1 << 20


class Writers:
    """What this shard has recorded of writers, and what it decides as their coordinator; event loop only."""

    def __init__(self, core: Core) -> None:
        self.table = core.tables[StagingTable]
        self._core = core
        self._start_end = core.store.end_offset  # as this mastership found the log: known, perhaps not confirmed
        self._ends: dict[str, int] = {}  # writer -> end of the last record about it
        self._record_bytes_max = core.config.store.body_bytes_max

    def on_role(self) -> None:
        """The broker has become master, or slave."""
        self._start_end = self._core.store.end_offset
        self._ends.clear()

    def put(self, writer: str, kind: str, document: dict[str, object], body: bytes | None = None) -> None:
        """Record a change that concerns ``writer``, as :meth:`Journal.put`. Raises NotMaster, NotEnoughReplicas."""
        end = self._core.writable().put(kind, document, body)
        self._ends[writer] = max(end, self._ends.get(writer, 0))

    async def acknowledged(self, writer: str, what: str) -> None:
        """Return when all recorded about ``writer`` is acknowledged. Raises OutcomeUnknown: not confirmed in time."""
        await self._core.acknowledgements.safe(self.end_of(writer), what)

    def end_of(self, writer: str) -> int:
        """Where everything ends that is recorded here about ``writer``."""
        return self._ends.get(writer, self._start_end)

    def forget_unknown(self) -> set[str]:
        """Forget writers that the table does not know any more; the names that it knows."""
        table = self.table
        known = table.writers.keys() | table.published.keys() | {each.writer for each in table.staged}
        self._ends = {name: end for name, end in self._ends.items() if name in known}
        return known

    async def open_writer(
        self, name: str, run: str, coordinator: str = "", layout: Mapping[str, str] | None = None
    ) -> Writer:
        """The writer, now in the hands of ``run``; its coordinator, and what it has of the layout, stay as they are.

        Raises:
            StaleProducer: a newer run has taken over.
            InvalidArgument: a name is empty or too long.
            NotMaster, NotEnoughReplicas: nothing was changed. OutcomeUnknown: ask again.
        """
        check_name("writer", name)
        check_name("run", run)
        if layout and (len(layout) > TOPICS_MAX or sum(map(len, layout.values())) > LAYOUT_LENGTH_MAX):
            raise InvalidArgument(f"writer {name}: a layout of {len(layout)} topics: too many, write to fewer")
        layout = dict(layout or {})
        before = self.table.writers.get(name)
        held = before if before is not None else Writer(name, run, 1, coordinator=coordinator)
        if held.run != run:
            self._check_run(held, run, is_opening=True)
            log.info("writer taken over by a new run writer=%s run=%s epoch=%d", name, run, held.epoch + 1)
            held = held.with_run(run)
        if layout.keys() - held.layout.keys():
            held = replace(held, layout={**layout, **held.layout})
        if held != before:
            await self._put(before, held)
        return await self._settled(name)

    async def query_writer(self, name: str) -> Writer | None:
        """What is known of the writer, as safe as the mode promises."""
        self._core.role.check_master()
        return await self._settled(check_name("writer", name)) if name in self.table.writers else None

    async def decide(self, name: str, run: str, batch: int, keys: Keys, content: str = "") -> Writer:
        """Let exactly these attempts be batch ``batch`` of the writer, unless it is decided already.

        ``content`` is kept with the decision; what it means is the writer's matter.

        The answer says what is decided: by this call, or before it.

        Raises:
            StaleProducer: a newer run has taken over.
            StagedDataGone: data of one of the keys may have been dropped.
            InvalidArgument: the writer was not opened, or its decided batch is not finished.
        """
        self._check_run(self._writer(name), run)
        if batch < 0 or len(keys) > KEYS_MAX:
            raise InvalidArgument(f"writer {name}: batch {batch} with {len(keys)} keys: at most {KEYS_MAX}, batch >= 0")
        if len(content) > NAME_LENGTH_MAX:
            raise InvalidArgument(f"writer {name}: content of {len(content)} characters: at most {NAME_LENGTH_MAX}")
        async for key, shards in in_turns(keys.items()):
            check_name("key", key)
            if not all(0 < count <= CHUNK_MAX for count in shards.values()):
                raise InvalidArgument(
                    f"writer {name} batch {batch}: key {key}: chunks per broker group {dict(shards)!r:.80}: "
                    f"1..{CHUNK_MAX} are allowed"
                )
        held = self._writer(name)
        self._check_run(held, run)
        if batch > held.decided:
            if not held.finished:
                raise InvalidArgument(
                    f"writer {name}: batch {held.decided} is decided but not published everywhere: publish and finish "
                    f"it before batch {batch}",
                    decided=held.decided,
                )
            expired = sorted(keys.keys() & held.expired.keys())
            if expired:
                raise StagedDataGone(
                    f"writer {name} batch {batch}: what was staged as {expired[0]} was given up, by an abort or after "
                    "its time-out (transactionTimeoutMs): write the batch again"
                )
            later = {key: number for key, number in held.expired.items() if number > batch}
            await self._put(
                held, replace(held, decided=batch, finished=not keys, keys=keys, expired=later, content=content)
            )
        return await self._settled(name)

    async def finish(self, name: str, batch: int) -> Writer:
        """Note that every shard has published the decided batch, so that the next may be decided."""
        held = self._writer(name)
        if batch > held.decided:
            raise InvalidArgument(f"writer {name}: batch {batch} is not decided, the last one is {held.decided}")
        if batch == held.decided and not held.finished:
            await self._put(held, replace(held, finished=True, keys={}))
        return await self._settled(name)

    async def give_up(self, name: str, batch: int, keys: Collection[str]) -> Keys:
        """What is decided as ``batch`` and not finished; those of ``keys`` that are not in it never will be."""
        self._core.role.check_master()
        check_count("keys", len(keys), KEYS_MAX)
        asked: dict[str, None] = {}
        async for key in in_turns(keys):
            asked[check_name("key", key)] = None
        held = self.table.writers.get(check_name("writer", name))
        if held is None:
            return {}  # forgotten, with nothing left to publish: it has to be opened, as another run, to decide again
        wanted = [key for key in asked if key not in held.expired]
        if batch > held.decided and wanted:
            length = sum(map(len, held.expired)) + sum(map(len, wanted))
            if len(held.expired) + len(wanted) > KEYS_MAX or length > self._record_bytes_max // 4:
                raise LimitReached(
                    f"writer {name}: {len(held.expired)} keys of batches after {held.decided} are given up, and "
                    f"{len(wanted)} more do not fit: decide a later batch, or open the writer anew"
                )
            await self._put(held, replace(held, expired={**held.expired, **dict.fromkeys(wanted, batch)}))
        held = await self._settled(name)
        return held.keys if batch == held.decided else {}

    def _writer(self, name: str) -> Writer:
        self._core.role.check_master()
        held = self.table.writers.get(name)
        if held is None or not held.run:
            raise InvalidArgument(f"writer {name!r:.80} is not open at this shard: open it first")
        return held

    def _check_run(self, held: Writer, run: str, *, is_opening: bool = False) -> None:
        if run in held.fenced:
            raise StaleProducer(
                f"writer {held.name}: run {run} is fenced: run {held.run} has taken over (epoch {held.epoch}); if both "
                "run on, two queries use one writer name: give each its own",
                epoch=held.epoch,
            )
        if run != held.run and not is_opening:
            raise StaleProducer(
                f"writer {held.name}: run {run} does not have it here, run {held.run} does (epoch {held.epoch}): a "
                "failover has cut off what was recorded of the newer one: start the query again",
                epoch=held.epoch,
            )

    async def _put(self, before: Writer | None, writer: Writer) -> None:
        """Record ``writer`` in place of ``before``. Raises FlowControl: somebody changed it; nothing was recorded."""
        document = replace(writer, touched_ms=self._core.clock.wall_ms()).to_json()
        body = await compact_in_turns(document, "keys", "expired")
        if len(body) > self._record_bytes_max:
            raise LimitReached(
                f"writer {writer.name}: its state would take {len(body)} bytes, with {len(writer.keys)} keys of batch "
                f"{writer.decided}, and a record has at most {self._record_bytes_max} (maxMessageSize): write fewer "
                "partitions at once, to fewer topics"
            )
        if self.table.writers.get(writer.name) is not before:
            raise FlowControl(f"writer {writer.name} was changed by somebody else meanwhile: try again")
        self.put(writer.name, WRITER, document, body)

    async def _settled(self, name: str) -> Writer:
        """The writer, when everything recorded about it is acknowledged: nobody may act on less."""
        writer = self.table.writers[name]  # now: what is changed while waiting is not acknowledged after it
        await self.acknowledged(name, f"writer {name}")
        return writer
