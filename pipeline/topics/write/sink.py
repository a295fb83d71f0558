"""Writing to topics: a task sends its partition, the driver decides.

| Guarantee | A task | The driver's commit |
|---|---|---|
| at-least-once | appends | nothing |
| idempotent | appends under numbers that a repeated batch gets again, so that brokers know it | nothing |
| exactly-once | stages under a random key; nothing at all if its batch is decided | decides which keys count |

A batch that comes again with other rows is refused (``ChangedBatch``). ``skipBatch`` and ``rewriteBatch`` move the
query on by this one batch, and let an exactly-once writer take over from an idempotent one at it.

A decided batch is published at once by the same commit.

A batch job with a ``producerId`` may be repeated. Whether it is the same job is known by its content, which the brokers
keep with the decision, or beside the layout of an idempotent writer: a job of that name with other messages is refused,
and so is one whose topic was made anew.
In ``foreachBatch`` the name is completed by the query's, so that another checkpoint is another writer, and the batch is
the query's. A batch that comes again may have other rows, if it is exactly-once; but two writes of one name are not one
batch that comes again, and the second one is refused. It is known by its run, which begins with what is the same within
one attempt of the query at the batch.

Source and names of what tells a task who it is: Spark's local properties, pinned by a test.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.proto.errors import ChangedBatch, ConfigError, PenstockError

from ...spark.workers import BATCH_ID, QUERY_ID, keep_loaded
from ..options import SinkOptions
from .content import Content
from .encoding import check_sink_schema
from .routing import CONTENT

if TYPE_CHECKING:
    from .task import Task

log = logging.getLogger(__name__)

RUN_ID = "spark.jobGroup.id"
_NOT_KNOWN = "unknown"
_ALONE = 0
"""The batch of a job that is no micro-batch."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver. ``chunks``: broker group -> number of staged chunks."""

    writer: str = ""
    run: str = ""
    run_before: str = ""  # which had the writer
    batch: int = 0
    coordinator: str = ""
    key: str = ""
    chunks: dict[str, int] = field(default_factory=dict)
    records: int = 0
    refused: int = 0
    is_there: bool = False  # of a batch that is passed over: the brokers have some of it
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: the same ``writer`` and ``batch`` whenever the batch is repeated, another ``run`` for each start."""

    writer: str
    run: str
    batch: int
    partition: int
    is_micro_batch: bool = True


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Made anew by Spark for planning and for each commit, so it knows nothing but its options."""

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        check_sink_schema(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition of a micro-batch."""
        context = TaskContext.get()
        query, batch, run = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        if not query or batch is None:
            raise ConfigError(f"penstock sink: Spark does not say {QUERY_ID} and {BATCH_ID}: unknown Spark version")
        identity = Identity(query, run or "unknown", int(batch), context.partitionId())
        return _task(self._options, identity).run(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Decide and publish the batch; safe to repeat.

        Raises ChangedBatch: the batch has come again with fewer partitions than the brokers hold.
        Raises ConfigError: it is to be skipped, and the brokers have nothing of it.
        """
        _require_all_partitions(self._options, messages, batchId)
        _require_some(self._options, messages, batchId)
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Drop what was staged and is not decided."""
        _abort(self._options, messages, batchId)


class TopicBatchWriter(DataSourceArrowWriter):
    """One batch job: made once, and copied to its tasks."""

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        check_sink_schema(schema, options.topic)
        self._options = options
        self._run = uuid.uuid4().hex
        self._writer = options.producer_id or f"batch-{self._run}"

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        partition = context.partitionId()
        is_micro_batch = bool(query) and batch is not None  # inside foreachBatch
        if is_micro_batch and not self._options.producer_id and self._options.guarantee != "at-least-once":
            raise ConfigError(
                f"penstock sink: foreachBatch repeats a batch after a failure, and {self._options.guarantee} has no "
                "name to know it by: give each write in it a producerId of its own, or say "
                "deliveryGuarantee=at-least-once"
            )
        options = replace(self._options, streaming=is_micro_batch)  # a query waits for shards that are away
        if is_micro_batch and self._options.producer_id:
            attempt = _attempt(context.getLocalProperty(RUN_ID) or "", batch)
            identity = Identity(f"{self._writer}/{query}", f"{attempt}-{self._run}", int(batch), partition)
        else:
            given = {"skipBatch": self._options.skip_batch, "rewriteBatch": self._options.rewrite_batch}
            for name in [name for name, batch in given.items() if batch is not None]:
                raise ConfigError(
                    f"option {name} is for streams, and for foreachBatch with a producerId: give other data a "
                    "producerId of their own"
                )
            identity = Identity(self._writer, self._run, _ALONE, partition, is_micro_batch=False)
        return _task(options, identity).run(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Decide and publish all of it.

        Raises ChangedBatch: a job of this ``producerId`` has written something else, or the same before a topic was
        made anew; this one has published nothing, or, if it is idempotent, its rows are there as far as they were no
        repetition.
        Raises ConfigError: a micro-batch is to be skipped, and the brokers have nothing of it.
        """
        told = [message for message in messages if message is not None]
        if not told:
            return
        _require_some(self._options, messages, told[0].batch)
        content = Content.total(each.content for each in told if each.content is not None)
        is_alone = told[0].writer == self._writer
        if self._options.producer_id and is_alone and not content.records:
            return  # undecided: what comes under this name later is no repetition
        attempt = told[0].run.partition("-")[0]
        known = (str(content) if is_alone else f"{content};{attempt}") if self._options.producer_id else ""
        if self._options.guarantee == "exactly-once":
            known = _commit(self._options, messages, told[0].batch, known) or known
        elif self._options.producer_id and is_alone:  # of micro-batches, brokers compare the sequences alone
            known = _calls(self._options, told[0]).open({CONTENT: known}).layout[CONTENT]
        if self._options.producer_id and content.is_same(known) and content.is_anew(known):
            raise ChangedBatch(
                f"producerId {self._options.producer_id!r} has written these {content.records} messages before their "
                "topic was deleted and made anew: brokers take them for a repetition, and they are not there; write "
                "them with another producerId"
            )
        # A micro-batch may come again with other rows. But in one attempt at it a name stands for one write.
        is_second = known.split(";")[3:] == [attempt] or any(
            message.run_before.partition("-")[0] == message.run.partition("-")[0] for message in told
        )
        is_compared = self._options.producer_id and (is_alone or attempt == _NOT_KNOWN or is_second)
        if is_compared and not content.is_same(known):
            raise ChangedBatch(
                f"producerId {self._options.producer_id!r} has written {known.partition(';')[0]} messages already, and "
                f"these {content.records} are not the same: give other data a producerId of their own"
            )

    def abort(self, messages: list[Any]) -> None:
        """Drop what was staged and is not decided."""
        _abort(self._options, messages, next((message.batch for message in messages if message is not None), _ALONE))


def _attempt(run: str, batch: str) -> str:
    """What is the same within one attempt of a query at a batch; not known under a job group of the user's own.

    Spark's own group is the id of the query's run.
    """
    try:
        return uuid.uuid5(uuid.UUID(run), batch).hex
    except ValueError:
        return _NOT_KNOWN


def _task(options: SinkOptions, identity: Identity) -> Task:
    from ..cluster import cluster
    from .task import Task

    keep_loaded()
    return Task(cluster(options.name_server, options.security), options, identity)


def _calls(options: SinkOptions, message: Written) -> Any:
    from ..cluster import cluster
    from .writers import WriterCalls

    calls = cluster(options.name_server, options.security).calls
    return WriterCalls(calls, message.writer, message.run, timeout_s=options.timeout_s)


def _require_all_partitions(options: SinkOptions, messages: Sequence[Written | None], batch: int) -> None:
    """Tasks see what is missing of their own partitions; of the others, the first that is not there tells."""
    told = next((message for message in messages if message is not None), None)
    if options.guarantee != "idempotent" or told is None or batch in (options.skip_batch, options.rewrite_batch):
        return
    _task(options, Identity(told.writer, told.run, batch, len(messages))).require_nothing()


def _require_some(options: SinkOptions, messages: Sequence[Written | None], batch: int) -> None:
    """What is to be skipped has been refused before, so that brokers have some of it: else it is another query's."""
    told = [message for message in messages if message is not None]
    if batch != options.skip_batch or options.guarantee != "idempotent" or not told:
        return
    if any(message.is_there for message in told):
        return
    if not _task(options, Identity(told[0].writer, told[0].run, batch, len(messages))).has_some():
        raise ConfigError(
            f"option skipBatch={batch}: brokers have nothing of batch {batch} of query {told[0].writer}, so nothing "
            "stands for it: remove the option, and the batch is written"
        )


def _commit(options: SinkOptions, messages: Sequence[Written | None], batch: int, content: str = "") -> str:
    """Decide and publish; the content of the batch that is decided now, empty where that is not known."""
    told = [message for message in messages if message is not None]
    refused = sum(message.refused for message in told)
    if refused:
        topic = options.dead_letter_topic
        log.warning("%d rows of batch %d cannot be messages: they are in topic %s", refused, batch, topic)
    if options.guarantee != "exactly-once" or not told:
        return ""
    coordinators = sorted({message.coordinator for message in told})
    if len(coordinators) > 1:
        raise ConfigError(
            f"writer {told[0].writer}: its tasks found different coordinators, {coordinators}: start again"
        )
    calls = _calls(options, told[0])
    keys = {message.key: message.chunks for message in told if message.chunks}
    state = calls.decide(coordinators[0], batch, keys, content)
    if state.decided_batch != batch:
        return ""
    records = calls.complete(coordinators[0], state)
    log.info("batch published writer=%s batch=%d records=%d", told[0].writer, batch, records)
    return str(state.content)


def _abort(options: SinkOptions, messages: Sequence[Written | None], batch: int) -> None:
    told = [message for message in messages if message is not None and message.chunks]
    if options.guarantee != "exactly-once" or not told:
        return
    try:
        _calls(options, told[0]).abort(told[0].coordinator, batch, {each.key: each.chunks for each in told})
    except PenstockError as error:  # what nobody decides expires by itself
        log.warning("abort not told to the brokers writer=%s batch=%d error=%s", told[0].writer, batch, error)
