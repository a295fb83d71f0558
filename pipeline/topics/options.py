"""The options of ``format("penstock")``, checked before anything else happens.

Names follow Spark's Kafka connector where it has one. Spark gives option names in lower case, so they are compared
without case and told as the documentation writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.cluster import parse_addresses
from penstock.proto import names
from penstock.proto.errors import ConfigError, PenstockError
from penstock.runtime.nearest import hint
from penstock.runtime.security.credentials import SecurityFiles

from ..columns.schema import PROPERTIES_TYPES
from ..options import (
    REQUIRED,
    TABLE_PROPERTIES,
    TEXT,
    Given,
    Option,
    Options,
    camel_case,
    choice,
    in_sql,
    instant,
    into_sql,
    setting,
    size,
    whole,
)
from . import kafka
from .offsets import Queue, parse_user_offsets
from .waiting import waiting_s

GUARANTEES: Final = ("at-least-once", "idempotent", "exactly-once")
COMPRESSIONS: Final = ("none", "zstd", "lz4", "zlib")

_NAME_SERVER: Final = Option("nameServer", "the nameservers, as host:port;host:port", TEXT, REQUIRED)
_SECURITY: Final = {
    "tlsCaFile": ("tls_ca_file", "file with the authorities' certificates, for TLS"),
    "tlsCertFile": ("tls_cert_file", "file with the own certificate"),
    "tlsKeyFile": ("tls_key_file", "file with its key"),
    "tlsServerName": ("tls_server_name", "the name in the servers' certificates"),
    "credentialsFile": ("credentials_file", "file with the user's accessKey and secretKey"),
}
"""Options, the fields of :class:`SecurityFiles` that they fill, and what they mean. Each process reads the files where
it runs."""
SECURITY: Final = tuple(Option(name, meaning, TEXT) for name, (_, meaning) in _SECURITY.items())
_SPARKS_OWN: Final = ("path", "checkpointLocation", "queryName", "__penstock", *TABLE_PROPERTIES)
"""Options that Spark adds for itself."""
FETCH_BYTES: Final = 8 << 20
"""Asked of a broker at once; an answer is a record batch. A read is a tenth faster with it than with half of it."""
_TIME_MS_MAX = 1 << 42  # of the year 2109
_PRODUCER_ID_MAX = 160  # of the 200 of a writer's name, in which a query's id may follow
_TIME = instant(0, _TIME_MS_MAX)
_COUNT = whole(1, 1 << 62)
_TASKS = whole(1, 1 << 20)
_BATCH = whole(0, 1 << 38)


def security_given(given: Given) -> SecurityFiles:
    """What secures the connections: as the options say, or without any, as the driver's environment does.

    Raises ConfigError: TLS without ``tlsCaFile``.
    """
    files = {field: given[name] for name, (field, _) in _SECURITY.items() if name in given}
    return SecurityFiles(**files) if files else SecurityFiles.from_environment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where to begin, or to end: ``at`` is earliest, latest, group, offsets, timestamp or timestamps."""

    at: str
    option: str = ""
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read wants. Picklable: it travels to planner and executors."""

    name_server: str
    security: SecurityFiles
    streaming: bool
    topics: tuple[str, ...]
    pattern: str
    assigned: frozenset[Queue]
    starting: Position
    ending: Position
    error_without_match: bool
    max_offsets_per_trigger: int | None = setting("messages in one batch of a stream at most", None, kind=_COUNT)
    max_bytes_per_trigger: int | None = setting("the same in bytes of the log", None, kind=size(1, 1 << 62))
    min_offsets_per_trigger: int | None = setting("a stream waits for so many messages", None, kind=_COUNT)
    max_trigger_delay_ms: int = setting("and not for longer than this", 900_000, kind=whole(0, 1 << 40))
    target_bytes_per_partition: int | None = setting(
        "of the log in one task; by default about eight tasks of 16 to 128 MiB", None, kind=size(1024, 1 << 40)
    )
    min_partitions: int | None = setting("tasks of a read at least", None, kind=_TASKS)
    max_partitions: int | None = setting("tasks of a read at most", None, kind=_TASKS)
    sub_expression: str = setting("tags, as 'paid || refunded'", "*")
    filter_sql: str = setting("a condition on properties, which brokers evaluate", "")
    group: str = setting(
        "consumer group: where to begin with startingOffsets=group, and what progress is committed as", ""
    )
    fail_on_data_loss: bool = setting("false: go on where messages are gone, and count them", True)
    fetch_max_bytes: int = setting("asked of a broker at once", FETCH_BYTES, kind=size(1024, 16 << 20))
    fetch_timeout_ms: int = setting("of one such call", 10_000, kind=whole(100, 3_600_000))
    retry_timeout_ms: int | None = setting(
        "how long brokers that are away are waited for; by default 60000, of streams without end",
        None,
        name="driverRetryTimeoutMs",
        kind=whole(0, 86_400_000),
    )
    batch_rows: int = setting("rows handed to Spark at once", 65_536, kind=whole(1, 1_000_000))
    properties: str = setting("a map, raw as one text, or none", "map", kind=choice(*PROPERTIES_TYPES))
    decompress: bool = setting("false: bodies as they are stored", True)
    system_topics: bool = setting("let patterns match internal topics too", False, name="includeSystemTopics")

    @property
    def timeout_s(self) -> float:
        """How long brokers that are away are waited for."""
        return waiting_s(self.retry_timeout_ms, streaming=self.streaming)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write wants. Picklable: it travels to the executors."""

    name_server: str
    security: SecurityFiles
    streaming: bool
    topic: str = setting("the topic, for rows without a column topic", "")
    dead_letter_topic: str = setting(
        "takes the rows that cannot be messages, each with the reason, instead of failing", ""
    )
    guarantee: str = setting("what is promised", "idempotent", name="deliveryGuarantee", kind=choice(*GUARANTEES))
    producer_id: str = setting("names a batch job, so that it can be repeated", "")
    skip_batch: int | None = setting(
        "micro-batch that was refused as changed: what is there of it stands for it", None, kind=_BATCH
    )
    rewrite_batch: int | None = setting("the same: it is written again, behind what is there of it", None, kind=_BATCH)
    batch_bytes: int = setting("of one chunk", 1 << 20, kind=size(1024, 4 << 20))
    in_flight: int = setting("chunks under way of one task", 4, name="maxInFlight", kind=whole(1, 64))
    send_timeout_ms: int = setting("of one call", 10_000, kind=whole(100, 3_600_000))
    retry_timeout_ms: int | None = setting(
        "how long a chunk is tried; by default 60000, of streams and in foreachBatch without end",
        None,
        name="sendRetryTimeoutMs",
        kind=whole(0, 86_400_000),
    )
    compression: str = setting("of bodies", "none", kind=choice(*COMPRESSIONS))
    transaction_timeout_ms: int = setting(
        "exactly-once: after it, brokers resolve what nobody has decided", 900_000, kind=whole(1_000, 604_800_000)
    )

    @property
    def timeout_s(self) -> float:
        """How long one thing is tried at brokers, all tries together."""
        return waiting_s(self.retry_timeout_ms, streaming=self.streaming) + self.send_timeout_ms / 1000


