"""A whole broker inside a test's event loop, or as a process of its own, and a small client for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from penstock.broker.broker import Broker, serving
from penstock.broker.config import BrokerConfig, load_broker_config
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import PenstockError, from_rpc_error
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.runtime.channel import open_async_channel, open_channel
from tests.support.broker.requests import batch, wanting
from tests.support.data import connected_to
from tests.support.waiting import wait_until

SMALL = {
    "brokerClusterName": "main",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxMessageSize": str(256 << 10),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


def write_config(directory: Path, **settings: object) -> Path:
    """A ``broker.conf`` for a small broker with its store under ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {**SMALL, "storePathRootDir": str(directory / "store"), **{k: str(v) for k, v in settings.items()}}
    path = directory / "broker.conf"
    path.touch(mode=0o600)  # it may hold a secret
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


def small_config(directory: Path, **settings: object) -> BrokerConfig:
    """The same, read."""
    return load_broker_config(write_config(directory, **settings))


class Caller:
    """Calls one broker; errors come back as the broker raised them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = open_async_channel(address)
        self.stub = BrokerStub(self.channel)  # type: ignore[no-untyped-call]

    async def call(self, method: str, request: Any, stub: Callable[[grpc.aio.Channel], Any] | None = None) -> Any:
        """The answer of a method of ``stub``, a feature's service, or of the broker's own."""
        service = self.stub if stub is None else stub(self.channel)
        try:
            return await getattr(service, method)(request, timeout=10, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.address) from None

    async def create_topic(self, topic: str = "orders", queues: int = 4) -> None:
        config = common_pb2.TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6)
        await self.call("CreateTopic", broker_pb2.CreateTopicRequest(config=config))

    async def append_bytes(self, request: bytes) -> broker_pb2.AppendReceipt:
        async with asyncio.timeout(10), connected_to(self.address) as connection:
            return broker_pb2.AppendReceipt.FromString(await connection.ask(Method.APPEND, request))

    async def append(self, bodies: Sequence[bytes] = (b"one",), **settings: Any) -> broker_pb2.AppendReceipt:
        return await self.append_bytes(batch(bodies, **settings))

    async def fetch_bytes(self, request: bytes) -> tuple[broker_pb2.FetchReply, bytes]:
        async with asyncio.timeout(20), connected_to(self.address) as connection:
            reply = await connection.ask(Method.FETCH, request)
        header, body = frames.unpack(reply, broker_pb2.FetchReply)
        return header, bytes(body)

    async def fetch(self, *queues: tuple[int, int], **settings: Any) -> tuple[broker_pb2.FetchReply, bytes]:
        return await self.fetch_bytes(frames.pack(wanting(*queues, **settings)))

    async def status(self) -> broker_pb2.BrokerStatus:
        answer: broker_pb2.BrokerStatus = await self.call("Status", common_pb2.Empty())
        return answer


@contextlib.asynccontextmanager
async def calling(address: str) -> AsyncIterator[Caller]:
    """A caller whose channel is closed at the end."""
    caller = Caller(address)
    try:
        yield caller
    finally:
        await caller.channel.close()


@contextlib.asynccontextmanager
async def running(directory: Path, **settings: object) -> AsyncIterator[tuple[Broker, Caller]]:
    """A broker of this process and a caller for it."""
    async with serving(small_config(directory, **settings)) as broker, calling(broker.address) as caller:
        yield broker, caller


class BrokerProcess:
    """``python -m penstock.broker`` with its log in a file."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.config_path = write_config(directory, **settings)
        self.log_path = directory / "broker.log"
        self._start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.broker", "-c", str(self.config_path)],
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
            )

    def log(self) -> str:
        """What this process has logged."""
        return self.log_path.read_bytes()[self._start :].decode(errors="replace")

    def wait_ready(self, timeout_s: float = 90) -> str:
        """The address, once the broker is ready."""

        def ready() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log()
            return re.search(r"broker ready .* address=(\S+) seconds=([\d.]+)", self.log())

        found = wait_until(ready, timeout_s, "the ready line")
        assert found is not None
        return found[1]

    def end(self, signal_number: int = signal.SIGTERM, timeout_s: float = 10) -> int:
        """Send the signal and wait; the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def broker_process(directory: Path, **settings: object) -> Iterator[BrokerProcess]:
    """A broker process that is gone at the end, whatever happens."""
    broker = BrokerProcess(directory, **settings)
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.process.kill()
            broker.process.wait(10)


def sync_status(address: str) -> broker_pb2.BrokerStatus:
    """The status of the broker at ``address``, without an event loop."""
    with open_channel(address) as channel:
        try:
            status: broker_pb2.BrokerStatus = BrokerStub(channel).Status(common_pb2.Empty(), timeout=5)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            raise from_rpc_error(error, address) from None
    return status


__all__ = [
    "BrokerProcess",
    "Caller",
    "PenstockError",
    "broker_process",
    "calling",
    "running",
    "small_config",
    "sync_status",
    "write_config",
]
