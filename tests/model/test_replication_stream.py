"""Streams that lose, repeat, reorder and break frames at any place: the copy stays a prefix and becomes whole."""

from __future__ import annotations

import asyncio
import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.proto.errors import BrokerUnavailable, PenstockError
from penstock.replication import ReplicationConfig, frames
from tests.support.forwarder import Forwarder
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import Pipe, following, new_master, serving
from tests.support.waiting import eventually

FAST = ReplicationConfig(
    sync=True,
    frame_bytes=300,
    window_bytes=1200,
    heartbeat_interval_ms=1,
    confirm_interval_ms=0,
    master_timeout_ms=1000,
    reconnect_min_ms=1,
    reconnect_max_ms=1,
)

CUTS = range(1, 600)
"""Behind so many bytes, one connection after the other."""
FAULTS = ("lose", "repeat", "swap", "cut", "truncate", "flip_start", "old_epoch")


class Saboteur:
    """Does one fault at one message of a connection."""

    def __init__(self, fault: str, at: int) -> None:
        self._fault = fault
        self._at = at
        self._held: bytes | None = None

    def __call__(self, number: int, message: bytes) -> list[bytes]:
        if self._held is not None:
            held, self._held = self._held, None
            return [message, held]
        if number != self._at:
            return [message]
        match self._fault:
            case "lose":
                return []
            case "repeat":
                return [message, message]
            case "swap":
                self._held = message
                return []
            case "cut":
                raise BrokerUnavailable("the connection was cut")
            case "truncate":
                return [message[: len(message) // 2]]
        frame = frames.decode_frame(message)
        if frame.welcome is not None:
            return [message[:-1]]
        shift = (1, 0) if self._fault == "flip_start" else (0, 1)
        return [
            b"".join(
                frames.data(
                    frame.epoch - shift[1],
                    frame.start + shift[0],
                    frame.data,
                    confirm=frame.confirm,
                    end=frame.end + shift[0],
                )
            )
        ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(200, 1000),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_whatever_happens_to_frames_the_copy_is_a_prefix_and_becomes_whole(
    faults: list[tuple[str, int]], segment_bytes: int, flush_acknowledged: bool, seed: int
) -> None:
    async def scenario() -> None:
        config = ReplicationConfig(
            **{name: getattr(FAST, name) for name in FAST.__slots__} | {"flush_acknowledged": flush_acknowledged}
        )
        master = new_master(MemoryLog(segment_bytes), config)
        numbers = random.Random(seed)
        copy = MemoryLog(segment_bytes)

        def check() -> None:
            assert master.log.content().startswith(copy.content())
            assert master.primary.confirm_offset <= copy.end_offset, "confirmed what no slave has"

        async with following("nowhere.invalid:1", log=copy, config=FAST) as slave:
            slave.task.cancel()
            await asyncio.gather(slave.task, return_exceptions=True)
            for fault, at in faults:
                master.append(numbers.randbytes(numbers.randrange(900)))
                master.log.flush()
                call = Pipe(master.primary, Saboteur(fault, at))
                with contextlib.suppress(PenstockError, TimeoutError):
                    async with asyncio.timeout(0.03):
                        await slave.replica._converse(call, "pipe")
                call.close()
                check()
            call = Pipe(master.primary, lambda _, message: [message])
            whole = asyncio.create_task(slave.replica._converse(call, "pipe"))
            await eventually(lambda: master.primary.confirm_offset == master.log.end_offset, what="all confirmed")
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)
            call.close()
            check()
            assert copy.content() == master.log.content()

    asyncio.run(scenario())


def test_a_connection_cut_anywhere_is_resumed_at_the_last_whole_frame() -> None:
    """One connection per byte position, from the first handshake byte to beyond a whole frame of 64 bytes."""
    numbers = random.Random(8)

    async def scenario() -> None:
        master = new_master(MemoryLog(4096), FAST)
        copy = MemoryLog(4096)
        cuts = 0
        ends: set[int] = set()
        broken: list[int] = []

        def on_cut() -> None:
            nonlocal cuts
            cuts += 1
            ends.add(copy.end_offset)
            if not master.log.content().startswith(copy.content()):
                broken.append(copy.end_offset)
            if master.log.end_offset - copy.end_offset < 64:
                master.append(numbers.randbytes(64))

        master.append(numbers.randbytes(64))
        async with (
            serving(master),
            Forwarder(master.address, limits=CUTS, on_end=on_cut) as proxy,
            following(proxy.address, log=copy, config=FAST) as slave,
        ):
            await eventually(lambda: proxy.connections > len(CUTS), timeout_s=60, what="every cut was made")
            await eventually(lambda: copy.end_offset == master.log.end_offset, what="the slave is level")
            assert slave.replica.connected
            assert copy.content() == master.log.content()
        assert broken == []
        assert cuts >= 600
        assert len(ends) > 100, "the cuts must reach beyond the frames"

    asyncio.run(scenario())