SOURCE: Final = Options(
    "penstock",
    SourceOptions,
    (
        _NAME_SERVER,
        *SECURITY,
        Option("subscribe", "topics, with commas", TEXT, (), several=True),
        Option("subscribePattern", "topics by a regular expression, also those that are made later", TEXT),
        Option("assign", 'queues, as {"topic": {"broker": [0, 1]}}', TEXT),
        Option(
            "startingOffsets", "earliest (of streams: latest), latest, group, or JSON by topic, broker, queue", TEXT
        ),
        Option("startingTimestamp", "the first messages stored at that time or later", _TIME),
        Option("startingOffsetsByTimestamp", "the same for each queue, as JSON", TEXT),
        Option(
            "startingOffsetsByTimestampStrategy",
            "where a queue has no message that new: begin at its end, or fail",
            choice("error", "latest"),
            "latest",
        ),
        Option("endingOffsets", "latest, or JSON; of batch reads", TEXT),
        Option("endingTimestamp", "up to what was stored before that time; of batch reads", _TIME),
        Option("endingOffsetsByTimestamp", "the same for each queue, as JSON", TEXT),
    ),
    _SPARKS_OWN,
    kafka.OPTIONS,
    camel_case,
)
SINK: Final = Options(
    "penstock", SinkOptions, (_NAME_SERVER, *SECURITY), _SPARKS_OWN, kafka.OPTIONS | {"subscribe": "topic"}, camel_case
)


