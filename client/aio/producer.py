"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from penstock.proto.errors import DeliveryFailed

from ..config import ProducerConfig
from ..message import Message, SendReceipt
from ..producer import CLOSE_TIMEOUT_S, Producer

log = logging.getLogger(__name__)


class AsyncProducer:
    """:class:`~penstock.client.Producer`, awaited. Nothing here blocks the event loop.

    Cancelling a send takes back nothing: the message may be sent all the same.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        group: str = "DEFAULT_PRODUCER",
        config: ProducerConfig | None = None,
        **settings: Any,
    ) -> None:
        self._producer = Producer(nameservers, group=group, config=config, **settings)

    @property
    def producer(self) -> Producer:
        """The producer underneath."""
        return self._producer

    @property
    def pending(self) -> int:
        """Messages that are accepted and not yet acknowledged or given up."""
        return self._producer.pending

    async def send(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for its receipt; sends of many tasks share batches."""
        future = await self.send_async(topic, body, tag, keys, properties, sharding_key, timeout_s=timeout_s)
        return await future

    async def send_async(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Start to send one message; the future of the running loop ends as :meth:`send` would."""
        arguments = (topic, body, tag, keys, properties, sharding_key)
        if self._producer.would_block(topic, len(body)):
            future = await asyncio.to_thread(self._producer.send_async, *arguments, timeout_s=timeout_s)
        else:
            future = self._producer.send_async(*arguments, timeout_s=timeout_s)
        return asyncio.wrap_future(future)

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send one message once; nobody learns whether it arrived."""
        arguments = (topic, body, tag, keys, properties, sharding_key)
        if self._producer.would_block(topic, len(body)):
            await asyncio.to_thread(self._producer.send_oneway, *arguments, timeout_s=timeout_s)
        else:
            self._producer.send_oneway(*arguments, timeout_s=timeout_s)

    async def send_batch(self, messages: Sequence[Message], *, timeout_s: float | None = None) -> list[SendReceipt]:
        """Send messages together and wait; the receipts are in their order."""
        return await asyncio.to_thread(self._producer.send_batch, messages, timeout_s=timeout_s)

    async def produce(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer one message; acknowledged by :meth:`flush`. Waits only while the buffer is full."""
        arguments = (topic, body, tag, keys, properties, sharding_key)
        if self._producer.would_block(topic, len(body)):
            await asyncio.to_thread(self._producer.produce, *arguments, timeout_s=timeout_s)
        else:
            self._producer.produce(*arguments, timeout_s=timeout_s)

    async def produce_many(
        self,
        topic: str,
        bodies: Any,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[Any] | None = None,
        sharding_keys: Any = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer many messages in one call, column by column."""
        await asyncio.to_thread(
            self._producer.produce_many, topic, bodies, tags, keys, sharding_keys, timeout_s=timeout_s
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything so far is acknowledged or given up. Raises DeliveryFailed."""
        await asyncio.to_thread(self._producer.flush, timeout_s)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then stop. May be called again. Raises DeliveryFailed."""
        await asyncio.to_thread(self._producer.close, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            log.warning("closed with undelivered messages %s", failed)
