"""Counters that cost an addition per batch, and the Prometheus endpoint that reads them.

Requests add to plain integers; everything else is computed when somebody scrapes, on the event loop, because
the store and the tables belong to it. Names as RocketMQ's where the meaning is the same (``rocketmq_…``),
``penstock_…`` for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.proto.errors import ConfigError

from .wire import in_turns

log = logging.getLogger(__name__)

SCRAPE_TIMEOUT_S: Final = 5.0
SCRAPE_PAUSE_S: Final = 0.5
"""Scrapes within so long get the same figures: the endpoint is open to all, and making them takes the event loop."""
APPEND_BOUNDS_S: Final = tuple(float(f"{digits}e{power}") for power in range(-4, 1) for digits in ("1", "2.5", "5"))


Row = tuple[tuple[str, ...], float]
"""Label values and a number."""


class Histogram:
    """How often values fell between bounds; one writer, the event loop."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus's cumulative buckets."""
        rows: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows


class TopicCounters:
    """What went through one topic since the start."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0

    def on_appended(self, count: int, size: int) -> None:
        """A batch was stored."""
        self.messages_in += count
        self.bytes_in += size

    def on_fetched(self, count: int, size: int) -> None:
        """Messages were sent to a consumer."""
        self.messages_out += count
        self.bytes_out += size


class Counters:
    """All counters of one broker; the event loop writes, a scrape reads."""

    def __init__(self) -> None:
        self.append_seconds = Histogram(APPEND_BOUNDS_S)
        self.topics: dict[str, TopicCounters] = {}

    def topic(self, name: str) -> TopicCounters:
        """The counters of a topic that exists: only those are counted, so that names cannot pile up."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicCounters()
        return found

    def by_topic(self, attribute: str) -> Iterator[Row]:
        """That number of each topic, when it is asked for."""
        for topic, counters in list(self.topics.items()):
            yield (topic,), getattr(counters, attribute)

    def forget(self, topics: Iterable[str]) -> None:
        """Drop the counters of deleted topics."""
        for topic in topics:
            self.topics.pop(topic, None)


class Families:
    """The metric families of one scrape, all with the broker's own labels. Their rows may be looked at later."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._families: list[Any] = []  # prometheus-client's kinds of Metric
        self._rows: list[Iterable[Row]] = []  # of each; none of a histogram

    async def look(self) -> None:
        """Look at the rows now; others have their turn meanwhile."""
        for number, rows in enumerate(self._rows):
            self._rows[number] = [row async for row in in_turns(rows)]

    @property
    def made(self) -> list[Metric]:
        """All families, whole; from any thread, once the rows were looked at."""
        for number, family in enumerate(self._families):
            for values, value in self._rows[number]:
                family.add_metric(self._values + values, value)
            self._rows[number] = ()
        return self._families

    def gauge(self, name: str, doc: str, value: float) -> None:
        """One number."""
        self.gauges(name, doc, (), [((), value)])

    def gauges(self, name: str, doc: str, labels: tuple[str, ...], rows: Iterable[Row]) -> None:
        """A number per combination of label values."""
        self._add(GaugeMetricFamily, name, doc, labels, rows)

    def counter(self, name: str, doc: str, value: float) -> None:
        """One growing number; ``_total`` is added to the name."""
        self.counters(name, doc, (), [((), value)])

    def counters(self, name: str, doc: str, labels: tuple[str, ...], rows: Iterable[Row]) -> None:
        """A growing number per combination of label values; ``_total`` is added to the name."""
        self._add(CounterMetricFamily, name, doc, labels, rows)

    def histogram(self, name: str, doc: str, source: Histogram) -> None:
        """The distribution of a value."""
        family = HistogramMetricFamily(name, doc, labels=self._names)
        family.add_metric(self._values, source.buckets(), source.total)
        self._families.append(family)
        self._rows.append(())

    def _add(self, kind: Any, name: str, doc: str, labels: tuple[str, ...], rows: Iterable[Row]) -> None:
        self._families.append(kind(name, doc, labels=self._names + labels))
        self._rows.append(rows)


class MetricsServer(Collector):
    """``/metrics`` on a port of its own, in a daemon thread of prometheus-client."""

    def __init__(self, collect: Callable[[], Awaitable[Families]], loop: asyncio.AbstractEventLoop) -> None:
        """``collect`` runs on ``loop`` at each scrape; its families are made by the scrape's thread."""
        self._collect = collect
        self._loop = loop
        self._collecting = asyncio.Lock()  # guards the next two, on the loop
        self._found = Families({})
        self._found_at = -SCRAPE_PAUSE_S
        self._making = threading.Lock()  # of one scrape's families
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.port = 0  # once it listens

    def start(self, host: str, port: int) -> int:
        """Listen, with 0 on a port that the system chooses; the port. Raises ConfigError: it is in use."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host or "0.0.0.0", registry)  # noqa: S104
        except OSError as error:
            raise ConfigError(
                f"metricsPromExporterPort {port} on {host or 'all addresses'}: {error.strerror}: choose another port"
            ) from error
        self.port = int(self._server.server_address[1])
        log.info("metrics served port=%d path=/metrics", self.port)
        return self.port

    def stop(self) -> None:
        """Close the port. Must not run on the event loop's thread: a scrape under way needs the loop."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)
            self._server = self._thread = None

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        async def on_loop() -> Families:
            async with self._collecting:
                if self._loop.time() - self._found_at >= SCRAPE_PAUSE_S:
                    self._found = await self._collect()
                    self._found_at = self._loop.time()
                return self._found

        if self._loop.is_closed():
            return []
        pending = asyncio.run_coroutine_threadsafe(on_loop(), self._loop)
        try:
            found = pending.result(SCRAPE_TIMEOUT_S)
        except FutureTimeout:
            pending.cancel()
            log.warning("scrape not answered timeout_s=%.0f", SCRAPE_TIMEOUT_S)
            return []
        with self._making:
            return found.made