def properties_form(options: Mapping[str, str]) -> str:
    """The option ``properties`` alone: the schema depends on it, also where the others are not complete."""
    (option,) = (option for option in SOURCE.all if option.name == "properties")
    given = {name: value for name, value in dict(options).items() if name.lower() == "properties"}
    return str(Options("penstock", None, (option,)).read(given)["properties"])


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read. Raises ConfigError: which option, which value, and what would be right."""
    if _is_without_own(options):
        raise ConfigError(f"penstock: nameServer and subscribe are missing. {in_sql('penstock', 'nameServer …')}")
    given = SOURCE.read(options)
    server = ";".join(parse_addresses(given["nameServer"]))
    chosen = given.at_most_one("subscribe", "subscribePattern", "assign")
    if chosen is None:
        path = next((value for name, value in options.items() if name.lower() == "path" and value), "")
        meant = f": load() takes no topics, say subscribe={path}" if path else ""
        raise ConfigError(f"which topics? Give one of the options subscribe, subscribePattern, assign{meant}")
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in given:
            kind, other = ("stream", "batch") if streaming else ("batch", "stream")
            raise ConfigError(f"option {name} is for {other} reads: this is a {kind} read")
    given.at_most_one("maxOffsetsPerTrigger", "maxBytesPerTrigger")
    for low, high in (("minOffsetsPerTrigger", "maxOffsetsPerTrigger"), ("minPartitions", "maxPartitions")):
        if low in given and high in given and given[low] > given[high]:
            raise ConfigError(f"option {low} {given[low]} is more than {high} {given[high]}")
    starting = _position(given, "starting", "latest" if streaming else "earliest")
    group = given["group"]
    if starting.at == "group" and not group:
        raise ConfigError("option startingOffsets is group: the option group must name it")
    if group:
        names.check_group(group)
    if re.search(r"(?<!\|)\|(?!\|)", given["subExpression"]):
        raise ConfigError(f"option subExpression is {given['subExpression']!r:.80}: write || between tags")
    if given["filterSql"] and given["subExpression"] != "*":
        raise ConfigError("options subExpression and filterSql: give only one")
    return SourceOptions(
        name_server=server,
        security=security_given(given),
        streaming=streaming,
        topics=_topics(given) if chosen == "subscribe" else (),
        pattern=_pattern(given) if chosen == "subscribePattern" else "",
        assigned=_assigned(given) if chosen == "assign" else frozenset(),
        starting=starting,
        ending=_position(given, "ending", "latest"),
        error_without_match=given["startingOffsetsByTimestampStrategy"] == "error",
        **given.fields(),
    )


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a write. Raises ConfigError: which option, which value, and what would be right."""
    if _is_without_own(options):
        raise ConfigError(f"penstock: nameServer is missing. {into_sql('nameServer=…, topic=…')}")
    given = SINK.read(options)
    for name in ("topic", "deadLetterTopic"):
        if given[name]:
            writable_topic(given[name], f"option {name}")
    producer_id, guarantee = given["producerId"], given["deliveryGuarantee"]
    if not (producer_id.isascii() and (producer_id.isprintable()) and len(producer_id) <= _PRODUCER_ID_MAX):
        raise ConfigError(
            f"option producerId: {producer_id!r:.80} is not at most {_PRODUCER_ID_MAX} printable ASCII characters"
        )
    if producer_id and streaming:
        raise ConfigError("option producerId is for batch writes and foreachBatch: a stream is known by its query's id")
    known = ("idempotent", "exactly-once")
    given.at_most_one("skipBatch", "rewriteBatch")
    for name, wanted in (
        ("producerId", known),
        ("skipBatch", known),
        ("rewriteBatch", known),
        ("transactionTimeoutMs", ("exactly-once",)),
    ):
        if name in given and guarantee not in wanted:
            raise ConfigError(f"option {name} is for deliveryGuarantee={' or '.join(wanted)}: this is {guarantee}")
    server = ";".join(parse_addresses(given["nameServer"]))
    return SinkOptions(name_server=server, security=security_given(given), streaming=streaming, **given.fields())


