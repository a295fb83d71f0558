"""How far an archive is, as brokers know it: retention waits for the mark of each archive, by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.proto.errors import ConfigError
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.pipeline_pb2 import ArchiveWatermark
from penstock.proto.wire.pipeline_pb2_grpc import PositionsStub

from ...lake.lake import Lake
from ...topics.cluster import cluster

CALL_TIMEOUT_S = 10.0


def require_groups(namesrv: str, names: list[str]) -> None:
    """Raises ConfigError if the cluster lacks one of these broker groups: told before hours of work, not after.

    Raises NameserverUnavailable if no nameserver answers.
    """
    view = cluster(namesrv).calls.directory.cluster()
    known = sorted({shard.broker_name for shard in (*view.shards, *view.absent)})
    for name in names:
        if name not in known:
            raise ConfigError(
                f"archive: the cluster at {namesrv} has the broker groups {', '.join(known)}, and no {name!r}: "
                "set broker_name to the group's name of each store, in order"
            )


def set_watermarks(namesrv: str, archive_name: str, marks: dict[str, int]) -> None:
    """Tell each group's master up to where its log is archived: retention keeps what lies from there on.

    Raises OffsetOutOfRange: beyond the log. InvalidArgument: before the mark that is set.
    """
    for broker_name, offset in marks.items():
        mark = ArchiveWatermark(name=archive_name, offset=offset)
        calls = cluster(namesrv).calls
        calls.at_master(broker_name, "SetArchiveWatermark", mark, CALL_TIMEOUT_S, service=PositionsStub)


def archive_marks(namesrv: str, brokers: Iterable[str]) -> dict[str, Mapping[str, int]]:
    """The marks of all archives, by name, at each of these groups."""
    found: dict[str, Mapping[str, int]] = {}
    for broker in brokers:
        calls = cluster(namesrv).calls
        told = calls.at_reader(broker, "ListArchiveWatermarks", Empty(), CALL_TIMEOUT_S, service=PositionsStub)
        found[broker] = {mark.name: mark.offset for mark in told.watermarks}
    return found


def require_forward(lake: Lake, name: str, due: Mapping[str, int], marks: Mapping[str, Mapping[str, int]]) -> None:
    """Raises ConfigError if a broker would have to move its mark back, which brokers refuse."""
    for broker, offset in due.items():
        held = marks.get(broker, {}).get(name, 0)
        if held > offset:
            raise ConfigError(
                f"archive: the archive {name!r} has the mark {held} at broker group {broker}, and {lake.root} would "
                f"reach {offset}: set archive_name to a name of its own for this lake, or name the lake with that mark"
            )
