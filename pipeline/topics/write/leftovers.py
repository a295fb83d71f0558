"""A batch that came again and is shorter than it was is refused: rows of its first coming would stay in the topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from penstock.client.cluster import Calls
from penstock.formats.destination import Later, Ordinary
from penstock.proto.errors import ChangedBatch
from penstock.proto.wire.pipeline_pb2 import LanesReply, LanesRequest
from penstock.proto.wire.pipeline_pb2_grpc import StagingStub

from .chunks import SAME_AGAIN, LaneKey
from .routing import Layout

SEQUENCE_BATCH_BITS = 24
LANES_PER_PARTITION = 64


def lane_of(partition: int, lane: int) -> int:
    """The producer's lane for a target of a partition."""
    return partition * LANES_PER_PARTITION + lane


def sequence_of(batch: int, chunk: int) -> int:
    """The number of a chunk in its lane: greater than those of all batches before."""
    return batch << SEQUENCE_BATCH_BITS | chunk


def require_none(
    calls: Calls,
    layouts: Iterable[Layout],
    producer_id: int,
    partition: int,
    batch: int,
    sent: Mapping[LaneKey, int],
    timeout_s: float,
) -> None:
    """Return if no lane of the partition holds more chunks of the batch than were ``sent`` to it.

    Raises:
        ChangedBatch: one does.
        PenstockError: a broker group does not answer in time.
    """
    asked: dict[str, list[LaneKey]] = {}
    for layout in layouts:
        for target in layout.targets:
            for destination in (Ordinary(layout.topic), Later(layout.topic)):
                asked.setdefault(target.broker, []).append((destination, target.broker, target.lane))
    if not asked:
        return
    with ThreadPoolExecutor(min(16, len(asked))) as pool:
        calling = {
            broker: pool.submit(_last_sequences, calls, broker, keys, producer_id, partition, timeout_s)
            for broker, keys in asked.items()
        }
        for broker, call in calling.items():
            for key, last in zip(asked[broker], call.result(), strict=True):
                if last >= sequence_of(batch, sent.get(key, 0)) and last >> SEQUENCE_BATCH_BITS == batch:
                    held = (last & (1 << SEQUENCE_BATCH_BITS) - 1) + 1
                    topic = key[0].topic
                    raise ChangedBatch(
                        f"topic {topic}: broker group {broker} holds {held} chunks of batch {batch} from partition "
                        f"{partition}, and now it has {sent.get(key, 0)}: it is not the same batch. {SAME_AGAIN}"
                    )


def _last_sequences(
    calls: Calls, broker: str, keys: list[LaneKey], producer_id: int, partition: int, timeout_s: float
) -> list[int]:
    request = LanesRequest()
    for destination, _, lane in keys:
        request.lanes.add(
            topic=destination.stored_topic,
            producer_id=destination.producer(producer_id),
            lane=lane_of(partition, lane),
        )
    reply: LanesReply = calls.at_master(broker, "QueryLanes", request, timeout_s, service=StagingStub)
    return list(reply.last_sequences)
