"""How a producer behaves. Every default has its reason behind it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.formats.trace import TRACE_TOPIC
from penstock.proto.errors import ConfigError
from penstock.runtime.conf import require
from penstock.runtime.nearest import hint

from .. import arguments

COMPRESSIONS = (None, "zlib", "lz4", "zstd")
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "batch_count_max": (1, 65_536),
    "batch_bytes_max": (1024, 4 * 1024 * 1024),
    "buffer_bytes": (64 * 1024, arguments.OFFSET_MAX),
    "send_retries": (0, arguments.LEVEL_MAX),
    "in_flight_per_broker": (1, 8),
    "body_bytes_max": (1, 16 * 1024 * 1024),
    "compress_bytes_min": (1, arguments.LEVEL_MAX),
    "topic_queues": (0, 65_536),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of one :class:`~penstock.client.Producer`; each is a keyword argument of it as well."""

    linger_ms: float = 5.0
    """How long ``produce`` may hold a message back so that others join its batch. A waiting send never lingers."""

    batch_count_max: int = 4000
    batch_bytes_max: int = 512 * 1024
    """A batch is closed at either limit. Half a MiB is where throughput stops growing with size."""

    buffer_bytes: int = 64 * 1024 * 1024
    """Records accepted and not yet acknowledged; one that a future waits for counts 2 KiB besides, which is what its
    Python objects take. Above it, sends wait and then raise ``BufferFull``."""

    send_timeout_s: float = 3.0
    """``send``, ``send_batch``, ``send_async``: all tries together (RocketMQ's ``sendMsgTimeout``)."""

    send_retries: int = 2
    """Tries after the first one that a broker refused without storing (RocketMQ's ``retryTimesWhenSendFailed``).
    A broker that cannot be reached, one that is not master or has too few replicas for the moment, and an outcome that
    is unknown are tried until the time-out."""

    delivery_timeout_s: float = 30.0
    """``produce``, ``produce_many``: how long delivery is tried. Longer than a broker's restart takes."""

    in_flight_per_broker: int = 8
    """Batches under way at one broker, each in a lane of its own. One per queue is the most that is used."""

    body_bytes_max: int = BODY_BYTES_MAX
    """Largest body, before compression; brokers refuse more than their ``maxMessageSize``."""

    compression: Literal["zlib", "lz4", "zstd"] | None = None
    """Off: at 385 MB/s the network is seldom the limit, and zlib costs 20 times what sending does."""

    compress_bytes_min: int = 4096
    """Bodies from this size on are compressed, where ``compression`` is on."""

    auto_create_topics: bool = True
    """Ask the brokers to create an unknown topic; they refuse unless ``autoCreateTopicEnable`` allows it."""

    topic_queues: int = 0
    """Queues per broker of a topic created like that; 0: the broker's ``defaultTopicQueueNums``."""

    retry_another_shard_on_unknown: bool = False
    """When a broker group died with a batch that it may have stored or not: send the batch to another group after a
    second. Off, because the batch is there twice when the group comes back with it; on, a death delays
    messages by a second instead of until the group is back or the time is up."""

    trace: bool | float = False
    """Tell the outcome of every message, or of a share of them (0..1), in the trace topic (RocketMQ's
    ``enableMsgTrace``)."""

    trace_topic: str = TRACE_TOPIC
    """The topic of the traces (RocketMQ's ``customizedTraceTopic``)."""

    telemetry: Any = False
    """True, or a tracer of OpenTelemetry: a span of each message, whose context travels with it."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.type == "int":
                arguments.whole(each.name, value, *_RANGES[each.name])
            elif each.type == "bool":
                arguments.flag(each.name, value)
        # As Python's own numbers: a clock and NumPy's float32 add up to one that is inexact.
        for name in ("send_timeout_s", "delivery_timeout_s"):
            object.__setattr__(self, name, arguments.seconds(name, getattr(self, name), math.inf))
        linger_ms = arguments.number("linger_ms", self.linger_ms, 30_000, "ms", has_zero=True)
        object.__setattr__(self, "linger_ms", linger_ms)
        require(self.compression in COMPRESSIONS, f"compression must be one of {COMPRESSIONS}", self.compression)

    def replaced(self, settings: dict[str, Any]) -> ProducerConfig:
        """This configuration with ``settings`` in place of the same fields.

        Raises:
            ConfigError: an unknown name, with the nearest known one, or a value out of range.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in names:
                raise ConfigError(f"unknown producer setting {name!r}{hint(name, names)}; known: {', '.join(names)}")
        try:
            return dataclasses.replace(self, **settings)
        except TypeError as error:
            raise ConfigError(f"producer settings {settings!r}: {error}") from error


def config_of(config: object, on_delivery: object) -> ProducerConfig:
    """``config``, or the defaults for None; both are what a producer is made with. Raises ConfigError: they are not."""
    require(config is None or isinstance(config, ProducerConfig), "config must be a ProducerConfig", repr(config))
    require(on_delivery is None or callable(on_delivery), "on_delivery must be callable", repr(on_delivery))
    return config if isinstance(config, ProducerConfig) else ProducerConfig()
