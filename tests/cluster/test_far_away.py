"""A cluster on another continent, behind TLS: 300 ms each way, so that a connection takes 2 s to be there."""

from __future__ import annotations

from pathlib import Path

from penstock.client import Admin, Producer, PullConsumer
from tests.support.cluster.certificates import Authority
from tests.support.cluster.cluster import cluster, free_ports
from tests.support.cluster.distance import FAR_HOST, far_away
from tests.support.waiting import wait_until

DELAY_S = 0.3


def test_clients_and_slaves_far_away_connect_at_their_first_try(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    server = authority.issue("server", "127.0.0.1", FAR_HOST)
    secured = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.trustCertPath": authority.file,
    }
    with cluster(tmp_path, replicas=2, brokerIP1=FAR_HOST) as made:
        for node in made.nodes.values():
            node.settings |= secured
        ports = [int(node.address.rpartition(":")[2]) for node in made.nodes.values()]
        nameserver, master, slave = ports
        (data,) = free_ports(1)
        made.broker("a", 0).settings |= {"dataPort": data}
        ports.append(data)
        with far_away(ports, DELAY_S) as asked:
            made.start()
            wait_until(lambda: "behind_bytes=" in made.broker("a", 1).log(), what="the slave's stream")
            far = f"{FAR_HOST}:{nameserver}"
            with Admin(far, tls=authority.tls()) as admin:
                admin.create_topic("orders", queues=2)
            before = dict(asked)
            with Producer(far, tls=authority.tls()) as producer:
                producer.send("orders", b"from afar", timeout_s=10)
            with PullConsumer(far, group="readers", consume_from="first", tls=authority.tls()) as consumer:
                consumer.subscribe("orders")
                got = consumer.poll(timeout_s=60)
            assert [bytes(message.body) for message in got] == [b"from afar"]
            assert {port: asked[port] - before[port] for port in ports} == {nameserver: 2, master: 2, slave: 0, data: 2}
            assert made.broker("a", 1).log().count("replication interrupted") == 0
