"""A nameserver and a broker that acknowledge every batch and keep nothing: what the sink can do where no broker limits.

``python -m penstock.bench.spark.discarding TOPIC QUEUES`` prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2, nameserver_pb2_grpc
from penstock.runtime.channel import SERVER_OPTIONS

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


async def _append(batches: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in batches:
        receipt = broker_pb2.AppendReceipt(store_timestamp_ms=time.time_ns() // 1_000_000)
        yield broker_pb2.AppendAnswer(receipt=receipt).SerializeToString()


async def _serve(topic: str, queues: int) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    names = _Nameserver(topic, queues)
    nameserver_pb2_grpc.add_NameserverServicer_to_server(names, server)  # type: ignore[no-untyped-call]  # generated
    methods = {"Append": grpc.stream_stream_rpc_method_handler(_append)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.v1.BrokerData", methods),))
    names.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(names.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(1)  # calls may end


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
