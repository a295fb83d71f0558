"""Administration for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from penstock.proto import names
from penstock.runtime.security.credentials import Credentials, Tls

from ..admin import CALL_TIMEOUT_S, Admin
from ..administer.admin_results import ClusterInfo, GroupInfo, GroupLag, QueuePosition, TopicInfo, TopicStats
from ..message import MessageView


class AsyncAdmin:
    """:class:`~penstock.client.Admin`, awaited; each call runs in a thread."""

    def __init__(
        self, nameservers: str | Sequence[str], *, tls: Tls | None = None, credentials: Credentials | None = None
    ) -> None:
        self._admin = Admin(nameservers, tls=tls, credentials=credentials)

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = names.PERM_READ_WRITE,
        attributes: Mapping[str, str] | None = None,
        brokers: Sequence[str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TopicInfo:
        """See :meth:`penstock.client.Admin.create_topic`."""
        return await asyncio.to_thread(
            self._admin.create_topic,
            topic,
            queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            attributes=attributes,
            brokers=brokers,
            timeout_s=timeout_s,
        )

    async def update_topic(
        self,
        topic: str,
        queues: int | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        attributes: Mapping[str, str] | None = None,
        brokers: Sequence[str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TopicInfo:
        """See :meth:`penstock.client.Admin.update_topic`."""
        return await asyncio.to_thread(
            self._admin.update_topic,
            topic,
            queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            attributes=attributes,
            brokers=brokers,
            timeout_s=timeout_s,
        )

    async def delete_topic(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """See :meth:`penstock.client.Admin.delete_topic`."""
        await asyncio.to_thread(self._admin.delete_topic, topic, timeout_s=timeout_s)

    async def forget_shard(self, broker_name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """See :meth:`penstock.client.Admin.forget_shard`."""
        await asyncio.to_thread(self._admin.forget_shard, broker_name, timeout_s=timeout_s)

    async def list_topics(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[str]:
        """See :meth:`penstock.client.Admin.list_topics`."""
        return await asyncio.to_thread(self._admin.list_topics, timeout_s=timeout_s)

    async def topic(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> TopicInfo:
        """See :meth:`penstock.client.Admin.topic`."""
        return await asyncio.to_thread(self._admin.topic, topic, timeout_s=timeout_s)

    async def topic_stats(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> TopicStats:
        """See :meth:`penstock.client.Admin.topic_stats`."""
        return await asyncio.to_thread(self._admin.topic_stats, topic, timeout_s=timeout_s)

    async def create_group(
        self,
        group: str,
        *,
        consume_enable: bool = True,
        retry_max_times: int = 16,
        attributes: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> GroupInfo:
        """See :meth:`penstock.client.Admin.create_group`."""
        return await asyncio.to_thread(
            self._admin.create_group,
            group,
            consume_enable=consume_enable,
            retry_max_times=retry_max_times,
            attributes=attributes,
            timeout_s=timeout_s,
        )

    async def delete_group(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """See :meth:`penstock.client.Admin.delete_group`."""
        await asyncio.to_thread(self._admin.delete_group, group, timeout_s=timeout_s)

    async def list_groups(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[str]:
        """See :meth:`penstock.client.Admin.list_groups`."""
        return await asyncio.to_thread(self._admin.list_groups, timeout_s=timeout_s)

    async def group(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> GroupInfo:
        """See :meth:`penstock.client.Admin.group`."""
        return await asyncio.to_thread(self._admin.group, group, timeout_s=timeout_s)

    async def group_lag(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> GroupLag:
        """See :meth:`penstock.client.Admin.group_lag`."""
        return await asyncio.to_thread(self._admin.group_lag, group, timeout_s=timeout_s)

    async def reset_offset(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        queues: Sequence[tuple[str, int]] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[QueuePosition]:
        """See :meth:`penstock.client.Admin.reset_offset`."""
        return await asyncio.to_thread(
            self._admin.reset_offset,
            group,
            topic,
            to,
            timestamp_ms=timestamp_ms,
            offset=offset,
            queues=queues,
            timeout_s=timeout_s,
        )

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[QueuePosition]:
        """See :meth:`penstock.client.Admin.clone_offsets`."""
        return await asyncio.to_thread(self._admin.clone_offsets, source, target, topic, timeout_s=timeout_s)

    async def cluster(self, *, timeout_s: float = CALL_TIMEOUT_S) -> ClusterInfo:
        """See :meth:`penstock.client.Admin.cluster`."""
        return await asyncio.to_thread(self._admin.cluster, timeout_s=timeout_s)

    async def message_by_id(
        self, message_id: str, topic: str | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> MessageView:
        """See :meth:`penstock.client.Admin.message_by_id`."""
        return await asyncio.to_thread(self._admin.message_by_id, message_id, topic, timeout_s=timeout_s)

    async def message_at(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        broker_name: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> MessageView:
        """See :meth:`penstock.client.Admin.message_at`."""
        return await asyncio.to_thread(
            self._admin.message_at, topic, queue_id, offset, broker_name=broker_name, timeout_s=timeout_s
        )

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 0,
        max_count: int = 32,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[MessageView]:
        """See :meth:`penstock.client.Admin.query_messages`."""
        return await asyncio.to_thread(
            self._admin.query_messages,
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_count=max_count,
            timeout_s=timeout_s,
        )

    async def close(self) -> None:
        """Close all connections. May be called again."""
        await asyncio.to_thread(self._admin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
