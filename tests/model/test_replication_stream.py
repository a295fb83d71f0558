"""Streams that lose, repeat, reorder and break frames at any place: the copy stays a prefix and becomes whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.proto.errors import BrokerUnavailable, PenstockError
from penstock.replication import ReplicationConfig, frames
from tests.support.broker.memory_log import MemoryLog
from tests.support.broker.replicating import Master, following, new_master, serving
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
Tamper = Callable[[int, bytes], list[bytes]]
"""(number of the message from 0, message) -> what arrives in its place; raises BrokerUnavailable to cut."""


class PipeCall:
    """Joins a Replica to a Primary without a network: what a gRPC call is to the slave."""

    def __init__(self, master: Master, tamper: Tamper) -> None:
        self._reports: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._stream = master.primary.serve(self._requests(), None)
        self._tamper = tamper
        self._count = 0
        self._arrived: list[bytes] = []

    async def _requests(self) -> AsyncIterator[bytes]:
        while (message := await self._reports.get()) is not None:
            yield message

    async def write(self, message: bytes) -> None:
        await self._reports.put(message)

    async def done_writing(self) -> None:
        await self._reports.put(None)

    async def read(self) -> bytes | None:
        while not self._arrived:
            try:
                message = await anext(self._stream)
            except StopAsyncIteration:
                return None
            self._arrived = self._tamper(self._count, message)
            self._count += 1
        return self._arrived.pop(0)

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]


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
            frames.data(
                frame.epoch - shift[1],
                frame.start + shift[0],
                frame.data,
                confirm=frame.confirm,
                end=frame.end + shift[0],
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
                call = PipeCall(master, Saboteur(fault, at))
                with contextlib.suppress(PenstockError, TimeoutError):
                    async with asyncio.timeout(0.03):
                        await slave.replica._converse(call, "pipe")
                await call.close()
                check()
            call = PipeCall(master, lambda _, message: [message])
            whole = asyncio.create_task(slave.replica._converse(call, "pipe"))
            await eventually(lambda: master.primary.confirm_offset == master.log.end_offset, what="all confirmed")
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)
            await call.close()
            check()
            assert copy.content() == master.log.content()

    asyncio.run(scenario())


class CuttingProxy:
    """Forwards TCP connections and cuts connection n after n bytes towards the slave."""

    def __init__(self, target: str, cuts: range, on_cut: Callable[[], None]) -> None:
        self._target = target
        self._cuts = iter(cuts)
        self._on_cut = on_cut
        self.done = False
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        limit = next(self._cuts, None)
        self.done = limit is None
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        upward = asyncio.create_task(self._pump(reader, up_writer, None))
        downward = asyncio.create_task(self._pump(up_reader, writer, limit))
        self._tasks |= {upward, downward}
        await asyncio.wait({upward, downward}, return_when=asyncio.FIRST_COMPLETED)
        for task, end in ((upward, up_writer), (downward, writer)):
            task.cancel()
            end.transport.abort()
        await asyncio.gather(upward, downward, return_exceptions=True)
        self._tasks -= {upward, downward}
        self._on_cut()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
        passed = 0
        while data := await reader.read(65536):
            if limit is not None and passed + len(data) >= limit:
                writer.write(data[: limit - passed])
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                return
            passed += len(data)
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()


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
            CuttingProxy(master.address, range(1, 600), on_cut) as proxy,
            following(proxy.address, log=copy, config=FAST) as slave,
        ):
            await eventually(lambda: proxy.done, timeout_s=60, what="every cut was made")
            await eventually(lambda: copy.end_offset == master.log.end_offset, what="the slave is level")
            assert slave.replica.connected
            assert copy.content() == master.log.content()
        assert broken == []
        assert cuts >= 600
        assert len(ends) > 100, "the cuts must reach beyond the frames"

    asyncio.run(scenario())
