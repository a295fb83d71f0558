"""The messages of the replication stream, both directions, as bytes and back.

The data port's ``REPLICATE`` is one request that stands: the slave's reports all have its number, and the master's
messages are its answers. Every message is framed (:mod:`penstock.proto.frames`); only the master's data frames have a
body, which is log bytes as they are.

| From | Message | When |
|---|---|---|
| slave | Hello | first, exactly once |
| master | Welcome | answer to it; otherwise the stream ends with an error by name |
| slave | Commits | after the Welcome and whenever there are new ones |
| master | data | bytes at the position where the last frame ended; never across a log file |
| master | heartbeat | frame without bytes: at intervals, and when the confirm offset advanced |
| slave | Ack | answer to frames, coalesced, and when its disk synced |
| slave | Leaving | last: the slave's own error |

Every field that a peer can get wrong is checked here or at its single place of use; an error ends the stream.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.epochs import Epoch
from penstock.proto import frames
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.wire import replication_pb2

from .epochs import EpochHistory

REPORT_BYTES_MAX = 4 * 1024 * 1024  # a report carries numbers and names; more is no report
TAIL_BYTES_MAX = 64 * 1024

Hello = replication_pb2.ReplicaReport.Hello
Ack = replication_pb2.ReplicaReport.Ack
Commits = replication_pb2.ReplicaReport.Commits
Leaving = replication_pb2.ReplicaReport.Leaving
Welcome = replication_pb2.ReplicationHeader.Welcome
Report = Hello | Ack | Commits | Leaving


class Frame(NamedTuple):
    """One message of the master, decoded. ``data`` is a view of the message; empty in heartbeats and welcome."""

    epoch: int
    start: int
    confirm: int
    end: int
    welcome: Welcome | None
    data: memoryview
    stamp: int = 0


def hello(report: Hello) -> bytes:
    """The slave's first message; ``tail_crc`` is of its last ``tail_bytes`` before ``end_offset``."""
    return frames.pack(replication_pb2.ReplicaReport(hello=report))


def ack(epoch: int, written: int, flushed: int, *, stamp: int = 0) -> bytes:
    """What the slave has: below ``written`` in memory, below ``flushed`` synced. Confirms ``epoch``.

    ``stamp``: of the newest frame that it has taken in.
    """
    report = Ack(epoch=epoch, written_offset=written, flushed_offset=flushed, stamp=stamp)
    return frames.pack(replication_pb2.ReplicaReport(ack=report))


def commits(report: Commits) -> bytes:
    """Offsets that a group committed at the slave."""
    return frames.pack(replication_pb2.ReplicaReport(commits=report))


def leaving(error: PenstockError) -> bytes:
    """The slave's farewell: why it cannot go on."""
    report = Leaving(code=error.code, message=f"{type(error).__name__}: {error.message}"[:1000])
    return frames.pack(replication_pb2.ReplicaReport(leaving=report))


def decode_report(message: bytes | memoryview) -> Report:
    """The one report in a message of the slave.

    Raises:
        InvalidArgument: no framed report, a report of an unknown kind, or a negative number in it.
    """
    if len(message) > REPORT_BYTES_MAX:
        raise InvalidArgument(f"replica report of {len(message)} bytes: at most {REPORT_BYTES_MAX} are allowed")
    header, body = frames.unpack(message, replication_pb2.ReplicaReport)
    if len(body):
        raise InvalidArgument(f"replica report with {len(body)} bytes behind it: reports carry no bytes")
    match header.WhichOneof("report"):
        case "hello":
            _not_negative("hello", end_offset=header.hello.end_offset, tail_bytes=header.hello.tail_bytes)
            return header.hello
        case "ack":
            report = header.ack
            _not_negative("acknowledgement", epoch=report.epoch, written_offset=report.written_offset)
            _not_negative("acknowledgement", flushed_offset=report.flushed_offset, stamp=report.stamp)
            return report
        case "commits":
            return header.commits
        case "leaving":
            return header.leaving
    raise InvalidArgument("replica report of no known kind: is the slave's release newer than the master's?")


def welcome(header: Welcome, *, epoch: int, confirm: int, end: int) -> bytes:
    """The master's answer to Hello."""
    return frames.pack(
        replication_pb2.ReplicationHeader(
            epoch=epoch, start_offset=header.start_offset, confirm_offset=confirm, end_offset=end, welcome=header
        )
    )


def data(
    epoch: int, start: int, log_bytes: memoryview, *, confirm: int, end: int, stamp: int = 0
) -> tuple[bytes, memoryview]:
    """A frame of log bytes from ``start`` on, in two pieces: the bytes are not copied."""
    return heartbeat(epoch, start, confirm=confirm, end=end, stamp=stamp), log_bytes


def heartbeat(epoch: int, position: int, *, confirm: int, end: int, stamp: int = 0) -> bytes:
    """A frame without bytes; ``position`` is where the next bytes will begin."""
    header = replication_pb2.ReplicationHeader(
        epoch=epoch, start_offset=position, confirm_offset=confirm, end_offset=end, stamp=stamp
    )
    return frames.pack(header)


def decode_frame(message: bytes | memoryview) -> Frame:
    """A message of the master.

    Raises:
        InvalidArgument: no framed message of a master, or numbers that contradict each other.
    """
    header, body = frames.unpack(message, replication_pb2.ReplicationHeader, frames.ANSWER_FIELDS_MAX)
    _not_negative("frame", epoch=header.epoch, start_offset=header.start_offset, confirm_offset=header.confirm_offset)
    if header.HasField("welcome") and len(body):
        raise InvalidArgument(f"welcome with {len(body)} bytes behind it: it carries none")
    if header.start_offset + len(body) > header.end_offset:
        raise InvalidArgument(
            f"frame [{header.start_offset}, {header.start_offset + len(body)}) goes beyond the master's end "
            f"{header.end_offset}"
        )
    return Frame(
        header.epoch,
        header.start_offset,
        header.confirm_offset,
        header.end_offset,
        header.welcome if header.HasField("welcome") else None,
        body,
        header.stamp,
    )


def wire_epochs(history: EpochHistory) -> list[replication_pb2.Epoch]:
    """A history as Hello and Welcome carry it."""
    return [replication_pb2.Epoch(epoch=entry.epoch, start_offset=entry.start) for entry in history.entries]


def epochs_of(message: Hello | Welcome) -> EpochHistory:
    """The history that a peer sent.

    Raises:
        InvalidArgument: the entries are no history.
    """
    try:
        return EpochHistory(Epoch(entry.epoch, entry.start_offset) for entry in message.epochs)
    except ValueError as error:
        name = message.identity.broker_name
        raise InvalidArgument(f"epochs of {name}:{message.identity.broker_id} are no history: {error}") from error


def _not_negative(what: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise InvalidArgument(f"{what} with {name} {number}: must not be negative")
