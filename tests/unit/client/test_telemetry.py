"""Spans of sends and processing, and the context that messages carry between them."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock.client import (
    BufferFull,
    ConfigError,
    ConsumeResult,
    InvalidArgument,
    Message,
    Producer,
    PullConsumer,
    TransactionProducer,
)
from penstock.client.aio import AsyncProducer, AsyncPushConsumer
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import PROPERTIES_ROOM, decode_properties
from tests.support.client.push_consumers import QUICK, Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import eventually, wait_until

PARENT = "traceparent"


class Spans:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        def found() -> list[ReadableSpan]:
            return [span for span in self._exporter.get_finished_spans() if span.name == name]

        wait_until(lambda: len(found()) >= count, what=f"{count} spans {name}")
        assert len(found()) == count
        return found()

    def __len__(self) -> int:
        return len(self._exporter.get_finished_spans())


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 1}) as made:
        made.retry_soon()
        yield made


@pytest.fixture
def spans() -> Spans:
    return Spans()


def context(span: ReadableSpan) -> Any:
    found = span.get_span_context()
    assert found is not None
    return found


def carried(span: ReadableSpan) -> str:
    """The traceparent that names the span."""
    own = context(span)
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"


def stored(cluster: RunningCluster, topic: str = "orders") -> list[dict[str, str]]:
    records = cluster.brokers["broker-a"].records(topic).values()
    return [decode_properties(decode_record(record).properties) for record in records]


def test_a_send_and_its_processing_are_one_trace(cluster: RunningCluster, spans: Spans) -> None:
    inside: list[int] = []

    def then(message: Any) -> Any:
        inside.append(otel.get_current_span().get_span_context().span_id)
        return None if message.reconsume_times else ConsumeResult.RETRY_LATER

    with (
        Producer(cluster.namesrv, group="makers", telemetry=spans.tracer) as producer,
        spans.tracer.start_as_current_span("checkout") as checkout,
    ):
        receipt = producer.send("orders", b"x", tag="a", properties={"region": "eu"})
    with consumer(cluster, Seen(then), telemetry=spans.tracer):
        failed, taken = spans.named("process orders", 2)
    (sent,) = spans.named("send orders")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert sent.parent.span_id == checkout.get_span_context().span_id
    assert sent.attributes is not None
    assert dict(sent.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a:0",
        "messaging.message.id": receipt.message_id,
    }
    (properties,) = stored(cluster)
    assert (properties[PARENT], properties["region"]) == (carried(sent), "eu")
    for span in (failed, taken):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is not None
        assert span.parent.span_id == context(sent).span_id
        assert [link.context.span_id for link in span.links] == [context(sent).span_id]
        assert span.attributes is not None
        assert span.attributes["messaging.consumer.group.name"] == "g"
        assert span.attributes["messaging.message.id"] == receipt.message_id
    assert (failed.status.status_code, taken.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert inside == [context(failed).span_id, context(taken).span_id]


def test_every_way_to_send_carries_a_context(cluster: RunningCluster, spans: Spans) -> None:
    with TransactionProducer(cluster.namesrv, group="makers", telemetry=spans.tracer) as producer:
        producer.send_async("orders", b"1").result(10)
        producer.send_batch([Message("orders", b"2", properties={PARENT: "stale"}), Message("orders", b"3")])
        producer.send_oneway("orders", b"4")
        producer.produce("orders", b"5", tag="a")
        producer.produce("orders", b"6", properties={PARENT: "stale"})
        producer.produce_many("orders", numbered(3), tags="a")
        with producer.transaction() as transaction:
            transaction.send("orders", b"7")
            transaction.produce("orders", b"8")
            transaction.produce_many("orders", [b"9", b"10"])
        producer.flush()
    wait_until(lambda: len(stored(cluster)) == 13, what="all messages")
    created = spans.named("create orders", 5)
    known = [carried(span) for span in (*spans.named("send orders", 5), *created)]
    found = [properties[PARENT] for properties in stored(cluster)]
    assert set(found) == set(known)
    assert sorted(found.count(each) for each in set(found)) == [1] * 8 + [2, 3]
    assert sum("messaging.batch.message_count" in (span.attributes or {}) for span in created) == 2
    assert [properties["TAGS"] for properties in stored(cluster) if "TAGS" in properties] == ["a"] * 4


def test_a_send_that_fails_ends_its_span_with_the_reason(cluster: RunningCluster, spans: Spans) -> None:
    with Producer(cluster.namesrv, telemetry=spans.tracer, buffer_bytes=64 * 1024) as producer:
        with pytest.raises(InvalidArgument):
            producer.send("orders", b"x", properties={"": "no name"})
        cluster.brokers["broker-a"].faults.is_dead = True
        waiting = producer.send_async("orders", bytes(64 * 1024), timeout_s=5)
        with pytest.raises(BufferFull):
            producer.send("orders", b"y", timeout_s=0.05)
        cluster.brokers["broker-a"].faults.is_dead = False
        waiting.result(10)
    refused, full, late = spans.named("send orders", 3)
    reasons = [(span.attributes or {}).get("error.type") for span in (refused, full, late)]
    assert reasons == ["InvalidArgument", "BufferFull", None]
    assert refused.status.status_code is StatusCode.ERROR


def test_several_messages_together_are_linked_and_so_is_a_poll(cluster: RunningCluster, spans: Spans) -> None:
    with Producer(cluster.namesrv, telemetry=spans.tracer) as producer:
        producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    cluster.put("orders", [b"of another client"], 0)
    sent = [context(span).span_id for span in spans.named("send orders", 2)]
    with consumer(cluster, Seen(), telemetry=spans.tracer, consume_batch_max=10):
        wait_until(lambda: len(spans) > 2, what="the processing")
    (processed,) = spans.named("process orders")
    assert sorted(link.context.span_id for link in processed.links) == sorted(sent)
    assert (processed.parent, (processed.attributes or {})["messaging.batch.message_count"]) == (None, 3)
    for poll in ("poll", "poll_batch"):
        with PullConsumer(
            cluster.namesrv, group=poll, consume_from="first", config=QUICK, telemetry=spans.tracer
        ) as puller:
            puller.subscribe("orders")
            assert wait_until(lambda: len(getattr(puller, poll)(0.1)), what="messages") == 3  # noqa: B023
    for span in spans.named("receive orders", 2):
        assert span.kind is SpanKind.CLIENT
        assert len(span.links) == 2


def test_the_twins_keep_the_context_across_threads(cluster: RunningCluster, spans: Spans) -> None:
    async def listen(message: Any) -> None:
        await asyncio.sleep(0)
        with spans.tracer.start_as_current_span("work"):
            pass

    async def run() -> None:
        async with AsyncProducer(cluster.namesrv, telemetry=spans.tracer) as producer:
            with spans.tracer.start_as_current_span("request"):
                await producer.send("orders", b"x")
        made = AsyncPushConsumer(
            cluster.namesrv, group="g", listener=listen, consume_from="first", config=QUICK, telemetry=spans.tracer
        )
        made.subscribe("orders")
        async with made:
            await eventually(lambda: len(spans) >= 4, what="the work")

    asyncio.run(run())
    found = [spans.named(name)[0] for name in ("request", "send orders", "process orders", "work")]
    assert len({context(span).trace_id for span in found}) == 1
    for parent, child in itertools.pairwise(found):
        assert child.parent is not None
        assert child.parent.span_id == context(parent).span_id


def test_properties_without_room_go_without_a_context(cluster: RunningCluster, spans: Spans) -> None:
    full = {"p": "x" * (PROPERTIES_ROOM - 3 - 10)}
    with Producer(cluster.namesrv, telemetry=spans.tracer) as producer:
        producer.produce("orders", b"1", properties=full)
        producer.produce_many("orders", [b"2"], keys=["k" * (PROPERTIES_ROOM - 30)])
        producer.flush()
    assert [PARENT in properties for properties in stored(cluster)] == [False, False]


def test_a_wrong_tracer_is_refused_and_off_loads_nothing() -> None:
    for wrong in ("yes", 1, object()):
        with pytest.raises(ConfigError, match="telemetry must be True, False, or a tracer"):
            Producer("127.0.0.1:1", telemetry=wrong)
    script = (
        "import sys; from penstock.client import Producer, PushConsumer; Producer('127.0.0.1:1').close(); "
        "PushConsumer('127.0.0.1:1', group='g', listener=print).close(); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=r"pip install 'penstock-mq\[otel\]'"):
        PullConsumer("127.0.0.1:1", group="g", telemetry=True)
    assert threading.active_count() <= threads + 1
