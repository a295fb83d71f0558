"""Administration: topics, consumer groups and their offsets, the cluster's state, single messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from penstock.formats.trace import TRACE_TOPIC
from penstock.proto import errors, names
from penstock.proto.wire.broker_pb2 import CreateTopicRequest, GroupName, TopicName
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.nameserver_pb2 import ShardName, TopicRoute
from penstock.runtime.security.credentials import Credentials, Tls

from . import arguments
from .administer import group_offsets, message_lookup, topics
from .administer.admin_results import (
    ClusterInfo,
    GroupInfo,
    GroupLag,
    MessageTrace,
    MessageTrack,
    ProducerInfo,
    QueuePosition,
    RetryPolicy,
    TopicInfo,
    TopicStats,
)
from .administer.cluster_view import cluster_info
from .administer.group_view import as_info, group_config, look_at_group, producers_of
from .administer.message_trace import message_trace
from .administer.message_track import message_track
from .administer.topics import MessageTypeName
from .cluster import Calls, Listing, master_of
from .cluster.routes import covers
from .inherited import Client
from .message import MessageView

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0


class Admin(Client):
    """Looks at a cluster and changes it. May be shared between threads; every method has ``timeout_s``.

    Changes go to the masters; reading falls back to a slave where a master is gone.
    """

    def __init__(
        self, nameservers: str | Sequence[str], *, tls: Tls | None = None, credentials: Credentials | None = None
    ) -> None:
        """``tls``, ``credentials``: as of :class:`~penstock.client.Producer`."""
        self._calls = Calls.to(nameservers, tls=tls, credentials=credentials)
        self._directory = self._calls.directory

    # Topics.

    def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = names.PERM_READ_WRITE,
        type: MessageTypeName | None = None,
        order_topic: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Sequence[str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TopicInfo:
        """Create ``topic`` with ``queues`` queues at each broker group that lives, or those of ``brokers``.

        ``type``: it refuses messages of others: the attribute ``message.type``. NORMAL, FIFO (with a sharding key),
        DELAY, TRANSACTION; MIXED, and None, take all. Broker groups that are down have it once it is created again.
        ``order_topic``: a sharding key keeps its queue also while that shard is down: sends of the key wait for it
        until their time-out, and the keys of other shards go on. New shards get keys by :meth:`update_topic` alone.

        Creating it again with the same shape changes nothing.

        Raises:
            BrokerUnavailable: an order topic, and not every broker group has a living master.
            TopicExists: with another shape; use :meth:`update_topic`. InvalidName, InvalidArgument.
        """
        names.check_topic(topic)
        brokers = topics.checked_brokers(brokers)
        config = topics.topic_config(
            topic,
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            perm,
            topics.with_type(attributes, type),
        )
        if arguments.flag("order_topic", order_topic, errors.InvalidArgument):
            brokers, others = (brokers, []) if brokers is not None else self._directory.masters(timeout_s)
            topics.order_queues(config, brokers, others)
        return self._put_topic(CreateTopicRequest(config=config), brokers, timeout_s)

    def update_topic(
        self,
        topic: str,
        queues: int | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        type: MessageTypeName | None = None,
        order_topic: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        brokers: Sequence[str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TopicInfo:
        """Change an existing topic; what is not given stays. Removing queues: write queues first, then read queues.

        ``type``: holds for what is sent from now on. ``attributes``: all of them, unless ``type`` alone is given; an
        empty value removes one. ``order_topic``: as of :meth:`create_topic`, over the queues that there are now.

        Raises:
            TopicNotFound: no such topic. InvalidArgument: queues that still hold unread messages would vanish.
            BrokerUnavailable: it is changed where it could be; a broker group that is down has it as it was. Of an
                order topic nothing was changed.
        """
        if order_topic is not None:
            arguments.flag("order_topic", order_topic, errors.InvalidArgument)
        brokers = topics.checked_brokers(brokers)
        known = self.topic(topic, timeout_s=timeout_s)
        config = topics.topic_config(
            topic,
            read_queues if read_queues is not None else queues,
            write_queues if write_queues is not None else queues,
            perm,
            topics.with_type(known.attributes if attributes is None and type else attributes, type),
        )
        holders = brokers if brokers is not None else [shard.broker_name for shard in known.shards]
        for step in topics.update_steps(known, config, order_topic, brokers):
            info = self._put_topic(CreateTopicRequest(config=step, update=True), holders, timeout_s)
        if known.absent and brokers is None:
            raise errors.BrokerUnavailable(
                f"topic {topic} is changed at {', '.join(holders)}, and as it was at {', '.join(known.absent)}, of "
                "which no member lives: update it again when they are there"
            )
        return info

    def delete_topic(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Delete ``topic`` with its messages and committed offsets, at every broker group.

        Raises:
            TopicNotFound: no master has it.
            BrokerUnavailable: it is deleted where it could be; a broker group without a living master has it still.
        """
        names.check_topic(topic)
        missing = 0
        targets, _ = self._directory.masters(timeout_s)
        for name in targets:
            try:
                self._calls.at_master(name, "DeleteTopic", TopicName(topic=topic), timeout_s)
            except errors.TopicNotFound:
                missing += 1
        route = self._directory.settled_route(
            topic, lambda route: not route.exists or not any(map(master_of, route.shards)), timeout_s
        )
        leaderless = (
            {shard.broker_name for shard in route.shards if master_of(shard) is None} if route.exists else set()
        )
        left = sorted(leaderless | {part.broker_name for part in route.absent})
        if left:
            raise errors.BrokerUnavailable(f"topic {topic} is still on {_masterless(left, 'delete')}")
        if missing == len(targets):
            raise self._directory.topic_not_found(topic, timeout_s)
        log.info("topic deleted topic=%s", topic)

    def forget_shard(self, broker_name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Have every nameserver tell no more of a broker group that is gone for good, and of its topics.

        Raises:
            InvalidArgument: a member of it lives, or no nameserver knows it.
            NameserverUnavailable: one does not answer; the others have forgotten it.
        """
        names.check_broker_name(broker_name)
        views, _ = self._calls.at_nameservers("QueryCluster", Empty(), timeout_s)
        for address, view in views.items():
            found = next((shard for shard in view.shards if shard.broker_name == broker_name), None)
            if found is not None:
                living = ", ".join(member.address for member in found.members)
                raise errors.InvalidArgument(
                    f"broker group {broker_name} is not gone: {living} lives, says nameserver {address}; stop it first"
                )
        told, failures = self._calls.at_nameservers("ForgetShard", ShardName(broker_name=broker_name), timeout_s)
        unknown = [error for error in failures.values() if isinstance(error, errors.InvalidArgument)]
        silent = [error.message for error in failures.values() if error not in unknown]
        if silent:
            raise errors.NameserverUnavailable(
                f"broker group {broker_name} is forgotten, but not by all: {'; '.join(silent)}"
            )
        if not told:
            raise unknown[0]

    def list_topics(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[str]:
        """The names of all topics, also of broker groups that are down, without internal ones; sorted."""
        return [topic for topic in self._directory.topics(timeout_s) if not names.is_system_topic(topic)]

    def topic(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> TopicInfo:
        """Where ``topic`` lies. Raises TopicNotFound."""
        return topics.topic_info(self._directory.existing_route(names.check_topic(topic), timeout_s))

    def topic_stats(self, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> TopicStats:
        """Offsets and message counts of every queue of ``topic``. Raises TopicNotFound."""
        return group_offsets.topic_stats(self._calls, names.check_topic(topic), timeout_s)

    # Groups.

    def create_group(
        self,
        group: str,
        *,
        consume_enable: bool | None = None,
        retry_max_times: int | None = None,
        retry_policy: RetryPolicy | Sequence[float] | None = None,
        retry_queues: int = 0,
        orderly: bool | None = None,
        broadcast_enable: bool | None = None,
        from_min_enable: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> GroupInfo:
        """Create or change a consumer group at every broker group. Consumers also create theirs by joining.

        ``consume_enable``: members get messages (new groups: True). ``retry_max_times``: a message that fails once
        more is a dead letter (16); 0: it is one at once.
        ``retry_policy``: how long a message that failed waits, or just the seconds before its first return, its
        second, …; ``retry_queues``: of the topic that it comes again in. ``orderly``: its push consumers must be so too
        (False). ``broadcast_enable``: broadcasting consumers may use its name (True). ``from_min_enable``:
        members may begin with the oldest messages while the group has committed nothing (True). ``attributes``: all of
        them; an empty value removes one. What is not given stays as it is.

        Raises:
            BrokerUnavailable: it is so where it could be made so; a broker group without a living master has it as it
                was, or not at all.
        """
        config = group_config(
            names.check_group(group),
            retry_policy,
            consume_enable=consume_enable,
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            orderly=orderly,
            broadcast_enable=broadcast_enable,
            from_min_enable=from_min_enable,
            attributes=attributes,
        )
        targets, others = self._directory.masters(timeout_s)
        for name in targets:
            made = self._calls.at_master(name, "CreateGroup", config, timeout_s)
        if others:
            made_at = ", ".join(targets)
            raise errors.BrokerUnavailable(
                f"group {group} is set at {made_at}, and not at {_masterless(others, 'create')}"
            )
        return as_info(made)

    def delete_group(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Delete a group without members, its offsets, and its retries and dead letters, at every broker group.

        Raises:
            GroupNotFound: no master has it. InvalidArgument: it has members.
            BrokerUnavailable: it is deleted where it could be; a broker group without a living master may have it.
        """
        names.check_group(group)
        missing = 0
        targets, others = self._directory.masters(timeout_s)
        for name in targets:
            try:
                self._calls.at_master(name, "DeleteGroup", GroupName(group=group), timeout_s)
            except errors.GroupNotFound:
                missing += 1
        if missing == len(targets):
            raise self._calls.group_not_found(group, timeout_s, others)
        if others:
            raise errors.BrokerUnavailable(f"group {group} is deleted, but perhaps at {_masterless(others, 'delete')}")

    def list_groups(self, *, timeout_s: float = CALL_TIMEOUT_S) -> Listing[str]:
        """The names of all groups, sorted."""
        return self._calls.groups(timeout_s)

    def group(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> GroupInfo:
        """Settings, living members, and what is in flight of a group that pops. Raises GroupNotFound."""
        return look_at_group(self._calls, names.check_group(group), timeout_s)

    def group_lag(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> GroupLag:
        """How far ``group`` is behind, queue by queue. Raises GroupNotFound."""
        return group_offsets.group_lag(self._calls, names.check_group(group), timeout_s)

    def producers(self, group: str, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ProducerInfo]:
        """The producers of transactions in ``group`` that are there, by client id; none where nobody is."""
        return producers_of(self._calls, names.check_group(group), timeout_s)

    # Offsets.

    def reset_offset(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        queues: Sequence[tuple[str, int]] | None = None,
        dry_run: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[QueuePosition]:
        """Move ``group`` in every queue of ``topic``, or in ``queues`` (broker name, queue id); members follow at once.

        Members that broadcast follow too, if they are there: their offsets are in their own files.
        Exactly one of ``to`` (``"last"`` skips what waits), ``timestamp_ms`` (the first message stored at or after it)
        and ``offset``. ``dry_run``: the answer is the same, and nothing is changed.

        Raises:
            OffsetOutOfRange: ``offset`` lies outside a queue's range; nothing was changed.
            GroupNotFound, TopicNotFound: with the nearest name there is; :meth:`create_group` makes a group.
        """
        names.check_group(group)
        names.check_topic(topic)
        if sum(choice is not None for choice in (to, timestamp_ms, offset)) != 1:
            raise errors.InvalidArgument("give exactly one of to, timestamp_ms and offset")
        arguments.flag("dry_run", dry_run, errors.InvalidArgument)
        if to not in (None, "first", "last"):
            raise errors.InvalidArgument(f"to={to!r}: must be 'first' or 'last'")
        return group_offsets.reset(self._calls, group, topic, to, timestamp_ms, offset, queues, timeout_s, dry_run)

    def clone_offsets(
        self,
        source: str,
        target: str,
        topic: str | None = None,
        *,
        dry_run: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[QueuePosition]:
        """Give ``target`` the committed offsets of ``source`` (of one topic, or all); members follow at once.

        ``dry_run``: the answer is the same, and nothing is changed.
        ``target`` is made when it does not exist. Raises GroupNotFound: ``source`` does not.
        """
        names.check_group(source)
        arguments.flag("dry_run", dry_run, errors.InvalidArgument)
        return group_offsets.clone(self._calls, source, names.check_group(target), topic, timeout_s, dry_run)

    # The cluster and single messages.

    def cluster(self, *, timeout_s: float = CALL_TIMEOUT_S) -> ClusterInfo:
        """Every nameserver and every registered broker, with what each says of itself. Raises NameserverUnavailable."""
        return cluster_info(self._calls, timeout_s)

    def message_by_id(
        self, message_id: str, topic: str | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> MessageView:
        """The message with that offset message id, or, given its topic, that UNIQ_KEY. Raises MessageNotFound."""
        return message_lookup.by_id(self._calls, message_id, topic, timeout_s)

    def message_at(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        broker_name: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> MessageView:
        """The message at a queue's offset; without ``broker_name`` the topic must lie on one broker group.

        Raises:
            MessageNotFound: nothing (any more, or yet) at that offset. TopicNotFound, InvalidArgument.
        """
        return message_lookup.at(self._calls, names.check_topic(topic), queue_id, offset, broker_name, timeout_s)

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 0,
        max_count: int = 32,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Listing[MessageView]:
        """Messages with ``key`` stored between two times (0: open), oldest first, at most ``max_count``."""
        return message_lookup.by_key(self._calls, names.check_topic(topic), key, begin_ms, end_ms, max_count, timeout_s)

    def trace(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        trace_topic: str = TRACE_TOPIC,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> MessageTrace:
        """The story of one message: its send, its record, and each consumption, as far as its clients traced it.

        ``message_id``: a receipt's, a consumer's, or an offset message id. ``topic``: where the record is looked for if
        no producer has told of it.

        Raises:
            MessageNotFound: neither a trace nor a record.
        """
        checked = None if topic is None else names.check_topic(topic)
        return message_trace(self._calls, message_id, checked, names.check_topic(trace_topic), timeout_s)

    def message_track(self, message: MessageView, *, timeout_s: float = CALL_TIMEOUT_S) -> list[MessageTrack]:
        """What each group that reads the message's topic, or has read it, has done with it; by group.

        A message that failed, and comes again by itself, counts as consumed.
        """
        return message_track(self._calls, message, timeout_s)

    def close(self) -> None:
        """Close all connections. May be called again."""
        self._calls.close()

    def _put_topic(self, request: CreateTopicRequest, brokers: Sequence[str] | None, timeout_s: float) -> TopicInfo:
        targets = self._directory.masters(timeout_s)[0] if brokers is None else list(brokers)
        for name in targets:
            self._calls.at_master(name, "CreateTopic", request, timeout_s)
        wanted = request.config

        def shows_it(route: TopicRoute) -> bool:
            counts = {queues.broker_name: queues.read_queues for queues in route.queues}
            told = route.attributes
            are_all = counts.keys() <= set(targets) and not route.absent  # attributes may be told of any broker group
            if are_all and any(told.get(name, "") != value for name, value in wanted.attributes.items()):
                return False
            return covers(route, set(targets)) and all(wanted.read_queues in (0, counts.get(name)) for name in targets)

        return topics.topic_info(self._directory.settled_route(wanted.topic, shows_it, timeout_s))


def _masterless(broker_names: Sequence[str], verb: str) -> str:
    """Broker groups that took no change now, and what to do about it."""
    return (
        f"{', '.join(broker_names)}, of which no master lives: {verb} it again when one does, or penstock cluster "
        "forget, if no member ever will"
    )
