"""A nameserver and a broker that acknowledge every batch and keep nothing: what the sink can do where no broker limits.

``python -m penstock.bench.spark.discarding TOPIC QUEUES`` prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc

from penstock.proto.data_frames import Method
from penstock.proto.wire import (
    broker_pb2,
    common_pb2,
    data_pb2,
    data_pb2_grpc,
    nameserver_pb2,
    nameserver_pb2_grpc,
)
from penstock.runtime.channel import SERVER_OPTIONS
from penstock.runtime.data.port import DataPort, Link

_BROKER = "discarding"
_READABLE_AND_WRITABLE = 6


class _Nameserver(nameserver_pb2_grpc.NameserverServicer):
    """Knows one broker and one topic."""

    def __init__(self, topic: str, queues: int) -> None:
        self._topic = topic
        self._queues = queues
        self.port = 0

    async def QueryCluster(self, request: Any, context: Any) -> nameserver_pb2.ClusterView:
        return nameserver_pb2.ClusterView(shards=[self._shard()])

    async def QueryRoute(self, request: Any, context: Any) -> nameserver_pb2.RouteUpdate:
        route = nameserver_pb2.TopicRoute(topic=self._topic, exists=True, shards=[self._shard()])
        route.queues.add(
            broker_name=_BROKER,
            read_queues=self._queues,
            write_queues=self._queues,
            perm=_READABLE_AND_WRITABLE,
        )
        return nameserver_pb2.RouteUpdate(routes=[route])

    def _shard(self) -> nameserver_pb2.ShardView:
        member = nameserver_pb2.ShardMember(broker_id=0, address=f"127.0.0.1:{self.port}", role=common_pb2.MASTER)
        return nameserver_pb2.ShardView(cluster=_BROKER, broker_name=_BROKER, epoch=1, members=[member])


class _Opening(data_pb2_grpc.BrokerDataServicer):
    def __init__(self, data: DataPort) -> None:
        self._data = data

    async def Open(self, request: Any, context: Any) -> data_pb2.DataPort:
        return data_pb2.DataPort(port=self._data.number)


class _Appends:
    """Acknowledges every batch of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def take(self, number: int, content: memoryview) -> None:
        receipt = broker_pb2.AppendReceipt(store_timestamp_ms=time.time_ns() // 1_000_000)
        self._link.answer(number, Method.APPEND, receipt.SerializeToString())

    def left(self) -> None:
        """Nothing is kept."""


async def _serve(topic: str, queues: int) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    names = _Nameserver(topic, queues)
    nameserver_pb2_grpc.add_NameserverServicer_to_server(names, server)  # type: ignore[no-untyped-call]  # generated
    data = DataPort()
    data.methods[Method.APPEND] = _Appends
    await data.open("127.0.0.1", 0, "dataPort")
    await data.start()
    data_pb2_grpc.add_BrokerDataServicer_to_server(_Opening(data), server)  # type: ignore[no-untyped-call]  # generated
    names.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(names.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(1)  # calls may end
    data.close()


@contextlib.contextmanager
def discarding(topic: str, queues: int) -> Iterator[str]:
    """The address of such a nameserver, whose process lives for the ``with`` block."""
    command = [sys.executable, "-m", __name__, topic, str(queues)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
