"""One task of the sink: from its partition's record batches to acknowledged chunks."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from penstock.client.cluster import WriteQueues, reworded
from penstock.formats.destination import Destination, Later, Ordinary
from penstock.proto.errors import ChangedBatch, ConfigError, InvalidArgument, InvalidName, TopicNotFound
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.proto.wire.pipeline_pb2 import LanesRequest, WriterState

from ..cluster import Cluster
from ..options import SinkOptions, writable_topic
from ..waiting import T, patiently
from .chunks import Chunk, LaneKey, Mark, Sender, StageTo, cut, divided
from .content import Content, as_they_came, running
from .encoding import Rows, compressed
from .refused import REFUSALS, without_refused
from .routing import CONTENT, SETTINGS, Layout, Piece, Settings, by_destination, by_topic, layout_of, rebatched
from .sink import Identity, Written
from .writers import WriterCalls, hash_64

log = logging.getLogger(__name__)

_CHANGED = (
    "{error}. The batch has come again with other rows (a shuffle whose order is free, a random function{or_twice}), "
    "and brokers keep the first ones. To go on with this checkpoint, start once with the sink's option "
    "skipBatch={batch} (what is there stands for the batch: whole if the crash came behind its last write, else the "
    "rest of it is lost) or rewriteBatch={batch} (it is written again: nothing is lost, what is there of it is "
    "doubled); deliveryGuarantee=exactly-once beside either keeps it from happening again"
)
_OR_TWICE = ", or another write in the same foreachBatch, which needs a producerId of its own"
_CHANGED_JOB = (
    "{error}. A producerId stands for the same rows in the same partitions (no shuffle whose order is free, no random "
    "functions): else use deliveryGuarantee=exactly-once, or a producerId of their own for other data"
)
_DEAD_LETTERS = "the option deadLetterTopic names a topic for rows that cannot be messages"
_TOO_LATE = "{where}; leave out rows whose column deliverAt is later, or raise the brokers' timerMaxDelaySec"
SEQUENCE_BATCH_BITS = 24
LANES_PER_PARTITION = 64

Encoded = tuple[Layout, Destination, Iterable[Piece]]
"""Rows of one destination: their topic's layout, and what goes to which target."""


def lane_of(partition: int, lane: int) -> int:
    """The producer's lane for a target of a partition."""
    return partition * LANES_PER_PARTITION + lane


def sequence_of(batch: int, chunk: int) -> int:
    """The number of a chunk in its lane: greater than those of all batches before."""
    return batch << SEQUENCE_BATCH_BITS | chunk


def _where(identity: Identity) -> str:
    """Whose row an error is about."""
    return f"in partition {identity.partition}" + (f" of batch {identity.batch}" if identity.is_micro_batch else "")


def _was_idempotent(state: WriterState) -> bool:
    """True if the writer has decided nothing, and written without; else a refused attempt has left the settings."""
    return SETTINGS in state.layout and state.decided_batch < 0


