"""A cluster that several files' tests begin with, each file's its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.deploy import LocalCluster
from tests.support.cluster.failover import create_topic, local_cluster


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One shard of three brokers in durable mode, with the topic."""
    with local_cluster(
        tmp_path_factory.mktemp("shard"), replicas_within_s=30, shards=1, replicas=3, nameservers=1, mode="durable"
    ) as made:
        create_topic(made.plan.nameserver_addresses)
        yield made
