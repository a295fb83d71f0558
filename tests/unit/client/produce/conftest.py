"""Clusters for the tests of producers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client.running_cluster import RunningBroker, RunningCluster

TOPIC = "orders"


@pytest.fixture
def one() -> Iterator[RunningCluster]:
    with RunningCluster(topics={TOPIC: 8}) as cluster:
        yield cluster


@pytest.fixture
def two() -> Iterator[RunningCluster]:
    with RunningCluster(shards=2, topics={TOPIC: 4}) as cluster:
        yield cluster


@pytest.fixture
def broker(one: RunningCluster) -> RunningBroker:
    return one.brokers["broker-a"]