class Task:
    """Writes one partition once."""

    def __init__(self, cluster: Cluster, options: SinkOptions, identity: Identity) -> None:
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self._calls = WriterCalls(cluster.calls, identity.writer, identity.run, timeout_s=options.timeout_s)
        self._layouts: dict[str, Layout] = {}
        self._chunk_numbers: dict[LaneKey, int] = {}
        self._digests: dict[LaneKey, int] = {}
        self._producer_id = hash_64(f"{options.guarantee}:{identity.writer}")
        self._settings = Settings(options.batch_bytes, options.in_flight, options.compression)
        self._content = Content() if options.producer_id else None
        self._refused = 0  # rows, that are dead letters now
        self._refused_topics: dict[str, str] = {}  # topics of a column, and why they take nothing
        self._write_queues: dict[str, dict[str, int]] = {}  # topic -> what each broker group has now
        self._noted: set[str] = set()  # topics of which the content knows when they were created
        self._turn = identity.partition + identity.batch  # so that small batches reach every target in turn

    def run(self, batches: Iterable[Any]) -> Written:
        """Send, or stage, every row.

        Raises PenstockError: a row that cannot be a message, or a broker that does not take it in time.
        """
        options, identity = self._options, self._identity
        told = Written(writer=identity.writer, run=identity.run, batch=identity.batch, content=self._content)
        stage_to = None
        if options.guarantee != "at-least-once":
            is_known_now = options.topic and options.guarantee == "idempotent"
            state = self._open({options.topic: self._of_route(options.topic, layout_of)} if is_known_now else {})
            told.coordinator, told.run_before = state.coordinator, self._calls.run_before
            is_once = options.guarantee == "exactly-once"
            is_decided = is_once and state.decided_batch >= identity.batch
            # An exactly-once writer has nothing of an undecided batch, but what it took over from an idempotent one.
            is_skipped = identity.batch == options.skip_batch and (not is_once or _was_idempotent(state))
            if is_decided or is_skipped:
                self._pass_over(batches)
                told.is_there = is_once or self._has_some()
                return told
            if options.guarantee == "idempotent" and identity.batch == options.rewrite_batch:
                # Its numbers go on behind those of the first attempt, so that no chunk is taken for a repetition.
                self._chunk_numbers = self._held()
            if options.guarantee == "exactly-once":
                told.key = uuid.uuid4().hex
                stage_to = StageTo(
                    identity.writer, identity.batch, told.key, state.coordinator, options.transaction_timeout_ms
                )
        sender = Sender(
            self._cluster.calls,
            send_timeout_ms=options.send_timeout_ms,
            timeout_s=options.timeout_s,
            stage_to=stage_to,
            writer=identity.writer,
            run=identity.run,
        )
        try:
            self._send_all(sender, batches)
            sender.finish()
            if options.guarantee == "idempotent":
                self._require_no_more()
        except ChangedBatch as error:
            sender.cancel()
            raise self._changed(error) from error
        except InvalidArgument as error:
            sender.cancel()
            if "index" in error.details:  # of brokers that allow less than others: what is sent has passed all else
                raise reworded(error, _TOO_LATE.format(where=_where(self._identity))) from error
            raise
        except BaseException:
            sender.cancel()
            raise
        told.refused = self._refused
        told.chunks, told.records = sender.staged, sender.records
        return told

    def _pass_over(self, batches: Iterable[Any]) -> None:
        """Take the input, as Spark wants, and no more."""
        for batch in batches:
            for topic in self._count(batch):
                try:
                    self._note(topic)
                except (InvalidName, TopicNotFound):  # of rows that were refused
                    if not self._options.dead_letter_topic:
                        raise

    def _count(self, batch: Any) -> list[str]:
        """Count the rows as they came, also those that cannot be messages; their topics."""
        topics = []
        if self._content is not None:
            for topic, bodies in as_they_came(batch, self._options.topic):
                self._content.add(topic, bodies)
                topics.append(topic)
        return topics

    def _note(self, topic: str) -> None:
        """Note when a topic that takes messages was created."""
        if self._content is not None and topic not in self._noted:
            self._noted.add(topic)
            self._content.add_created(self._cluster.created(topic, self._options.send_timeout_ms / 1000))

    def _send_all(self, sender: Sender, batches: Iterable[Any]) -> None:
        topic, letters_topic = self._options.topic, self._options.dead_letter_topic
        for batch in rebatched(batches, self._settings.rows, self._settings.bytes):
            turn = self._turn
            self._count(batch)
            try:
                parts = self._parts(batch, topic)
            except REFUSALS:
                kept, letters = without_refused(batch, lambda some: self._parts(some, topic), topic)
                self._turn = turn
                parts = [*self._parts(kept, topic), *self._parts(letters, letters_topic)]
                self._refused += letters.num_rows
            self._send_parts(sender, parts)

    def _parts(self, batch: Any, topic: str) -> Iterable[Encoded]:
        """As :meth:`_encoded`; with ``deadLetterTopic`` all of it is encoded at once, else nothing as yet."""
        parts = self._encoded(batch, topic)
        return list(parts) if self._options.dead_letter_topic else parts

    def _encoded(self, batch: Any, topic: str) -> Iterator[Encoded]:
        """The rows by topic and destination, encoded and with their queues.

        Raises:
            InvalidArgument, MessageTooLarge: a row that cannot be a message, or with ``deadLetterTopic`` has no topic.
        """
        with self._telling_whose():
            for name, part in by_topic(batch, topic):
                layout = self._layouts.get(name) or self._new_layout(name)
                for destination, some in by_destination(part, name):
                    rows = Rows(some, self._turn)
                    pieces = self._pieces(layout, rows, self._turn)
                    yield layout, destination, list(pieces) if self._options.dead_letter_topic else pieces
                self._turn += 1

    def _pieces(self, layout: Layout, rows: Rows, turn: int) -> Iterator[Piece]:
        with self._telling_whose():
            yield from layout.split(rows, turn)

    @contextlib.contextmanager
    def _telling_whose(self) -> Iterator[None]:
        """Errors about rows say where these are, and the remedy, unless that is in use."""
        try:
            yield
        except REFUSALS as error:
            if self._options.dead_letter_topic:
                raise
            raise reworded(error, f"{_where(self._identity)}; {_DEAD_LETTERS}") from error

    def _send_parts(self, sender: Sender, parts: Iterable[Encoded]) -> None:
        for layout, destination, pieces in parts:
            self._note(layout.topic)
            for piece in pieces:
                moved = self._in_queues(layout, piece)
                # By the kept queues, which are the same whenever the batch comes again, it is cut and known.
                kept = piece.placed(destination)
                small = cut(kept, self._settings.batch_bytes, len(layout.topic))
                sent = small if moved is piece else divided(moved.placed(destination), small)
                for known, now in zip(small, sent, strict=True):
                    self._send(sender, layout, known, now, destination)

    def _in_queues(self, layout: Layout, piece: Piece) -> Piece:
        """The piece, with others for queues that were removed since brokers keep the layout: nobody would read them."""
        if self._options.guarantee != "idempotent":
            return piece  # the layout is of now
        topic = layout.topic
        if topic not in self._write_queues:
            self._write_queues[topic] = dict(self._of_route(topic, WriteQueues.of).shards)
        count = self._write_queues[topic].get(layout.targets[piece.target].broker, 0)
        if not count or int(piece.queue_ids.max()) < count:
            return piece
        return piece._replace(queue_ids=piece.queue_ids % np.int32(count))

    def _send(self, sender: Sender, layout: Layout, known: Piece, piece: Piece, destination: Destination) -> None:
        """Send a piece, which brokers know as ``known``: the same rows in the queues of the kept layout."""
        target = layout.targets[piece.target]
        key = (destination, target.broker, target.lane)
        number = self._chunk_numbers.get(key, 0)
        self._chunk_numbers[key] = number + 1
        mark = None
        if self._options.guarantee != "at-least-once":
            lane = lane_of(self._identity.partition, target.lane)
            producer_id = destination.producer(self._producer_id)
            digest = 0
            if self._options.guarantee == "idempotent":
                digest = self._digests[key] = running(self._digests.get(key, 0), known)
            mark = Mark(producer_id, lane, sequence_of(self._identity.batch, number), digest)
        # Compressed behind the cut: which row is in which chunk may not depend on how well bodies are packed.
        bodies, sys_flag = compressed(piece.bodies, self._settings.compression)
        sender.send(key, Chunk(destination, target.broker, bodies, piece.properties, piece.queue_ids, sys_flag, mark))

    def has_some(self) -> bool:
        """True if the brokers hold something of this batch from this partition."""
        self._open({})
        return self._has_some()

    def _has_some(self) -> bool:
        return any(self._held().values())

    def require_nothing(self) -> None:
        """Raises ChangedBatch if brokers hold chunks of this partition, which the batch no longer has."""
        self._open({})
        try:
            self._require_no_more()
        except ChangedBatch as error:
            raise self._changed(error) from error

    def _changed(self, error: ChangedBatch) -> ChangedBatch:
        """The brokers' refusal, with whose batch it is and the ways on."""
        who = self._identity
        if not who.is_micro_batch:
            return ChangedBatch(f"producerId {who.writer}: " + _CHANGED_JOB.format(error=error.message))
        or_twice = _OR_TWICE if self._options.producer_id else ""
        text = _CHANGED.format(error=error.message, batch=who.batch, or_twice=or_twice)
        return ChangedBatch(f"query {who.writer}, batch {who.batch}, partition {who.partition}: {text}")

    def _require_no_more(self) -> None:
        """Raise ChangedBatch if a lane holds more chunks of this batch than came now: rows of its first coming."""
        batch, partition = self._identity.batch, self._identity.partition
        for key, held in self._held().items():
            sent = self._chunk_numbers.get(key, 0)
            if held > sent:
                raise ChangedBatch(
                    f"topic {key[0].topic}: broker group {key[1]} holds {held} chunks of batch {batch} from "
                    f"partition {partition}, and now it has {sent}: it is not the same batch"
                )

    def _held(self) -> dict[LaneKey, int]:
        """How many chunks of this batch the brokers hold in each lane of this partition."""
        asked: dict[str, list[LaneKey]] = {}
        for layout in self._layouts.values():
            for target in layout.targets:
                for destination in (Ordinary(layout.topic), Later(layout.topic)):
                    asked.setdefault(target.broker, []).append((destination, target.broker, target.lane))
        found: dict[LaneKey, int] = {}
        if not asked:
            return found
        with ThreadPoolExecutor(min(16, len(asked))) as pool:
            calling = {broker: pool.submit(self._last_sequences, broker, keys) for broker, keys in asked.items()}
            for broker, call in calling.items():
                for key, last in zip(asked[broker], call.result(), strict=True):
                    is_here = last >= 0 and last >> SEQUENCE_BATCH_BITS == self._identity.batch
                    found[key] = (last & (1 << SEQUENCE_BATCH_BITS) - 1) + 1 if is_here else 0
        return found

    def _last_sequences(self, broker: str, keys: list[LaneKey]) -> list[int]:
        request = LanesRequest()
        for destination, _, lane in keys:
            producer_id = destination.producer(self._producer_id)
            number = lane_of(self._identity.partition, lane)
            request.lanes.add(topic=destination.stored_topic, producer_id=producer_id, lane=number)
        return list(self._calls.at_master(broker, "QueryLanes", request).last_sequences)

    def _new_layout(self, topic: str) -> Layout:
        if topic in self._refused_topics:
            raise InvalidArgument(self._refused_topics[topic])
        try:
            writable_topic(topic, "column topic")
            text = self._of_route(topic, layout_of)
        except (ConfigError, TopicNotFound) as error:
            if not self._options.dead_letter_topic or topic == self._options.dead_letter_topic:
                raise
            # Brokers know a repeated batch by this text: it may not depend on which other topics there are.
            is_gone = isinstance(error, TopicNotFound)
            told = f"topic {topic} does not exist at any living broker: create it first" if is_gone else error.message
            self._refused_topics[topic] = told
            raise InvalidArgument(told) from error
        if self._options.guarantee == "idempotent":
            self._open({topic: text})
        else:
            self._layouts[topic] = Layout(topic, text, self._settings.lanes)
        return self._layouts[topic]

    def _of_route(self, topic: str, told: Callable[[TopicRoute], T]) -> T:
        """What the topic's route tells now; a cluster that cannot tell, or takes nothing, is waited for."""
        who = f"a task that writes to topic {topic}"
        return patiently(lambda _: told(self._cluster.route(topic)), self._options.timeout_s, who)

    def _open(self, wanted: dict[str, str]) -> WriterState:
        """Open the writer. An idempotent one with the layouts of these topics; what the brokers keep of it counts.

        The others need none: they may go around a shard that is not there.
        """
        if self._options.guarantee == "exactly-once":
            state = self._calls.open({})
            is_taken_over = self._identity.batch in (self._options.skip_batch, self._options.rewrite_batch)
            is_other = _was_idempotent(state) and not is_taken_over
            self._require_same_guarantee("idempotent", is_other=is_other)
            return state
        state = self._calls.open({SETTINGS: str(self._settings), **wanted})
        self._require_same_guarantee("exactly-once", is_other=state.decided_batch >= 0)
        kept = Settings.parse(state.layout[SETTINGS])
        if kept != self._settings:
            log.info("the settings of its first run stay writer=%s kept=%s", self._identity.writer, kept)
        self._settings = kept
        texts = {topic: text for topic, text in state.layout.items() if topic not in (SETTINGS, CONTENT)}
        self._layouts = {topic: Layout(topic, text, kept.lanes) for topic, text in texts.items()}
        return state

    def _require_same_guarantee(self, other: str, *, is_other: bool) -> None:
        if is_other:
            batch, wanted = self._identity.batch, self._options.guarantee
            is_micro_batch = self._identity.is_micro_batch
            anew = "checkpoint or producerId" if is_micro_batch else "producerId"
            taken_over = (
                f", or add skipBatch={batch} (if batch {batch} is there already) or rewriteBatch={batch} (what is "
                "there of it is doubled) for this one start"
            )
            raise ConfigError(
                f"penstock sink: writer {self._identity.writer} has written with deliveryGuarantee={other}, by which "
                f"alone its last batch is known if it comes again: go on with that, or begin {wanted} "
                f"with a new {anew}{taken_over if is_micro_batch and wanted == 'exactly-once' else ''}"
            )
