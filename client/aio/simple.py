"""The simple consumer, for asyncio."""

from __future__ import annotations

from typing import Any

from ..signatures import taking
from ..simple_consumer import SimpleConsumer
from .turns import Twin, at_once, in_thread


class AsyncSimpleConsumer(Twin):
    """:class:`~penstock.client.SimpleConsumer`, awaited. Methods, arguments and errors are the same.

    A receive that is cancelled may have been given messages: they come again when their time is over.
    """

    _sync: SimpleConsumer

    @taking(SimpleConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = SimpleConsumer(*arguments, **settings)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._sync.group

    @property
    def client_id(self) -> str:
        """The name of this consumer."""
        return self._sync.client_id

    subscribe = at_once(SimpleConsumer.subscribe)
    unsubscribe = at_once(SimpleConsumer.unsubscribe)
    receive = in_thread(SimpleConsumer.receive)
    ack = in_thread(SimpleConsumer.ack)
    change_invisible = in_thread(SimpleConsumer.change_invisible)
    forward_to_dead_letters = in_thread(SimpleConsumer.forward_to_dead_letters)
    close = in_thread(SimpleConsumer.close)
