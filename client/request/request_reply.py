"""Both sides of request-reply: the requester's and the responder's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable

from ..cluster import Calls
from ..cluster.choices import Selector
from ..cluster.directory import VIEW_AGE_S
from ..message import MessageQueue, MessageView, SendReceipt
from ..produce.drafts import Draft
from .replies import draft_of_reply
from .requests import Requests


class RequestReply:
    """Requests and replies of one producer. Thread-safe."""

    def __init__(
        self,
        calls: Calls,
        client_id: str,
        send: Callable[[Draft, float], SendReceipt],
        deadline: Callable[[float | None], float],
    ) -> None:
        """``send`` and ``deadline`` are the producer's."""
        self.requests = Requests(calls, client_id)
        self._calls = calls
        self._send = send
        self._deadline = deadline
        self._clusters: dict[str, str] = {}  # by broker name; two threads may find one each

    def request(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> MessageView:
        """Send one message and wait for the reply to it, which whoever consumes it sends with :meth:`reply`.

        ``timeout_s`` (default: the send time-out) covers the message, its consumer's work and the reply. Rides through
        a failover: a reply that its sender knows to be stored arrives, if it is in time.

        Raises:
            Refused, Retryable: the request is not stored.
            OutcomeUnknown: no reply in time; the message says whether the request is known to be stored. It may be
                processed, or still be.
            BufferFull: 65,536 requests wait already; this one was not sent.
        """
        deadline = self._deadline(timeout_s)
        with self.requests.begin(topic, deadline - time.monotonic()) as request:
            own = request.properties(properties)
            draft = Draft(topic, body, tag, keys, own, sharding_key, queue=queue, selector=selector)
            request.on_sent(self._send(draft, deadline))
            return request.reply()

    def reply(
        self,
        message: MessageView,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Reply to a request that a consumer got, and wait for the receipt: the reply is stored, and not lost any more.

        Whether the requester still waits, nobody knows here; one that has given up, or is gone, gets it never. The
        receipt is of the cluster's topic of replies.

        Raises:
            InvalidArgument: ``message`` is no request.
            Refused, Retryable: the reply is not stored. OutcomeUnknown: it may be.
        """
        deadline = self._deadline(timeout_s)
        draft = draft_of_reply(message, body, tag, keys, properties)
        draft.replies_at = (self._cluster_of(message.broker_name, deadline), message.broker_name)
        receipt = self._send(draft, deadline)
        return receipt._replace(topic=names.reply_topic(draft.replies_at[0]))

    def close(self) -> None:
        """Wait for no reply any more. May be called again."""
        self.requests.close()

    def _cluster_of(self, broker_name: str, deadline: float) -> str:
        known = self._clusters.get(broker_name)
        if known is None:
            view = self._calls.directory.cluster(max(deadline - time.monotonic(), 0.0), age_s=VIEW_AGE_S)
            found = {shard.broker_name: shard.cluster for shard in (*view.shards, *view.absent)}
            if broker_name not in found:
                raise BrokerUnavailable(f"broker group {broker_name}: no nameserver knows it now: try again")
            known = self._clusters[broker_name] = found[broker_name]
        return known
