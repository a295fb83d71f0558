"""How far an archive is, as brokers know it: retention waits for the mark of each archive, by its name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.proto.errors import ConfigError

from ...lake.lake import Lake


def require_groups(namesrv: str, names: list[str]) -> None:
    """Nothing, if the cluster has these broker groups: told before hours of work, not after.

    Raises:
        ConfigError: one is missing.
        NameserverUnavailable: no nameserver answers.
    """
    with _shard_calls(namesrv) as calls:
        known = sorted(calls.known())
    for name in names:
        if name not in known:
            raise ConfigError(
                f"archive: the cluster at {namesrv} has the broker groups {', '.join(known)}, and no {name!r}: "
                "set broker_name to the group's name of each store, in order"
            )


@contextlib.contextmanager
def _shard_calls(namesrv: str) -> Iterator[Any]:
    from penstock.client.cluster.connections import Connections
    from penstock.client.cluster.shards import ShardCalls

    connections = Connections(namesrv)
    try:
        yield ShardCalls(connections)
    finally:
        connections.close()


def set_watermarks(namesrv: str, archive_name: str, marks: dict[str, int]) -> None:
    """Tell each group's master up to where its log is archived."""
    with _shard_calls(namesrv) as calls:
        for broker_name, offset in marks.items():
            calls.set_archive_watermark(broker_name, archive_name, offset)


def archive_marks(namesrv: str, brokers: Iterable[str]) -> dict[str, Mapping[str, int]]:
    """The marks of all archives, by name, at each of these groups."""
    with _shard_calls(namesrv) as calls:
        return {broker: calls.archive_watermarks(broker) for broker in brokers}


def require_forward(lake: Lake, name: str, due: Mapping[str, int], marks: Mapping[str, Mapping[str, int]]) -> None:
    """Nothing, if no broker would have to move its mark back, which brokers refuse.

    Raises:
        ConfigError: one would.
    """
    for broker, offset in due.items():
        held = marks.get(broker, {}).get(name, 0)
        if held > offset:
            raise ConfigError(
                f"archive: the archive {name!r} has the mark {held} at broker group {broker}, and {lake.root} would "
                f"reach {offset}: set archive_name to a name of its own for this lake, or name the lake with that mark"
            )
