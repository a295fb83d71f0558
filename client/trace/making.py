"""Tracers for producers and consumers that want one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.formats.trace import TRACE_GROUP
from penstock.proto.names import check_topic
from penstock.runtime.security.credentials import Credentials, Tls

from .sampling import Sample, checked_share
from .tracer import BUFFER_BYTES, Tracer, TraceSender


def tracer_of(
    trace: bool | float, topic: str, nameservers: str | Sequence[str], tls: Tls | None, credentials: Credentials | None
) -> Tracer | None:
    """A tracer with a producer of its own, for which nothing of the client has to wait; None where none is wanted.

    Raises:
        ConfigError, InvalidName: no share of messages, or no topic.
    """
    share = checked_share(trace)
    check_topic(topic)
    if not share:
        return None

    def sender() -> TraceSender:
        from ..producer import Producer

        return Producer(
            nameservers, group=TRACE_GROUP, tls=tls, credentials=credentials, buffer_bytes=BUFFER_BYTES, topic_queues=1
        )

    return Tracer(Sample(share), topic, sender)