def _is_without_own(options: Mapping[str, str]) -> bool:
    """True if nobody gave an option, as where Spark's catalog keeps them."""
    return not {name.lower() for name in options} - {name.lower() for name in _SPARKS_OWN}


def writable_topic(topic: str, where: str) -> str:
    """``topic`` if clients may write to it. Raises ConfigError."""
    try:
        names.check_topic(topic)
    except PenstockError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    if names.is_system_topic(topic):
        raise ConfigError(f"{where}: topic {topic} is internal: clients may not write to it")
    return topic


_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelayMs")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _topics(given: Given) -> tuple[str, ...]:
    topics: tuple[str, ...] = given["subscribe"]
    for topic in topics:
        try:
            names.check_topic(topic)
        except PenstockError as error:
            raise ConfigError(f"option subscribe: {error.message}") from error
    return tuple(dict.fromkeys(topics))


def _pattern(given: Given) -> str:
    pattern = str(given["subscribePattern"])
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"option subscribePattern: {pattern!r} is no regular expression: {error}") from error
    return pattern


def _assigned(given: Given) -> frozenset[Queue]:
    """``{"topic": {"broker": [0, 1]}}``"""
    shape = '{"topic": {"broker": [0, 1]}}'
    text = given["assign"]
    try:
        document: Any = json.loads(text)
        found = {
            Queue(topic, broker, queue_id)
            for topic, brokers in document.items()
            for broker, queues in brokers.items()
            for queue_id in _list_of_ids(queues)
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"option assign: {text[:120]!r} is not of the form {shape}") from error
    if not found:
        raise ConfigError(f"option assign: names no queue; expected {shape}")
    return frozenset(found)


def _list_of_ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise TypeError(value)
    return value


def _position(given: Given, which: str, default: str) -> Position:
    """``startingOffsets`` and its siblings, or ``endingOffsets`` and its."""
    option = f"{which}Offsets"
    chosen = given.at_most_one(option, f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    if chosen is None:
        return Position(at=default, option=option)
    if chosen == f"{which}Timestamp":
        return Position(at="timestamp", option=chosen, timestamp_ms=given[chosen])
    text = given[chosen]
    if chosen == f"{which}OffsetsByTimestamp":
        return Position(at="timestamps", option=chosen, offsets=parse_user_offsets(chosen, text, _TIME))
    words = ("earliest", "latest", "group") if which == "starting" else ("latest",)
    if text.lower() in words:
        return Position(at=text.lower(), option=option)
    if not text.startswith("{"):
        raise ConfigError(f"option {option}: {text!r:.80}{hint(text, words)}: one of {', '.join(words)}, or JSON")
    given_offsets = parse_user_offsets(option, text)
    if which == "ending" and -2 in given_offsets.values():
        raise ConfigError(f"option {option}: -2 (earliest) is no end")
    return Position(at="offsets", option=option, offsets=given_offsets)
