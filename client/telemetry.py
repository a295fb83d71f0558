"""Spans of OpenTelemetry, of each send and each processing, and the context that a message carries between them.

Nothing of OpenTelemetry is loaded unless a client is told ``telemetry=True``, or given a tracer. The context travels as
the properties ``traceparent`` and ``tracestate``, or whatever the global propagator writes.
Source: OpenTelemetry's semantic conventions for messaging, W3C Trace Context.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.formats.record.properties import PROPERTIES_ROOM, encode_properties
from penstock.proto.errors import ConfigError
from penstock.runtime.conf import require

if TYPE_CHECKING:
    from penstock.formats.columns import Column

    from .message import MessageView
    from .produce.drafts import Draft
    from .produce.parts import Part

SYSTEM: Final = "penstock"
LINKS_MAX: Final = 128
"""More links of one span are dropped by OpenTelemetry itself, by default."""


class Telemetry:
    """The spans of one client. Thread-safe."""

    def __init__(self, wanted: Any, group: str) -> None:
        """``wanted``: True for the tracer of the global provider, or a tracer.

        Raises:
            ConfigError: no tracer, or OpenTelemetry is not installed.
        """
        try:
            # By name: an installation without it must pass the type checks too.
            self._trace: Any = importlib.import_module("opentelemetry.trace")
            self._propagate: Any = importlib.import_module("opentelemetry.propagate")
        except ModuleNotFoundError as error:
            raise ConfigError("telemetry needs OpenTelemetry: pip install 'penstock-mq[otel]'") from error
        self._tracer = self._trace.get_tracer(SYSTEM) if wanted is True else wanted
        is_tracer = callable(getattr(self._tracer, "start_as_current_span", None))
        require(is_tracer, "telemetry must be True, False, or a tracer of OpenTelemetry", wanted)
        self._group = group

    # What producers ask for.

    def sent(self, drafts: Sequence[Draft], make: Callable[[], Part]) -> Part:
        """The part that ``make`` makes of ``drafts``, which carry the context of a span each.

        A span ends with the message's future; without one, at once.
        """
        spans = [self._begin("send", draft.topic, 1) for draft in drafts]
        for draft, span in zip(drafts, spans, strict=True):
            draft.properties = {**(draft.properties or {}), **self._carried(span)}
        try:
            part = make()
        except BaseException as error:
            for span in spans:
                self._end(span, error)
            raise
        for at, span in enumerate(spans):
            if part.futures:
                span.set_attribute("messaging.message.id", part.message_ids[at])
                part.futures[at].add_done_callback(partial(self._on_sent, span))
            else:
                span.end()
        return part

    def created(self, topic: str, encoded: bytes | None) -> bytes:
        """The property string of a message that nobody waits for, with the context of a span that has ended."""
        span = self._begin("create", topic, 1)
        span.end()
        own = encode_properties(self._carried(span))
        known = encoded or b""
        return known + own if len(known) + len(own) <= PROPERTIES_ROOM else known

    def created_many(self, topic: str, count: int, properties: Column | None) -> Column | None:
        """The same of many messages, which share one span."""
        from penstock.formats.columns import Column, with_property

        span = self._begin("create", topic, count)
        span.end()
        carried = self._carried(span)
        longest = int(properties.lengths.max()) if properties is not None else 0
        if longest + len(encode_properties(carried)) > PROPERTIES_ROOM:
            return properties  # better without a context than not sent
        for name, value in carried.items():
            properties = with_property(properties, name, Column.repeated(value.encode(), count))
        return properties

    def _begin(self, operation: str, topic: str, count: int) -> Any:
        attributes = self._attributes(operation, topic, count)
        return self._tracer.start_span(
            f"{operation} {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )

    def _carried(self, span: Any) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        return carrier

    def _on_sent(self, span: Any, sent: Future[Any]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if error is None and not sent.cancelled():
            receipt = sent.result()
            span.set_attribute("messaging.destination.partition.id", f"{receipt.broker_name}:{receipt.queue_id}")
        elif error is None:
            span.set_attribute("error.type", "cancelled")
        self._end(span, error)

    # What consumers ask for.

    def listener(self, listener: Callable[[Any], Any], is_success: Callable[[object], bool]) -> Callable[[Any], Any]:
        """A listener that does as ``listener``, inside of a span; a single message's context is its parent."""

        def processed(item: Any) -> Any:
            messages = item if isinstance(item, list) else [item]
            contexts, links = self._origins(messages)
            with self._tracer.start_as_current_span(
                f"process {messages[0].topic}",
                context=contexts[0] if len(messages) == 1 else None,
                kind=self._trace.SpanKind.CONSUMER,
                links=links,
                attributes=self._attributes_of("process", messages),
            ) as span:
                outcome = listener(item)
                if not is_success(outcome):
                    self._fail(span, "retry_later", "the listener has not taken it")
                return outcome

        return processed

    def received(self, messages: Sequence[MessageView], began_ns: int) -> None:
        """A poll that began then has returned these."""
        if messages:
            _, links = self._origins(messages)
            self._tracer.start_span(
                f"receive {messages[0].topic}",
                kind=self._trace.SpanKind.CLIENT,
                links=links,
                attributes=self._attributes_of("receive", messages),
                start_time=began_ns,
            ).end()

    def _origins(self, messages: Sequence[MessageView]) -> tuple[list[Any], list[Any]]:
        """The contexts that the first messages carry, and links to those that are any."""
        contexts = [self._propagate.extract(message.all_properties) for message in messages[:LINKS_MAX]]
        spans = [self._trace.get_current_span(context).get_span_context() for context in contexts]
        return contexts, [self._trace.Link(span) for span in spans if span.is_valid]

    def _attributes_of(self, operation: str, messages: Sequence[MessageView]) -> dict[str, Any]:
        first = messages[0]
        attributes = self._attributes(operation, first.topic, len(messages))
        attributes["messaging.consumer.group.name"] = self._group
        attributes["messaging.destination.partition.id"] = f"{first.broker_name}:{first.queue_id}"
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.message_id
        return attributes

    # Of both.

    def _attributes(self, operation: str, topic: str, count: int) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
        }
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        return attributes

    def _end(self, span: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(span, type(error).__name__, str(error))
        span.end()

    def _fail(self, span: Any, kind: str, text: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))


def telemetry_of(wanted: Any, group: str) -> Telemetry | None:
    """The spans of a client, or None where it wants none. Raises as :class:`Telemetry`."""
    return None if wanted is False or wanted is None else Telemetry(wanted, group)
