"""Every method that a broker or a nameserver serves, from the generated descriptors; the framed ones by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FileDescriptor

from penstock.proto import wire
from penstock.proto.data_frames import Method as DataMethod
from penstock.proto.wire import broker_pb2, pipeline_pb2, pop_pb2, replication_pb2, transactions_pb2

FOREIGN = ("etcd",)
"""Files whose services Penstock calls and does not serve."""
NAMESERVER_FILES = ("nameserver", "coordination")


class Method(NamedTuple):
    """One method; ``header`` of the framed, else ``request``."""

    path: str
    request: Descriptor
    is_stream: bool
    is_framed: bool
    is_nameservers: bool


AT_DATA_PORT = {
    DataMethod.APPEND: Method("Append", broker_pb2.AppendHeader.DESCRIPTOR, False, True, False),
    DataMethod.FETCH: Method("Fetch", broker_pb2.FetchHeader.DESCRIPTOR, False, True, False),
    DataMethod.END: Method("End", transactions_pb2.EndRequest.DESCRIPTOR, False, False, False),
    DataMethod.RECEIVE: Method("Receive", pop_pb2.ReceiveHeader.DESCRIPTOR, False, False, False),
    DataMethod.ACKNOWLEDGE: Method("Acknowledge", pop_pb2.AcknowledgeRequest.DESCRIPTOR, False, False, False),
    DataMethod.CHANGE_INVISIBLE: Method(
        "ChangeInvisible", pop_pb2.ChangeInvisibleRequest.DESCRIPTOR, False, False, False
    ),
}
"""Of the data port, which has no paths."""
FRAMED = [
    Method("/penstock.v1.StagingData/Stage", pipeline_pb2.StageHeader.DESCRIPTOR, False, True, False),
    Method("/penstock.v1.Replication/Replicate", replication_pb2.ReplicaReport.DESCRIPTOR, True, True, False),
]


def methods() -> list[Method]:
    """All of gRPC's."""
    found = list(FRAMED)
    for module in pkgutil.iter_modules(wire.__path__):
        name, _, kind = module.name.rpartition("_")
        if kind == "pb2" and name not in FOREIGN:
            content: FileDescriptor = importlib.import_module(f"{wire.__name__}.{module.name}").DESCRIPTOR
            found += _of_file(content, name in NAMESERVER_FILES)
    return found


def _of_file(content: FileDescriptor, is_nameservers: bool) -> Iterator[Method]:
    for service in content.services_by_name.values():
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            yield Method(path, method.input_type, method.client_streaming, False, is_nameservers)
