"""Queues that senders choose themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.proto.errors import InvalidArgument, TopicNotFound

from ..message import Message, MessageQueue
from .directory import Directory
from .queues import ordered_queues, writable_queues

if TYPE_CHECKING:
    from penstock.proto.wire.nameserver_pb2 import TopicRoute

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""``selector(queues, message)``: one of ``queues``, which are all queues of the topic that may be written, sorted."""


class Choices:
    """Checks senders' choices against what the topics have. Thread-safe.

    A broker group without a living master keeps its queues: so a selector that counts sees the same ones throughout a
    failover, and a message waits for its group.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        # By topic: the route, its queues in order and as a set. Values are replaced; two threads may make one alike.
        self._known: dict[str, tuple[TopicRoute | None, tuple[MessageQueue, ...], frozenset[MessageQueue]]] = {}

    def place(
        self,
        topic: str,
        queue: MessageQueue | None,
        selector: Selector | None = None,
        message: Message | None = None,
    ) -> tuple[str, int]:
        """Broker name and queue id of ``queue``, or of what ``selector`` chooses for ``message``.

        Raises:
            InvalidArgument: both are given, or it is no queue of the topic that may be written.
            TopicNotFound: there is no queue to choose from.
        """
        route = self._directory.known(topic)
        known = self._known.get(topic)
        if known is None or known[0] is not route:
            writable, ordered = writable_queues(route), ordered_queues(route)
            queues = tuple(ordered or writable) or (known[1] if known is not None else ())
            known = self._known[topic] = (route, queues, frozenset((*queues, *writable)))
        _, queues, members = known
        if selector is not None:
            if queue is not None:
                raise InvalidArgument("queue and selector are both given: give one of them")
            if not queues:
                raise TopicNotFound(f"topic {topic}: it has no queue to choose from", topic=topic)
            assert message is not None
            try:
                chosen = selector(queues, message)
            except TypeError:
                if callable(selector):
                    raise
                raise InvalidArgument(f"selector must be callable, not {selector!r:.60}") from None
            return _checked(topic, chosen, "the selector chose", members)
        return _checked(topic, queue, "queue", members)


def _checked(topic: str, queue: object, what: str, members: frozenset[MessageQueue]) -> tuple[str, int]:
    if isinstance(queue, tuple) and len(queue) == 3 and queue in members:
        return queue[1], queue[2]
    raise InvalidArgument(
        f"{what} {queue!r:.200}: that is no queue of topic {topic} which may be written, of which it has "
        f"{len(members)}: penstock topic show {topic} lists them"
    )
