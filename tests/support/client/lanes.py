"""The lanes of one topic, parts that go there, and the batches that become of them."""

from __future__ import annotations

import numpy as np

from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.health import BrokerHealth
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import LANES, Batch, Kind, Part
from penstock.proto.errors import BrokerUnavailable

NOW = 1000.0
BROKEN = BrokerUnavailable("broker 1: unavailable: Socket closed", status="UNAVAILABLE")


def lanes(*shards: tuple[str, int], **settings: object) -> Lanes:
    return Lanes("orders", ProducerConfig(**settings), BrokerHealth(), WriteQueues(shards))  # type: ignore[arg-type]


def part(
    *bodies: bytes, hashes: list[int] | None = None, kind: Kind = Kind.PRODUCE, deadline: float = NOW + 30
) -> Part:
    chosen = None if hashes is None else np.array(hashes, dtype=np.int32)
    return Part(kind, list(bodies), None, cost=len(bodies) * 200, deadline=deadline, hashes=chosen)


def bodies(batch: Batch) -> list[bytes]:
    return [body for each in batch.parts for body in each.bodies]


def start(lanes: Lanes, now: float = NOW) -> list[Batch]:
    return lanes.start(now, LANES, lambda name: name in lanes.queues)
