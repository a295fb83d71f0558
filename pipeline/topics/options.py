"""The options of ``format("penstock")``, checked before anything else happens.

Names follow Spark's Kafka connector where it has one. Spark gives option names in lower case, so they are compared
without case and told as the documentation writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.connections import parse_addresses
from penstock.proto import names
from penstock.proto.credentials import SecurityFiles
from penstock.proto.errors import ConfigError, PenstockError

from ..schema import PROPERTIES_TYPES, nearest
from .offsets import Queue, parse_user_offsets

GUARANTEES: Final = ("at-least-once", "idempotent", "exactly-once")
COMPRESSIONS: Final = ("none", "zstd", "lz4", "zlib")

SECURITY: Final = {
    "tlsCaFile": "tls_ca_file",  # authorities of the servers' certificates, PEM: turns TLS on
    "tlsCertFile": "tls_cert_file",  # the certificate to show
    "tlsKeyFile": "tls_key_file",  # its key
    "tlsServerName": "tls_server_name",  # the name in the servers' certificates
    "credentialsFile": "credentials_file",  # the user's accessKey and secretKey
}
"""Options, and the fields of :class:`SecurityFiles` that they fill. Each process reads the files where it runs."""
# What stands behind a name here stands in the reference of options.
SOURCE: Final = (
    "nameServer",  # nameservers, host:port;host:port
    *SECURITY,
    "subscribe",  # topics, with commas
    "subscribePattern",  # topics by a regular expression, also those that are made later
    "assign",  # queues: {"topic": {"broker": [0, 1]}}
    "startingOffsets",  # earliest (of streams: latest), latest, group, or JSON by topic, broker and queue
    "startingTimestamp",  # ms: the first messages stored at that time or later
    "startingOffsetsByTimestamp",  # the same for each queue, as JSON
    "startingOffsetsByTimestampStrategy",  # where no message is that new: fail, or begin at the end
    "endingOffsets",  # latest, or JSON; of batch reads
    "endingTimestamp",  # ms; of batch reads
    "endingOffsetsByTimestamp",  # the same for each queue, as JSON
    "maxOffsetsPerTrigger",  # messages in one batch of a stream at most
    "maxBytesPerTrigger",  # the same in bytes of the log
    "minOffsetsPerTrigger",  # a stream waits for so many
    "maxTriggerDelayMs",  # and not for longer than this
    "targetBytesPerPartition",  # of the log in one task; default: about eight tasks of 16 to 128 MiB
    "minPartitions",  # tasks of a read at least
    "maxPartitions",  # tasks of a read at most
    "subExpression",  # tags, as 'paid || refunded'
    "filterSql",  # a condition on properties, which brokers evaluate
    "group",  # consumer group: where to begin with startingOffsets=group, and what progress is committed as
    "failOnDataLoss",  # false: go on where messages are gone, and count them
    "fetchMaxBytes",  # asked of a broker at once
    "fetchTimeoutMs",  # of one such call
    "driverRetryTimeoutMs",  # how long the driver asks for routes and offsets
    "batchRows",  # rows handed to Spark at once
    "properties",  # map, raw (one text), or none
    "decompress",  # false: bodies as they are stored
    "includeSystemTopics",  # let patterns match internal topics too
)
SINK: Final = (
    "nameServer",  # nameservers, host:port;host:port
    *SECURITY,
    "topic",  # the topic, for rows without a column topic
    "deliveryGuarantee",  # see the guide
    "producerId",  # names a batch job, so that it can be repeated
    "batchBytes",  # of one chunk
    "maxInFlight",  # chunks under way of one task
    "sendTimeoutMs",  # of one call
    "sendRetryTimeoutMs",  # how long a chunk is tried
    "compression",  # of bodies
    "transactionTimeoutMs",  # exactly-once: after it, brokers resolve what nobody has decided
)
SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "__penstock"})
"""Options that Spark adds for itself."""
FETCH_BYTES: Final = 8 << 20
"""Asked of a broker at once; an answer is a record batch. A read is a tenth faster with it than with half of it."""


class Given:
    """The options as the user gave them, read by name and kind; each error names option and value."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        """
        Raises:
            ConfigError: an option that nobody knows, or that cannot be kept.
        """
        by_case = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in dict(options).items():
            if name.lower() in by_case:
                self._values[by_case[name.lower()]] = value
            elif name.lower() not in SPARKS_OWN:
                raise ConfigError(
                    f"penstock: unknown option {name!r}{nearest(name, known)}; there are {', '.join(known)}"
                )

    def text(self, name: str) -> str | None:
        """The value without blanks around it, None when it is not given or empty."""
        return (self._values.get(name) or "").strip() or None

    def number(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number of ``low..high``; of bytes, as the option's name says, it may end in k, m or g."""
        value = self.text(name)
        if value is None:
            return default
        unit = "([kmg]?)b?" if "Bytes" in name else "()"
        found = re.fullmatch(rf"(-?[0-9]{{1,19}})\s*{unit}", value.lower())
        number = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else low - 1
        if not low <= number <= high:
            raise ConfigError(f"option {name}: {value!r} is no whole number of {low}..{high}")
        return number

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """The same with a default."""
        found = self.number(name, default, low, high)
        assert found is not None
        return found

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"option {name}: {value!r} is neither true nor false")
        return value == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """One of ``allowed``."""
        value = self.text(name) or default
        if value not in allowed:
            raise ConfigError(f"option {name}: {value!r}{nearest(value, allowed)}: one of {', '.join(allowed)}")
        return value

    def at_most_one(self, *wanted: str) -> str | None:
        """The one of these options that is given. Raises ConfigError when there are two."""
        given = [name for name in wanted if self.text(name) is not None]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)}: give only one of {', '.join(wanted)}")
        return given[0] if given else None

    def name_server(self) -> str:
        """The nameservers' addresses."""
        value = self.text("nameServer")
        if value is None:
            raise ConfigError("option nameServer is missing: the nameservers, as host:port;host:port")
        return ";".join(parse_addresses(value))

    def security(self) -> SecurityFiles:
        """What secures the connections: as the options say, or without any, as the driver's environment does.

        Raises:
            ConfigError: TLS without ``tlsCaFile``.
        """
        given = {field: self.text(name) or "" for name, field in SECURITY.items()}
        return SecurityFiles(**given) if any(given.values()) else SecurityFiles.from_environment()


