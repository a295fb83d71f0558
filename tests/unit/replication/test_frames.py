"""What a slave accepts of its master, and the bytes of both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.proto.errors import ConfigError, DiskFull, InvalidArgument
from penstock.replication import EpochHistory, ReplicationConfig, frames
from penstock.replication.slave.following import MasterStream
from penstock.runtime.clock import SystemClock
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import identity, welcome_of

EMPTY = memoryview(b"")


def frame(
    epoch: int = 5, start: int = 100, data: bytes = b"abc", welcome: frames.Welcome | None = None
) -> frames.Frame:
    return frames.Frame(epoch, start, 0, 10_000, welcome, memoryview(data))


def stream() -> MasterStream:
    log = MemoryLog(256)
    log.write(bytes(100))
    return MasterStream(log, ReplicationConfig(), epoch=5, flush_acknowledged=False, clock=SystemClock())


def test_a_frame_that_continues_the_log_is_accepted() -> None:
    stream().check(frame())
    stream().check(frame(data=b""))
    stream().check(frame(data=bytes(156)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (frame(epoch=4), "epoch 4"),
        (frame(epoch=6), "epoch 6"),
        (frame(start=99), "begins at 99.*ends at 100"),
        (frame(start=101), "begins at 101"),
        (frame(start=101, data=b""), "begins at 101"),
        (frame(data=bytes(157)), "crosses a log file"),
        (frame(welcome=frames.Welcome()), "second welcome"),
    ],
)
def test_a_frame_that_does_not_continue_the_log_is_refused(wrong: frames.Frame, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        stream().check(wrong)


def test_frames_and_reports_come_back_as_they_went() -> None:
    assert frames.decode_frame(
        b"".join(frames.data(3, 100, memoryview(b"bytes"), confirm=90, end=200))
    ) == frames.Frame(3, 100, 90, 200, None, memoryview(b"bytes"))
    assert frames.decode_frame(frames.heartbeat(3, 100, confirm=90, end=200)).data == EMPTY
    acked = frames.decode_report(frames.ack(3, 100, 50))
    assert isinstance(acked, frames.Ack)
    assert (acked.epoch, acked.written_offset, acked.flushed_offset) == (3, 100, 50)
    left = frames.decode_report(frames.leaving(DiskFull("no space for the next file")))
    assert isinstance(left, frames.Leaving)
    assert (left.code, left.message) == (DiskFull.code, "DiskFull: no space for the next file")
    own = welcome_of(identity(0), EpochHistory(), start_offset=7, segment_bytes=256, flush_acknowledged=True)
    welcomed = frames.decode_frame(frames.welcome(own, epoch=3, confirm=0, end=7)).welcome
    assert welcomed is not None
    assert welcomed.flush_acknowledged


@pytest.mark.parametrize(
    "message",
    [
        b"".join(frames.data(-1, 0, EMPTY, confirm=0, end=0)),
        b"".join(frames.data(1, -1, EMPTY, confirm=0, end=0)),
        b"".join(frames.data(1, 0, EMPTY, confirm=-1, end=0)),
        b"".join(frames.data(1, 0, memoryview(b"beyond"), confirm=0, end=5)),
        frames.welcome(frames.Welcome(), epoch=1, confirm=0, end=0) + b"bytes",
        b"",
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidArgument):
        frames.decode_frame(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_by_name(message: bytes) -> None:
    for decode in (frames.decode_report, frames.decode_frame):
        try:
            decode(message)
        except InvalidArgument:
            continue


def test_settings_out_of_range_are_refused() -> None:
    wrong: list[dict[str, int]] = [
        {"in_sync_replicas": 0},
        {"window_bytes": 1},
        {"heartbeat_interval_ms": 2000},
        {"replica_timeout_ms": 0},
        {"reconnect_min_ms": 2000},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            ReplicationConfig(**settings)  # type: ignore[arg-type]
