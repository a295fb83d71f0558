"""Administration for asyncio."""

from __future__ import annotations

from typing import Any

from ..admin import Admin
from ..signatures import taking
from .turns import Twin, in_thread


class AsyncAdmin(Twin):
    """:class:`~penstock.client.Admin`, awaited; each call runs in a thread. Arguments and errors are the same."""

    _sync: Admin

    @taking(Admin.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = Admin(*arguments, **settings)

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
    producers = in_thread(Admin.producers)

    reset_offset = in_thread(Admin.reset_offset)
    clone_offsets = in_thread(Admin.clone_offsets)

    cluster = in_thread(Admin.cluster)
    message_by_id = in_thread(Admin.message_by_id)
    message_at = in_thread(Admin.message_at)
    query_messages = in_thread(Admin.query_messages)
    trace = in_thread(Admin.trace)
    message_track = in_thread(Admin.message_track)
    close = in_thread(Admin.close)
