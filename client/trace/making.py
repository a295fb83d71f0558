"""Tracers for producers and consumers that want one; what traces is loaded only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.formats.trace import TRACE_GROUP
from penstock.proto.names import check_topic
from penstock.runtime.security.credentials import Credentials, Tls

from .sampling import Sample, checked_share

if TYPE_CHECKING:
    from ..produce.config import ProducerConfig
    from .consuming import ConsumeTrace
    from .sending import SendTrace
    from .tracer import Tracer, TraceSender


def send_trace(
    config: ProducerConfig,
    group: str,
    nameservers: str | Sequence[str],
    tls: Tls | None,
    credentials: Credentials | None,
) -> SendTrace | None:
    """What tells of a producer's messages; None where its configuration wants no trace.

    Raises:
        ConfigError, InvalidName: no share of messages, or no topic.
    """
    tracer = _tracer(config.trace, config.trace_topic, nameservers, tls, credentials)
    if tracer is None:
        return None
    from .sending import SendTrace

    return SendTrace(tracer, group)


def consume_trace(
    trace: bool | float,
    topic: str,
    group: str,
    nameservers: str | Sequence[str],
    tls: Tls | None,
    credentials: Credentials | None,
) -> ConsumeTrace | None:
    """What tells of a consumer's messages; None without a trace.

    Raises:
        ConfigError, InvalidName: no share of messages, or no topic.
    """
    tracer = _tracer(trace, topic, nameservers, tls, credentials)
    if tracer is None:
        return None
    from .consuming import ConsumeTrace

    return ConsumeTrace(tracer, group)


def _tracer(
    trace: bool | float, topic: str, nameservers: str | Sequence[str], tls: Tls | None, credentials: Credentials | None
) -> Tracer | None:
    """A tracer with a producer of its own: nothing of the client has to wait for it."""
    share = checked_share(trace)
    check_topic(topic)
    if not share:
        return None
    from .tracer import BUFFER_BYTES, Tracer

    def sender() -> TraceSender:
        from ..producer import Producer

        return Producer(
            nameservers,
            group=TRACE_GROUP,
            tls=tls,
            credentials=credentials,
            buffer_bytes=BUFFER_BYTES,
            topic_queues=1,
        )

    return Tracer(Sample(share), topic, sender)
