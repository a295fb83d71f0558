"""Exactly-once writers: stage, decide, publish.

A writer (a streaming query, over all its runs) sends each batch of its output in two steps. Its tasks *stage* records
at the shards where they belong, as records of an internal topic that nobody can consume. Then one shard, the writer's
*coordinator*, records the *decision*: which attempts of the tasks count. The decision is one record, so a batch is
decided whole or not at all, and once: the next attempt to decide it gets the first decision. Last, each shard
*publishes* what it holds of the decided attempts, as records of their topic, and says so in its log.

Whoever stops in between, the rest follows from the logs: a batch that is decided is published again by the writer's
next run, or by the shard itself once the data is older than ``keep_ms``. Each chunk carries a producer mark, so a
publication that was cut short goes on behind its last record. Data that nobody decided goes after ``keep_ms``, but
only when the coordinator has recorded that it will never decide it.

Fencing: a run is named by a random id; one that the coordinator has not seen takes over, and earlier ones can decide
nothing any more. What they stage expires.

Source: the protocol is two-phase commit with one deciding record, as Flink's two-phase sinks and Kafka's transaction
coordinator use it; differs: participants ask the coordinator themselves, and duplicates are found by the log's marks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.formats.record.form import RecordForm
from penstock.formats.record.kernels import PlaceStatus, check_batch, crc32
from penstock.formats.record.layout import Host, body_of, decode_record
from penstock.formats.record.producer_mark import ProducerMark, mark_property
from penstock.formats.record.properties import TAGS, encode_properties
from penstock.formats.record.reposting.rewriting import put_queues
from penstock.proto import names
from penstock.proto.errors import (
    CorruptBatch,
    InvalidArgument,
    MessageNotFound,
    MessageTooLarge,
    NotMaster,
    StagedDataGone,
    TopicNotFound,
)
from penstock.proto.frames import unpack
from penstock.proto.wire import pipeline_pb2

from ...core.core import Core
from ...core.intake import check_types, client_mark, writable_topic
from ...core.journal import Journal, Target
from ...core.reposting import Reposter, records_of
from ...core.wire import TURN, check_count, check_name, in_turns
from .staging_table import STAGED, STAGED_GONE, Chunk, Keys, Staged, StagedId, gone_body, staged_body
from .writers import CHUNK_MAX, KEYS_MAX, Writers

log = logging.getLogger(__name__)

KEEP_MS_MIN, KEEP_MS_MAX = 1_000, 7 * 24 * 3600 * 1000
KEEP_MS_DEFAULT: Final = 900_000
LOOK_S: Final = 1.0
RETRY_S: Final = 10.0


AskCoordinator = Callable[[str, str, int, list[str]], Awaitable[Keys]]
"""(coordinator, writer, batch, keys) -> what is decided and not finished; none of the other keys ever will be."""


@dataclass(slots=True)
class Kept:
    """A chunk that is kept aside, and whose sender has no answer yet."""

    what: str
    end: int  # of what must be safe
    epoch: int  # of the role then
    is_duplicate: bool
    is_settled: bool  # its answer waits for nothing


class Staging:
    """Both sides of the protocol at one broker; event loop only, and only a master does anything."""

    def __init__(self, core: Core, writers: Writers, ask_coordinator: AskCoordinator) -> None:
        self._core = core
        self._store = core.store
        self._table = writers.table
        self._writers = writers
        self._reposter = Reposter(core)
        self._ask_coordinator = ask_coordinator
        self._broker_name = core.config.identity.broker_name
        self._host_bytes = len(Host.parse(core.config.advertised_address).encode())
        self._form = RecordForm.own(names.STAGE_TOPIC, core.config.advertised_address)
        self._body_bytes_max = core.config.store.body_bytes_max
        self._publishing: dict[str, asyncio.Lock] = {}
        self._not_before: dict[tuple[str, int], float] = {}
        self.records_published = 0
        self.records_dropped = 0

    def place(self, request: memoryview) -> Kept:
        """Keep one framed batch aside. See :class:`.data_calls.Placing`."""
        header, records = unpack(request, pipeline_pb2.StageHeader)
        journal = self._core.writable()
        topic = writable_topic(self._core, header.topic)
        each, staged = self._checked_header(header, records)
        if each.batch <= self._table.published_batch(each.writer):
            raise InvalidArgument(f"writer {each.writer}: batch {each.batch} is published already: nothing is staged")
        known = self._table.staged.get(each)
        if known is not None and known.coordinator != header.coordinator:
            raise InvalidArgument(
                f"writer {each.writer} batch {each.batch}: key {each.key} is staged here for coordinator "
                f"{known.coordinator}, not {header.coordinator}: stage another attempt under a key of its own"
            )
        duplicate = known is not None and header.chunk in known.chunks
        if not duplicate:
            intake = self._core.features.intakes[header.later]
            intake.check(records, topic)
            check_types(records, header.count, topic, intake)
            self._check_records(header, records, intake.target(topic))
            self._keep(journal, each, staged, header, records)
        what = f"chunk {header.chunk} of {each.key}"
        end, epoch = self._writers.end_of(each.writer), self._core.role.epoch
        return Kept(what, end, epoch, duplicate, self._core.acknowledgements.is_immediate)

    async def acknowledge(self, placed: Kept) -> pipeline_pb2.StageReply:
        """The answer when the chunk is as safe as an acknowledged message."""
        if not placed.is_settled:
            await self._core.acknowledgements.safe(placed.end, placed.what, epoch=placed.epoch)
        return self.receipt(placed)

    def receipt(self, placed: Kept) -> pipeline_pb2.StageReply:
        """The answer of one that waits for nothing, or has waited."""
        return pipeline_pb2.StageReply(duplicate=placed.is_duplicate)

    async def publish(self, name: str, batch: int, chunks: Mapping[str, int]) -> tuple[int, bool]:
        """Make the decided attempts of a batch messages of their topics; ``chunks``: how many each has staged here.

        Answers how many records that were, and whether the batch had been published before.

        Raises:
            StagedDataGone: some of it is not here: nothing more was published.
            TopicNotFound, Forbidden, DiskFull: what is missing is published when the call is made again.
        """
        check_name("writer", name)
        check_count("keys", len(chunks), KEYS_MAX)
        async with self._publishing.setdefault(name, asyncio.Lock()):
            journal = self._core.writable()
            published = 0
            duplicate = batch <= self._table.published_batch(name)
            if not duplicate:
                found = await self._find_staged(name, batch, chunks)
                for each, staged in found:
                    for number in sorted(staged.chunks):
                        published += await self._publish_chunk(journal, each, staged.chunks[number])
                        await asyncio.sleep(0)
                self.records_published += published
            left = [key for key in chunks if StagedId(name, batch, key) in self._table.staged]
            if left or not duplicate:
                await self._record_gone(name, batch, left, published_ms=self._core.clock.wall_ms())
        await self._writers.acknowledged(name, f"publication of batch {batch}")
        return published, duplicate

    async def drop(self, name: str, batch: int, keys: Iterable[str]) -> None:
        """Forget staged data that its coordinator will not decide. Raises BrokerUnavailable: nothing was forgotten."""
        self._core.writable()
        by_coordinator: dict[str, list[str]] = {}
        async for key in in_turns(keys):
            staged = self._table.staged.get(StagedId(name, batch, key))
            if staged is not None:
                by_coordinator.setdefault(staged.coordinator, []).append(key)
        for coordinator, asked in by_coordinator.items():
            decided = await self._decided(coordinator, name, batch, asked)
            await self._forget_staged(name, batch, [key for key in asked if key not in decided])

    async def _forget_staged(self, name: str, batch: int, keys: Iterable[str]) -> None:
        """Forget data of which the coordinator has said that it will never be decided."""
        gone = []
        for key in keys:
            staged = self._table.staged.get(StagedId(name, batch, key))
            if staged is not None:
                gone.append(key)
                self.records_dropped += sum(chunk.count for chunk in staged.chunks.values())
        if gone:
            await self._record_gone(name, batch, gone)

    async def run(self) -> None:
        """Bring staged data that is older than its time to its end, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._core.events.journal is not None:
                await self.settle_expired(self._core.clock.due_ms())

    async def settle_expired(self, now_ms: int) -> None:
        """Ask the coordinators about data whose time is over, and do as they say; failures are tried again later."""
        now_s = time.monotonic()
        self._forget()
        overdue: dict[tuple[str, int, str], list[str]] = {}
        for each, staged in self._table.staged.items():
            if staged.expires_ms <= now_ms and self._not_before.get((each.writer, each.batch), 0.0) <= now_s:
                overdue.setdefault((each.writer, each.batch, staged.coordinator), []).append(each.key)
        for (writer, batch, coordinator), keys in overdue.items():
            self._not_before[writer, batch] = now_s + RETRY_S
            try:
                await self._settle(writer, batch, coordinator, keys)
                del self._not_before[writer, batch]
            except Exception as error:  # noqa: BLE001  one writer's trouble must not keep the others' data
                log.warning(
                    "staged data kept, tried again later writer=%s batch=%d keys=%d coordinator=%s error=%s",
                    *(writer, batch, len(keys), coordinator, error),
                )

    def _checked_header(self, header: pipeline_pb2.StageHeader, records: memoryview) -> tuple[StagedId, Staged]:
        each = StagedId(check_name("writer", header.writer), header.batch, check_name("key", header.key))
        keep_ms = header.keep_ms or KEEP_MS_DEFAULT
        if header.batch < 0 or not 0 <= header.chunk < CHUNK_MAX or header.count < 1:
            raise InvalidArgument(
                f"writer {header.writer}: batch {header.batch}, chunk {header.chunk} of {header.count} records: none "
                "may be negative, and there is at least one record"
            )
        if not KEEP_MS_MIN <= keep_ms <= KEEP_MS_MAX:
            raise InvalidArgument(f"keep_ms {keep_ms}: {KEEP_MS_MIN}..{KEEP_MS_MAX} are allowed")
        check_name("coordinator", header.coordinator)
        if len(records) > self._body_bytes_max:
            raise MessageTooLarge(
                f"chunk of {len(records)} bytes: at most {self._body_bytes_max} (maxMessageSize) can be staged, "
                "a message with its properties: make it smaller, or raise maxMessageSize"
            )
        return each, Staged(header.coordinator, self._core.clock.due_ms() + keep_ms)

    def _check_records(self, header: pipeline_pb2.StageHeader, records: memoryview, target: Target) -> None:
        """Refuse now what could not be published later, by the checks of the kernel that will place them."""
        mark = client_mark(records)
        if mark is None or mark.count != header.count:
            raise CorruptBatch(f"record 0: a staged chunk carries a producer mark with its count, {header.count}")
        status, bad, count = check_batch(
            np.frombuffer(records, np.uint8),
            np.frombuffer(target.topic.encode(), np.uint8),
            target.queues,
            self._host_bytes,
            self._body_bytes_max,
        )
        if status != PlaceStatus.OK:
            reason = PlaceStatus(status).name.lower().replace("_", " ")
            raise CorruptBatch(f"topic {target.topic}, record {bad} of the chunk: {reason}", index=int(bad))
        if count != header.count:
            raise CorruptBatch(f"the header of the chunk says {header.count} records, there are {count}", index=count)

    def _keep(
        self,
        journal: Journal,
        each: StagedId,
        staged: Staged,
        header: pipeline_pb2.StageHeader,
        records: memoryview,
    ) -> None:
        properties = {TAGS: STAGED, "writer": each.writer, "batch": str(each.batch), "key": each.key}
        crc = crc32(np.frombuffer(records, np.uint8), 0, len(records))  # three times as quick as zlib's
        wrapped = self._form.encode(records, encode_properties(properties), body_crc=crc)
        placed = journal.append(Target(names.STAGE_TOPIC, 1), wrapped)
        staged.chunks[header.chunk] = Chunk(placed.start, header.count, header.topic)
        self._writers.put(each.writer, STAGED, staged_body(each, staged, header.chunk))

    async def _find_staged(self, name: str, batch: int, chunks: Mapping[str, int]) -> list[tuple[StagedId, Staged]]:
        found = []
        async for key, count in in_turns(sorted(chunks.items())):
            each = StagedId(name, batch, key)
            staged = self._table.staged.get(each)
            if staged is None or len(staged.chunks) != count or max(staged.chunks, default=-1) != count - 1:
                held = 0 if staged is None else len(staged.chunks)
                raise StagedDataGone(
                    f"writer {name} batch {batch}: {held} of {count} chunks staged as {key} are at broker "
                    f"{self._broker_name}: nothing is published",
                    broker=self._broker_name,
                )
            found.append((each, staged))
        return found

    async def _publish_chunk(self, journal: Journal, each: StagedId, chunk: Chunk) -> int:
        if self._store.dispatched_offset <= chunk.position:
            await self._core.dispatcher.wait_dispatched(chunk.position + 1)
        if journal.is_over:  # what was published before, and where chunks are, may be other than it was
            raise NotMaster(f"broker {self._broker_name} has ceased to be master meanwhile: publish again")
        try:
            record = self._store.lookup.in_place(chunk.position)
        except MessageNotFound as error:
            raise StagedDataGone(
                f"writer {each.writer} batch {each.batch}: the log does not hold what was staged at {chunk.position} "
                "any more: it was deleted because the disk was full",
                broker=self._broker_name,
            ) from error
        records = body_of(record)
        mark = client_mark(records)
        assert mark is not None, "checked before it was staged"
        name = decode_record(records).topic
        topic = self._core.tables.topics.get(name)
        if topic is None and name != names.TIMER_TOPIC:
            raise TopicNotFound(
                f"topic {name} was deleted with decided messages staged for it: create it again, or they stay",
                topic=name,
            )
        target = Target(name, 1 if topic is None else max(topic.write_queues, 1))
        if self._reposter.is_done(target, mark):
            return 0  # by an attempt that did not come to its end
        if self._may_be_forgotten(target, mark, record):
            if await self._is_in_log(target, decode_record(records).queue_id, mark, chunk.position):
                return 0
            if journal.is_over:
                raise NotMaster(f"broker {self._broker_name} has ceased to be master meanwhile: publish again")
        self._core.writable()
        journal.append(target, _in_queues(records, target.queues), mark, count=mark.count, is_kept=True)
        return mark.count

    def _may_be_forgotten(self, target: Target, mark: ProducerMark, record: memoryview) -> bool:
        """True if the duplicate table may have forgotten since ``record`` was staged that it was published."""
        producers = self._core.tables.producers
        if producers.last_sequence(mark.producer_id, target.topic, mark.lane) is not None:
            return False
        return producers.has_forgotten(decode_record(record).store_timestamp_ms, self._core.clock.wall_ms())

    async def _is_in_log(self, target: Target, queue_id: int, mark: ProducerMark, position: int) -> bool:
        """True if the chunk of that mark, staged at ``position``, was published: the log behind it is looked through.

        ``queue_id``: of its first record, as it was staged. The topic may have had fewer queues in between, and then it
        went to the remainder. What ``retention.ms`` has taken out of the queue counts as long as the log has it.
        """
        store, prefix = self._store, mark_property(*mark)
        await self._core.dispatcher.wait_dispatched(store.end_offset)
        for each in (queue_id, *range((queue_id + 1) // 2)):  # no other one is a remainder
            start = store.removal.first_from(target.topic, each, position, below=True)
            end = store.reader.queue_range(target.topic, each)[1]
            async with contextlib.aclosing(records_of(store, target.topic, each, start, end, below=True)) as found:
                async for _, _, record in found:
                    if record.properties.startswith(prefix):
                        return True
        return False

    async def _record_gone(self, name: str, batch: int, keys: list[str], *, published_ms: int | None = None) -> None:
        """Several records, if there are very many keys: the first says already that the batch is published."""
        for start in range(0, max(len(keys), 1), TURN):
            if start:
                await asyncio.sleep(0)
            part = keys[start : start + TURN]
            self._writers.put(name, STAGED_GONE, gone_body(name, batch, part, published_ms=published_ms))

    async def _decided(self, coordinator: str, writer: str, batch: int, keys: list[str]) -> Keys:
        """What of the batch is decided and not finished; none of the other ``keys`` ever will be."""
        if coordinator == self._broker_name:
            return await self._writers.give_up(writer, batch, keys)
        return await self._ask_coordinator(coordinator, writer, batch, keys)

    async def _settle(self, writer: str, batch: int, coordinator: str, keys: list[str]) -> None:
        decided = await self._decided(coordinator, writer, batch, keys)
        here = {key: shards[self._broker_name] for key, shards in decided.items() if shards.get(self._broker_name)}
        rest = [key for key in keys if key not in here]
        if here and not here.keys().isdisjoint(keys):
            published, _ = await self.publish(writer, batch, here)
            log.info("decided batch published late writer=%s batch=%d records=%d", writer, batch, published)
        if rest:
            await self._forget_staged(writer, batch, rest)
            log.info("staged data dropped undecided writer=%s batch=%d keys=%d", writer, batch, len(rest))

    def _forget(self) -> None:
        known = self._writers.forget_unknown()
        for name in [name for name, lock in self._publishing.items() if name not in known and not lock.locked()]:
            del self._publishing[name]


def _in_queues(records: memoryview, queues: int) -> memoryview | np.ndarray[Any, np.dtype[np.uint8]]:
    """The records of a chunk, with others for queues that their topic has had when they were staged."""
    out = np.empty(len(records), np.uint8)
    return out if put_queues(np.frombuffer(records, np.uint8), queues, out) else records