def security_options(files: SecurityFiles) -> dict[str, str]:
    """``files`` as options."""
    given = {name: str(getattr(files, field)) for name, field in SECURITY.items()}
    return {name: value for name, value in given.items() if value}


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
    security: SecurityFiles = field(default_factory=SecurityFiles)
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: frozenset[Queue] = frozenset()
    starting: Position
    ending: Position
    error_without_match: bool = True
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 900_000
    target_bytes: int | None = None  # as planning decides
    min_partitions: int | None = None
    max_partitions: int | None = None
    sub_expression: str = "*"
    filter_sql: str = ""
    group: str = ""
    fail_on_data_loss: bool = True
    fetch_bytes: int = FETCH_BYTES
    fetch_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000
    batch_rows: int = 10_000
    properties: str = "map"
    decompress: bool = True
    system_topics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write wants. Picklable: it travels to the executors."""

    name_server: str
    security: SecurityFiles = field(default_factory=SecurityFiles)
    topic: str = ""
    guarantee: str = "idempotent"
    producer_id: str = ""
    batch_bytes: int = 1 << 20
    in_flight: int = 4
    send_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000
    compression: str = "none"
    transaction_timeout_ms: int = 900_000


def properties_form(options: Mapping[str, str]) -> str:
    """The option ``properties`` alone: the schema depends on it, also where the others are not complete."""
    given = {name: value for name, value in dict(options).items() if name.lower() == "properties"}
    return Given(given, ("properties",)).choice("properties", "map", tuple(PROPERTIES_TYPES))


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read.

    Raises:
        ConfigError: which option, which value, and what would be right.
    """
    given = Given(options, SOURCE)
    server = given.name_server()
    chosen = given.at_most_one("subscribe", "subscribePattern", "assign")
    if chosen is None:
        raise ConfigError("which topics? Give one of the options subscribe, subscribePattern, assign")
    _check_kind(given, streaming=streaming)
    max_offsets = given.number("maxOffsetsPerTrigger", None, 1, 1 << 62)
    max_bytes = given.number("maxBytesPerTrigger", None, 1, 1 << 62)
    given.at_most_one("maxOffsetsPerTrigger", "maxBytesPerTrigger")
    min_offsets = given.number("minOffsetsPerTrigger", None, 1, 1 << 62)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise ConfigError(f"option minOffsetsPerTrigger {min_offsets} is more than maxOffsetsPerTrigger {max_offsets}")
    least, most = given.number("minPartitions", None, 1, 1 << 20), given.number("maxPartitions", None, 1, 1 << 20)
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minPartitions {least} is more than maxPartitions {most}")
    group = given.text("group") or ""
    starting = _position(given, "starting", "latest" if streaming else "earliest")
    if starting.at == "group" and not group:
        raise ConfigError("option startingOffsets is group: the option group must name it")
    expression, sql = given.text("subExpression") or "*", given.text("filterSql") or ""
    if sql and expression != "*":
        raise ConfigError("options subExpression and filterSql: give only one")
    return SourceOptions(
        name_server=server,
        security=given.security(),
        topics=_topics(given) if chosen == "subscribe" else (),
        pattern=_pattern(given) if chosen == "subscribePattern" else "",
        assigned=_assigned(given) if chosen == "assign" else frozenset(),
        starting=starting,
        ending=_position(given, "ending", "latest"),
        error_without_match=given.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest")) == "error",
        max_offsets=max_offsets,
        max_bytes=max_bytes,
        min_offsets=min_offsets,
        max_trigger_delay_ms=given.integer("maxTriggerDelayMs", 900_000, 0, 1 << 40),
        target_bytes=given.number("targetBytesPerPartition", None, 1024, 1 << 40),
        min_partitions=least,
        max_partitions=most,
        sub_expression=expression,
        filter_sql=sql,
        group=names.check_group(group) if group else "",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        fetch_bytes=given.integer("fetchMaxBytes", FETCH_BYTES, 1024, 16 << 20),
        fetch_timeout_ms=given.integer("fetchTimeoutMs", 10_000, 100, 3_600_000),
        retry_timeout_ms=given.integer("driverRetryTimeoutMs", 60_000, 0, 86_400_000),
        batch_rows=given.integer("batchRows", 10_000, 1, 1_000_000),
        properties=given.choice("properties", "map", tuple(PROPERTIES_TYPES)),
        decompress=given.flag("decompress", True),
        system_topics=given.flag("includeSystemTopics", False),
    )


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a write.

    Raises:
        ConfigError: which option, which value, and what would be right.
    """
    given = Given(options, SINK)
    topic = given.text("topic") or ""
    if topic:
        writable_topic(topic, "option topic")
    producer_id = given.text("producerId") or ""
    if producer_id and not (
        producer_id.isascii() and producer_id.isprintable() and len(producer_id) <= _PRODUCER_ID_MAX
    ):
        raise ConfigError(
            f"option producerId: {producer_id!r:.80} is not at most {_PRODUCER_ID_MAX} printable ASCII characters"
        )
    if producer_id and streaming:
        raise ConfigError("option producerId is for batch writes and foreachBatch: a stream is known by its query's id")
    guarantee = given.choice("deliveryGuarantee", "idempotent", GUARANTEES)
    for name, wanted in (("producerId", ("idempotent", "exactly-once")), ("transactionTimeoutMs", ("exactly-once",))):
        if given.text(name) is not None and guarantee not in wanted:
            raise ConfigError(f"option {name} is for deliveryGuarantee={' or '.join(wanted)}: this is {guarantee}")
    return SinkOptions(
        name_server=given.name_server(),
        security=given.security(),
        topic=topic,
        guarantee=guarantee,
        producer_id=producer_id,
        batch_bytes=given.integer("batchBytes", 1 << 20, 1024, 4 << 20),
        in_flight=given.integer("maxInFlight", 4, 1, 64),
        send_timeout_ms=given.integer("sendTimeoutMs", 10_000, 100, 3_600_000),
        retry_timeout_ms=given.integer("sendRetryTimeoutMs", 60_000, 0, 86_400_000),
        compression=given.choice("compression", "none", COMPRESSIONS),
        transaction_timeout_ms=given.integer("transactionTimeoutMs", 900_000, 1_000, 604_800_000),
    )


def writable_topic(topic: str, where: str) -> str:
    """``topic`` if clients may write to it. Raises ConfigError."""
    try:
        names.check_topic(topic)
    except PenstockError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    if names.is_system_topic(topic):
        raise ConfigError(f"{where}: topic {topic} is internal: clients may not write to it")
    return topic


_TIME_MS_MAX = 1 << 62
_PRODUCER_ID_MAX = 160  # of the 200 of a writer's name, in which a query's id may follow
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelayMs")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _check_kind(given: Given, *, streaming: bool) -> None:
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if given.text(name) is not None:
            kind, other = ("stream", "batch") if streaming else ("batch", "stream")
            raise ConfigError(f"option {name} is for {other} reads: this is a {kind} read")


def _topics(given: Given) -> tuple[str, ...]:
    topics = [topic.strip() for topic in (given.text("subscribe") or "").split(",")]
    for topic in topics:
        try:
            names.check_topic(topic)
        except PenstockError as error:
            raise ConfigError(f"option subscribe: {error.message}") from error
    return tuple(dict.fromkeys(topics))


def _pattern(given: Given) -> str:
    pattern = given.text("subscribePattern") or ""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"option subscribePattern: {pattern!r} is no regular expression: {error}") from error
    return pattern


def _assigned(given: Given) -> frozenset[Queue]:
    """``{"topic": {"broker": [0, 1]}}``"""
    import json

    shape = '{"topic": {"broker": [0, 1]}}'
    text = given.text("assign") or ""
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
    text = given.text(chosen) or ""
    if chosen == f"{which}Timestamp":
        return Position(at="timestamp", option=chosen, timestamp_ms=given.integer(chosen, 0, 0, _TIME_MS_MAX))
    if chosen == f"{which}OffsetsByTimestamp":
        times = parse_user_offsets(chosen, text)
        for queue, time_ms in times.items():
            if not 0 <= time_ms <= _TIME_MS_MAX:
                raise ConfigError(f"option {chosen}: queue {queue}: {time_ms} is no time of 0..{_TIME_MS_MAX} ms")
        return Position(at="timestamps", option=chosen, offsets=times)
    words = ("earliest", "latest", "group") if which == "starting" else ("latest",)
    if text in words:
        return Position(at=text, option=option)
    if not text.startswith("{"):
        raise ConfigError(f"option {option}: {text!r:.80}{nearest(text, words)}: one of {', '.join(words)}, or JSON")
    given_offsets = parse_user_offsets(option, text)
    if which == "ending" and -2 in given_offsets.values():
        raise ConfigError(f"option {option}: -2 (earliest) is no end")
    return Position(at="offsets", option=option, offsets=given_offsets)
