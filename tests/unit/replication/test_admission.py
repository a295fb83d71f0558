"""Who is refused by name, and why: over a real data port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.formats.epochs import Epoch
from penstock.proto.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotMaster,
    PenstockError,
    WrongCluster,
    WrongStore,
)
from penstock.replication import EpochHistory, ReplicationConfig, frames
from penstock.replication.admission import tail_of
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import following, hello_of, identity, new_master, raw_slave, serving
from tests.support.waiting import eventually

QUICK = ReplicationConfig(heartbeat_interval_ms=20)


def log_of(content: bytes, segment_bytes: int = 1 << 20) -> MemoryLog:
    log = MemoryLog(segment_bytes)
    log.write(content)
    return log


def greeting(broker_id: int = 1, *, end: int = 0, **more: Any) -> bytes:
    own = more.pop("identity", identity(broker_id))
    settings: dict[str, Any] = {"store_instance": "one", "end_offset": end} | more
    return hello_of(own, settings.pop("epochs", None), **settings)


async def refusal(address: str, *messages: bytes) -> PenstockError:
    """How the master ends the stream of a slave that says ``messages``."""
    async with raw_slave(address) as slave:
        try:
            for message in messages:
                await slave.send(message)
            await slave.receive_until(lambda _: False)
        except PenstockError as error:
            return error
    raise AssertionError("not reached")


REFUSED: list[tuple[str, bytes, type[PenstockError], str]] = [
    ("another cluster", greeting(identity=identity(1, cluster="other")), WrongCluster, "'other'"),
    ("another broker group", greeting(identity=identity(1, name="broker-b")), WrongCluster, "broker-b"),
    ("the master's own id", greeting(0), WrongCluster, "brokerId"),
    ("a negative id", greeting(identity=identity(-1)), InvalidArgument, "negative"),
    ("ahead of the master", greeting(end=2000), WrongStore, "2000.*1000"),
    ("a negative end", greeting(end=-1), InvalidArgument, "end_offset -1"),
    ("other last bytes", greeting(end=900, tail_bytes=8, tail_crc=123), WrongStore, "another history.*900.*1000"),
    ("a tail longer than its log", greeting(end=900, tail_bytes=1000, tail_crc=1), InvalidArgument, "tail"),
    ("a later epoch", greeting(end=900, epochs=EpochHistory([Epoch(9, 0)])), NotMaster, "epoch 9"),
    ("other epochs", greeting(end=900, epochs=EpochHistory([Epoch(1, 4)])), WrongStore, "no epoch is the same"),
    ("a long instance", greeting(store_instance="x" * 65), InvalidArgument, "instance"),
    ("an acknowledgement first", frames.ack(4, 0, 0), InvalidArgument, "first report must be a hello"),
    ("noise", b"GET / HTTP/1.1\r\n\r\n", InvalidArgument, "frame"),
    ("an empty message", b"", InvalidArgument, "frame"),
    ("no report", b"\0\0\0\0", InvalidArgument, "no known kind"),
    ("bytes behind the report", greeting() + b"more", InvalidArgument, "carry no bytes"),
]


@pytest.mark.parametrize(("who", "message", "error", "words"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_slave_is_refused_by_name(who: str, message: bytes, error: type[PenstockError], words: str) -> None:
    async def scenario() -> None:
        log = log_of(bytes(range(250)) * 4, 512)
        log.drop_before(512)
        epochs = EpochHistory([Epoch(3, 0), Epoch(4, 700)])
        async with serving(new_master(log, QUICK, epoch=4, epochs=epochs)) as master:
            refused = await refusal(master.address, message)
            assert type(refused) is error
            with pytest.raises(error, match=words):
                raise refused
            assert not any(replica.connected for replica in master.primary.replicas())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("segment_bytes", "content", "words"),
    [(2 << 20, b"", "mappedFileSizeCommitLog"), (1 << 20, b"another history", "another history")],
)
def test_a_slave_that_does_not_fit_says_so_and_changes_nothing(segment_bytes: int, content: bytes, words: str) -> None:
    async def scenario() -> None:
        copy = log_of(content, segment_bytes)
        async with (
            serving(new_master(log_of(b"the master's bytes"), QUICK)) as master,
            following(master.address, log=copy) as slave,
        ):
            await eventually(lambda: slave.replica.last_error, what="the refusal")
            with pytest.raises(WrongStore, match=words):
                raise slave.replica.last_error or AssertionError
            assert copy.content() == content
            assert not slave.replica.connected

    asyncio.run(scenario())


def test_a_slave_refuses_a_master_of_another_group() -> None:
    """The address leads to a foreign master: even one that lets everybody in must not be followed."""

    async def scenario() -> None:
        master = new_master(log_of(b"foreign bytes"), QUICK, identity=identity(0, name="broker-b"))
        master.primary._admit = _admit_anybody(master.primary._admit)  # type: ignore[method-assign]
        async with serving(master), following(master.address) as slave:
            await eventually(lambda: slave.replica.last_error, what="the refusal")
            assert isinstance(slave.replica.last_error, WrongCluster)
            assert slave.log.end_offset == 0

    asyncio.run(scenario())


def _admit_anybody(admit: Callable[[frames.Hello, Any], Any]) -> Callable[[frames.Hello, Any], Any]:
    def lenient(hello: frames.Hello, line: Any) -> Any:
        hello.identity.broker_name = "broker-b"
        return admit(hello, line)

    return lenient


def test_a_second_slave_with_the_same_id_is_refused_while_the_first_lives() -> None:
    async def scenario() -> None:
        async with serving(new_master(log_of(b"bytes"), QUICK)) as master, following(master.address, 1) as first:
            await eventually(lambda: first.log.end_offset == 5)
            twin = identity(1)
            twin.address = "10.9.9.9:10911"
            refused = await refusal(master.address, greeting(identity=twin, store_instance="two"))
            assert isinstance(refused, WrongCluster)
            assert "brokerId" in str(refused)
            assert first.replica.connected
            assert master.primary.replicas()[0].connected

    asyncio.run(scenario())


def test_a_restarted_slave_takes_the_place_of_its_older_stream() -> None:
    async def scenario() -> None:
        async with (
            serving(new_master(log_of(b"bytes"), QUICK)) as master,
            raw_slave(master.address) as older,
            raw_slave(master.address) as newer,
        ):
            await older.send(greeting())
            assert (await older.receive()).welcome is not None
            await newer.send(greeting(store_instance="after the restart"))
            assert (await newer.receive()).welcome is not None
            with pytest.raises(BrokerUnavailable, match="connected again"):
                await older.receive_until(lambda _: False)
            [replica] = master.primary.replicas()
            assert replica.connected

    asyncio.run(scenario())


def test_the_tail_that_is_compared_stays_within_one_file() -> None:
    log = log_of(bytes(1000), 512)
    assert tail_of(log, 1000)[0] == 1000 - 512
    assert tail_of(log, 512)[0] == 512
    assert tail_of(log, 513)[0] == 1
    assert tail_of(log, 0) == (0, 0)
