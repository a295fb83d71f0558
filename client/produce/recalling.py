"""Taking messages for later back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.recall_handle import RecallHandle
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.later_pb2 import RecallRequest
from penstock.proto.wire.later_pb2_grpc import LaterStub

from ..cluster import Calls, Service

if TYPE_CHECKING:
    from ..trace.sending import SendTrace

LATER: Service = LaterStub


def recall(calls: Calls, topic: str, recall_handle: str, timeout_s: float, trace: SendTrace | None) -> bool:
    """True if the message was taken back in time; see :meth:`~penstock.client.Producer.recall`."""
    handle = RecallHandle.decode(recall_handle)
    if handle.topic != topic:
        raise InvalidArgument(f"recall from topic {topic!r:.80}: the handle is of topic {handle.topic!r:.80}")
    request = RecallRequest(topic=topic, unique_key=handle.unique_key, due_ms=handle.due_ms)
    in_time = bool(calls.at_master(handle.broker_name, "Recall", request, timeout_s, service=LATER).in_time)
    if trace is not None:
        trace.on_recalled(topic, handle.unique_key, success=in_time)
    return in_time
