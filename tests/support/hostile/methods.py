"""Every method that broker, nameserver and gateway serve, from the generated descriptors; the framed ones by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Literal, NamedTuple

from google.protobuf.descriptor import Descriptor, FileDescriptor

from penstock.gateway.v2.wire import service_pb2
from penstock.proto import wire
from penstock.proto.data_frames import Method as DataMethod
from penstock.proto.wire import broker_pb2, pipeline_pb2, pop_pb2, replication_pb2, transactions_pb2

FOREIGN = ("etcd",)
"""Files whose services Penstock calls and does not serve."""
NAMESERVER_FILES = ("nameserver", "coordination")
Server = Literal["broker", "nameserver", "gateway"]


class Method(NamedTuple):
    """One method; ``header`` of the framed, else ``request``."""

    path: str
    request: Descriptor
    is_stream: bool
    is_framed: bool
    server: Server
    is_answered_by_stream: bool = False  # one request, whose answers are a stream


AT_DATA_PORT = {
    DataMethod.APPEND: Method("Append", broker_pb2.AppendHeader.DESCRIPTOR, False, True, "broker"),
    DataMethod.FETCH: Method("Fetch", broker_pb2.FetchHeader.DESCRIPTOR, False, True, "broker"),
    DataMethod.END: Method("End", transactions_pb2.EndRequest.DESCRIPTOR, False, False, "broker"),
    DataMethod.RECEIVE: Method("Receive", pop_pb2.ReceiveHeader.DESCRIPTOR, False, False, "broker"),
    DataMethod.ACKNOWLEDGE: Method("Acknowledge", pop_pb2.AcknowledgeRequest.DESCRIPTOR, False, False, "broker"),
    DataMethod.CHANGE_INVISIBLE: Method(
        "ChangeInvisible", pop_pb2.ChangeInvisibleRequest.DESCRIPTOR, False, False, "broker"
    ),
    DataMethod.REPLICATE: Method("Replicate", replication_pb2.ReplicaReport.DESCRIPTOR, True, True, "broker"),
    DataMethod.STAGE: Method("Stage", pipeline_pb2.StageHeader.DESCRIPTOR, False, True, "broker"),
}
"""Of the data port, which has no paths."""


def methods() -> list[Method]:
    """All of gRPC's."""
    found: list[Method] = []
    for module in pkgutil.iter_modules(wire.__path__):
        name, _, kind = module.name.rpartition("_")
        if kind == "pb2" and name not in FOREIGN:
            content: FileDescriptor = importlib.import_module(f"{wire.__name__}.{module.name}").DESCRIPTOR
            found += _of_file(content, "nameserver" if name in NAMESERVER_FILES else "broker")
    found += _of_file(service_pb2.DESCRIPTOR, "gateway")
    return found


def _of_file(content: FileDescriptor, server: Server) -> Iterator[Method]:
    for service in content.services_by_name.values():
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            is_answered_by_stream = method.server_streaming and not method.client_streaming
            yield Method(path, method.input_type, method.client_streaming, False, server, is_answered_by_stream)
