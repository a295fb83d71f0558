"""Administration for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.runtime.security.credentials import Credentials, Tls

from ..admin import Admin
from .turns import in_thread


class AsyncAdmin:
    """:class:`~penstock.client.Admin`, awaited; each call runs in a thread. Arguments and errors are the same."""

    def __init__(
        self, nameservers: str | Sequence[str], *, tls: Tls | None = None, credentials: Credentials | None = None
    ) -> None:
        self._sync = Admin(nameservers, tls=tls, credentials=credentials)

    create_topic = in_thread(Admin.create_topic)
    update_topic = in_thread(Admin.update_topic)
    delete_topic = in_thread(Admin.delete_topic)
    forget_shard = in_thread(Admin.forget_shard)
    list_topics = in_thread(Admin.list_topics)
    topic = in_thread(Admin.topic)
    topic_stats = in_thread(Admin.topic_stats)

    create_group = in_thread(Admin.create_group)
    delete_group = in_thread(Admin.delete_group)
    list_groups = in_thread(Admin.list_groups)
    group = in_thread(Admin.group)
    group_lag = in_thread(Admin.group_lag)

    reset_offset = in_thread(Admin.reset_offset)
    clone_offsets = in_thread(Admin.clone_offsets)

    cluster = in_thread(Admin.cluster)
    message_by_id = in_thread(Admin.message_by_id)
    message_at = in_thread(Admin.message_at)
    query_messages = in_thread(Admin.query_messages)
    close = in_thread(Admin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
