from __future__ import annotations

import asyncio
import socket
import urllib.request

import pytest

from penstock.broker.admin.administration import Administration
from penstock.broker.core.metrics import APPEND_BOUNDS_S, SCRAPE_PAUSE_S, Families, Histogram, MetricsServer
from penstock.broker.core.wire import TURN
from penstock.proto.errors import ConfigError
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.loops import Turns


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def value_of(text: str, name: str, *labels: str) -> float:
    (line,) = [
        line for line in text.splitlines() if line.split("{")[0] == name and all(label in line for label in labels)
    ]
    return float(line.rsplit(" ", 1)[1])


@in_loop
async def test_a_scrape_shows_traffic_storage_and_lag() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append([b"x"] * 10, producer=(1, 1, 0, 1))
    await parts.append([b"x"] * 10, producer=(1, 1, 0, 1))
    parts.dispatch()
    await parts.fetched(wanting((0, 4)))
    parts.commit("billing", {"orders": {0: 3}})
    server = MetricsServer(parts[Administration].collect, asyncio.get_running_loop())
    port = server.start("127.0.0.1", 0)
    try:
        text = await asyncio.to_thread(scrape, port)
    finally:
        await asyncio.to_thread(server.stop)
    assert value_of(text, "rocketmq_messages_in_total", 'topic="orders"', 'node_id="broker-a-0"') == 10
    assert value_of(text, "rocketmq_messages_out_total") == 6
    assert value_of(text, "rocketmq_consumer_lag_messages", 'consumer_group="billing"') == 7
    assert value_of(text, "rocketmq_storage_size") == parts.store.end_offset
    assert value_of(text, "penstock_append_duplicates_total") == 1
    assert value_of(text, "penstock_append_seconds_count") == 2


@in_loop
async def test_scrapes_in_quick_succession_cost_the_loop_one() -> None:
    made: list[int] = []

    async def collect() -> Families:
        made.append(1)
        await asyncio.sleep(0.01)  # as one that takes a while
        return Families({})

    server = MetricsServer(collect, asyncio.get_running_loop())
    port = server.start("127.0.0.1", 0)
    started = asyncio.get_running_loop().time()
    try:
        await asyncio.gather(*(asyncio.to_thread(scrape, port) for _ in range(5)))
    finally:
        await asyncio.to_thread(server.stop)
    assert len(made) <= 1 + (asyncio.get_running_loop().time() - started) / SCRAPE_PAUSE_S


@in_loop
async def test_a_scrape_of_very_many_topics_leaves_others_their_turn() -> None:
    parts = Kit()
    for number in range(5 * TURN):
        parts.core.counters.topic(f"t{number}").on_appended(1, 100)
        parts.tables.offsets.put_loaded("billing", f"t{number}", {0: 1})
    turns = Turns()
    found = await turns.of(parts[Administration].collect())
    assert turns.count > 20
    samples = {family.name: len(family.samples) for family in found.made}
    assert samples["rocketmq_messages_in"] == samples["rocketmq_consumer_lag_messages"] == 5 * TURN
    assert {family.name: len(family.samples) for family in found.made} == samples, "once"


@in_loop
async def test_a_metrics_port_in_use_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = MetricsServer(Kit()[Administration].collect, asyncio.get_running_loop())
        with pytest.raises(ConfigError, match="metricsPromExporterPort"):
            server.start("127.0.0.1", taken.getsockname()[1])
        await asyncio.to_thread(server.stop)


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram(APPEND_BOUNDS_S)
    for value in (0.0, 0.0001, 0.3, 99.0):
        histogram.observe(value)
    buckets = dict(histogram.buckets())
    assert (buckets["0.0001"], buckets["0.5"], buckets["+Inf"]) == (2, 3, 4)
