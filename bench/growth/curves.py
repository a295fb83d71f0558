"""The curves, with the sizes that a machine of two cores and some 20 GB of free disk measures in 20 minutes."""

from __future__ import annotations

from . import clients, clusters, nameservers, stores
from .curve import Curve

CURVES: dict[str, Curve] = {
    curve.name: curve
    for curve in (
        Curve(
            "messages",
            "messages of 100 B with a key each, in one store",
            "messages",
            stores.messages,
            stores.UNITS,
            (250_000, 1_000_000, 4_000_000, 16_000_000),
            100_000_000,
        ),
        Curve("log", "a log of messages of 64 KiB", "GiB", stores.log_gib, stores.UNITS, (1, 2, 4, 8), 50),
        Curve(
            "queues",
            "queues of one topic that all have messages of 1 KiB",
            "queues",
            stores.queues,
            stores.QUEUES_UNITS,
            (8, 100, 1000, 10_000),
            40_000,
        ),
        Curve(
            "producers",
            "producers that are connected and send one message a second each",
            "producers",
            clients.producers,
            clients.UNITS,
            (1, 10, 50, 200),
            2000,
        ),
        Curve(
            "consumers",
            "members of one group, with a queue each, that poll once a second",
            "consumers",
            clients.consumers,
            clients.UNITS,
            (1, 10, 50, 200),
            2000,
        ),
        Curve(
            "groups",
            "groups that have committed offsets of eight queues",
            "groups",
            clients.groups,
            clients.GROUPS_UNITS,
            (1, 10, 100, 1000),
            1000,
        ),
        Curve(
            "shards",
            "broker groups that one producer sends 1 KiB to",
            "shards",
            clusters.shards,
            clusters.UNITS,
            (1, 2, 3, 4),
            4,
        ),
        Curve(
            "replicas",
            "members of one broker group, the master and 0 to 3 slaves, all of which have what is acknowledged",
            "replicas",
            clusters.replicas,
            clusters.UNITS,
            (1, 2, 3, 4),
            4,
        ),
        Curve(
            "nameserver-brokers",
            "brokers of a nameserver, with 100 topics each, and 100 clients that watch",
            "brokers",
            nameservers.brokers,
            nameservers.UNITS,
            (10, 50, 250, 1000),
            1000,
        ),
        Curve(
            "nameserver-watchers",
            "clients that watch one topic at a nameserver of 100 brokers with 100 topics each",
            "clients",
            nameservers.watchers,
            nameservers.UNITS,
            (10, 100, 1000, 5000),
            5000,
        ),
    )
}
