"""Where a query begins and ends, asked of the cluster once: options to offsets."""

from __future__ import annotations

import logging

from penstock.client.cluster import Sql, parse_subscription
from penstock.proto.errors import ConfigError, DataLoss, RouteNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader

from ..cluster import CLIENT_ID, Cluster, Positions
from ..offsets import Queue, resolve
from ..options import Position, SourceOptions

log = logging.getLogger(__name__)


def starting_offsets(
    cluster: Cluster, options: SourceOptions, *, timeout_s: float, tolerates_missing: bool = False
) -> tuple[dict[Queue, int], Positions]:
    """The first offset wanted of each queue, and the positions that it was found with.

    ``tolerates_missing``: as for :meth:`Cluster.positions`.
    Raises ConfigError: an offset, queue or group that does not exist; a time without message, unless the strategy is
    latest.
    Raises DataLoss: an offset below its queue's begin, with ``failOnDataLoss``.
    Raises RouteNotFound: a broker group of a topic is down; without ``failOnDataLoss`` it is passed over.
    """
    wanted = options.starting
    positions = cluster.positions(
        options,
        times=_times(wanted),
        timeout_s=timeout_s,
        tolerates_missing=tolerates_missing,
        needs_all=options.fail_on_data_loss,
    )
    for topic, broker in sorted(positions.absent):
        log.warning("topic %s is read without what is at %s, of which no member lives", topic, broker)
    if wanted.at == "group":
        committed = cluster.committed(options.group, positions, timeout_s)
        if positions and not committed:
            cluster.require_group(options.group, timeout_s)
            log.warning("group %s has committed nothing of what is read: all of it is read", options.group)
        found = {queue: committed.get(queue, held.minimum) for queue, held in positions.items()}
    else:
        found = _at(wanted, positions, options, default="earliest")
    for queue, offset in found.items():
        low = positions[queue].minimum
        if offset < low:
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"queue {queue}: {wanted.option or 'startingOffsets'} asks for {offset}, the queue begins at {low} "
                    "now; failOnDataLoss=false begins there"
                )
            found[queue] = low
    return found, positions


def ending_offsets(
    cluster: Cluster, options: SourceOptions, positions: Positions, *, timeout_s: float
) -> dict[Queue, int]:
    """The end of each queue for a batch read; ``positions``: found with the start.

    Raises RouteNotFound: others are there now; plan again.
    """
    wanted = options.ending
    times = _times(wanted)
    if times is not None:
        begun = positions.keys()
        positions = cluster.positions(options, times=times, timeout_s=timeout_s, needs_all=options.fail_on_data_loss)
        if positions.keys() != begun:
            queue = min(positions.keys() ^ begun)
            raise RouteNotFound(f"queue {queue} came or went while the read was planned: plan it again")
    return _at(wanted, positions, options, default="latest")


def check_filter(cluster: Cluster, options: SourceOptions, positions: Positions) -> None:
    """Have a broker look at the filter, so that a wrong one is refused before any task runs. Raises its error."""
    if not options.filter_sql and options.sub_expression == "*":
        return
    queue = next(iter(positions))
    expression = Sql(options.filter_sql) if options.filter_sql else options.sub_expression
    wanted = parse_subscription(queue.topic, expression)
    header = FetchHeader(client_id=CLIENT_ID, max_bytes=1)
    header.topics.add(topic=queue.topic, queue_ids=[queue.queue_id], offsets=[0], filter=wanted.filter)
    cluster.calls.fetch(queue.broker, header, options.timeout_s)


def _times(wanted: Position) -> dict[Queue, int] | int | None:
    if wanted.at == "timestamp":
        return wanted.timestamp_ms
    return dict(wanted.offsets) if wanted.at == "timestamps" else None


def _at(wanted: Position, positions: Positions, options: SourceOptions, *, default: str) -> dict[Queue, int]:
    low = {queue: held.minimum for queue, held in positions.items()}
    high = {queue: held.maximum for queue, held in positions.items()}
    if wanted.at == "earliest":
        return low
    if wanted.at == "latest":
        return high
    given = {queue: value for queue, value in wanted.offsets.items() if queue[:2] not in positions.absent}
    if wanted.at == "offsets":
        return resolve(wanted.option, given, positions, complete=True)
    if wanted.at == "timestamps":
        unknown = sorted(given.keys() - positions.keys())
        if unknown:
            raise ConfigError(f"option {wanted.option}: queue {unknown[0]} is not among those that are read")
        missing = sorted(positions.keys() - given.keys())
        if missing:
            raise ConfigError(
                f"option {wanted.option}: queue {missing[0]} is missing: name every queue, or read others by assign; "
                f"{wanted.option.replace('OffsetsByTimestamp', 'Timestamp')} is one time for all"
            )
    meant = positions.keys() if wanted.at == "timestamp" else given.keys()
    found = dict(low if default == "earliest" else high)
    for queue in meant:
        offset = positions.by_time.get(queue)
        if offset is None and default == "earliest" and options.error_without_match and high[queue] > low[queue]:
            time_ms = wanted.timestamp_ms if wanted.at == "timestamp" else given[queue]
            raise ConfigError(
                f"option {wanted.option}: queue {queue} has no message stored at or after {time_ms}; "
                "without startingOffsetsByTimestampStrategy=error it begins at its end"
            )
        found[queue] = high[queue] if offset is None else offset
    return found
