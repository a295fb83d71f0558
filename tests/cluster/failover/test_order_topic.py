"""An order topic while one of its shards is killed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from penstock.client import Admin, Producer, PullConsumer
from penstock.client.produce.sharding.key_moves import KEY_AWAY_S
from penstock.proto.errors import BrokerUnavailable
from tests.support.cluster.cluster import cluster
from tests.support.waiting import wait_until

KEYS = [f"key-{number}" for number in range(16)]
ROUNDS = 30


def test_keys_of_a_killed_shard_wait_and_every_key_stays_in_one_queue_in_order(tmp_path: Path) -> None:
    with cluster(tmp_path, shards=2, replicas=1) as brokers:
        brokers.start()
        with Admin(brokers.nameservers) as admin, Producer(brokers.nameservers, delivery_timeout_s=90) as producer:
            admin.create_topic("steps", queues=4, order_topic=True)
            homes = {key: producer.send("steps", b"0", sharding_key=key).broker_name for key in KEYS}
            lost = next(key for key, home in homes.items() if home == "broker-b")
            for number in range(1, ROUNDS):
                if number == ROUNDS // 3:
                    producer.flush()
                    brokers.broker("b", 0).kill()
                    wait_until(lambda: admin.topic("steps").absent == ["broker-b"], 30, "the shard out of the routes")
                for key in KEYS:
                    producer.produce("steps", b"%d" % number, sharding_key=key)
            is_refused = pytest.raises(BrokerUnavailable, match="this is an order topic")
            with Producer(brokers.nameservers) as another, is_refused:  # it has never seen broker-b alive
                another.send("steps", b"never", sharding_key=lost, timeout_s=2 * KEY_AWAY_S)
            waiting = sum(home == "broker-b" for home in homes.values()) * (ROUNDS - ROUNDS // 3)
            wait_until(lambda: producer.pending == waiting, 30, "nothing left but the keys of the shard that is away")
            brokers.broker("b", 0).restart()
            producer.flush(60)
        seen: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        with PullConsumer(brokers.nameservers, group="audit", consume_from="first") as consumer:
            consumer.subscribe("steps")
            while sum(map(len, seen.values())) < len(KEYS) * ROUNDS:
                for message in consumer.poll(timeout_s=5):
                    assert message.sharding_key is not None
                    seen[message.sharding_key].append((message.broker_name, message.queue_id, int(message.body)))
        for key in KEYS:
            assert [number for *_, number in seen[key]] == list(range(ROUNDS))
            assert {name for name, *_ in seen[key]} == {homes[key]}
            assert len({queue_id for _, queue_id, _ in seen[key]}) == 1
