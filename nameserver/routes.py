"""The route table: which broker groups live, and which queues of which topics they serve.

A group whose last member went is *absent*: its messages are still there, so who reads a topic must know that it does
not get all of it. It is remembered until a member returns, or an operator says that none will; a nameserver that was
started since does not know of it. Its topics are those it is remembered with until a master says otherwise.

A broker that dies is noticed at once, by the end of its stream. Silence is the other case: a frozen process, a cut
cable. A report is due every :data:`HEARTBEAT_INTERVAL_MS`; after :data:`EXPIRY_MS` without one, and one sweep later at
most, the broker is out: 2.5 s + 0.2 s, below the promised 3 s.

Pure: no sockets, no files, time passed in. Every mutation returns a :class:`Change`, so that only those who watch
what changed are told; of very many topics the rest comes by :meth:`.Holders.step`. No report costs more than the
topics and brokers that it speaks of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.proto import names
from penstock.proto.errors import FlowControl, InvalidArgument, WrongCluster
from penstock.proto.wire.common_pb2 import MASTER, ROLE_UNSPECIFIED, SLAVE, TopicConfig
from penstock.proto.wire.nameserver_pb2 import BrokerReport, ClusterView, QueueData, ShardView, TopicRoute

from .holders import Holders
from .shard import Member, Shard, Topics, TopicShape, check_identity

BROKERS_MAX = 10_000
TOPICS_PER_BROKER_MAX = 100_000
ATTRIBUTES_BYTES_MAX = 16_384
"""Of one topic, names and values together."""
SHAPES_AT_ONCE = 100
"""Topics of a registration that are looked at before others have their turn; each may have so many bytes."""
QUEUES_MAX = 65_536
ADDRESS_LENGTH_MAX = 300
PORT_MAX = 65_535
HEARTBEAT_INTERVAL_MS = 500
EXPIRY_MS = 2500
ABSENT_SHARDS_MAX = 10_000
ABSENT_TOPICS_MAX = 200_000
"""Counted per group, some 300 bytes each; long attributes count as topics. Above either, the group that went first is
forgotten."""
TOPICS_MAX = 2_000_000
"""Of all living brokers together, counted for each; one takes about 300 bytes."""

_LABEL = r"[A-Za-z0-9_-]{1,63}"
_ADDRESS = re.compile(rf"(\[[0-9a-fA-F:.]+\]|{_LABEL}(\.{_LABEL})*):[0-9]{{1,5}}", re.ASCII)


class Change(NamedTuple):
    """What a mutation changed."""

    topics: frozenset[str] = frozenset()
    """Topics whose queues or attributes are other than before."""
    shards: frozenset[str] = frozenset()
    """Broker groups whose view is other than before: every route through them is, too."""
    ended: tuple[int, ...] = ()
    """Sessions that speak for nobody any more: replaced by a newer one of the same broker, or silent."""


NO_CHANGE = Change()


class _Key(NamedTuple):
    broker_name: str
    broker_id: int


class RouteTable:
    """Routes from registrations.

    A session is a number that the caller gives to each stream; all that a stream reports is noted under it, and
    what a stream that was replaced says or its end no longer counts.
    """

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}  # living and absent
        self._absent: dict[str, Topics] = {}  # what each served when it went, the longest gone first
        self._views: dict[str, ShardView] = {}  # built when asked for, dropped at each report of the shard
        self.holders = Holders(self._topics_of)
        """Who has which topics; while it is behind, changes of very many topics have come in part only."""
        self._keys: dict[int, _Key] = {}  # session -> the broker it speaks for
        self._addresses: dict[str, _Key] = {}

    def register(
        self,
        session: int,
        registration: BrokerReport.Registration,
        now_s: float,
        checked: Topics | None = None,
    ) -> Change:
        """Take over what a broker says of itself. Its topics replace those known before.

        A registration from the same address, or of the same store instance, replaces the broker's older session.
        ``checked``: its topics, if somebody went through them by :func:`checked_topics` before.

        Raises:
            WrongCluster: the broker group is known in another cluster; another living broker has this name and
                id, this address, or is master in the same epoch.
            InvalidName, InvalidArgument, FlowControl: a name, value or number out of bounds. Nothing was changed.
        """
        _check_broker(registration)
        topics = {} if checked is None else checked
        if checked is None:
            for part in checked_topics(registration):
                topics |= part
        identity = registration.identity
        key = _Key(identity.broker_name, identity.broker_id)
        shard = self._living(key.broker_name) or Shard(identity.cluster, key.broker_name)
        self._check_place(session, key, shard, registration)
        old = shard.members.get(key.broker_id)
        before, seen = shard.topics(), _signature(shard)
        ended: tuple[int, ...] = ()
        if old is not None:
            self._addresses.pop(old.address, None)
            if old.session != session:
                del self._keys[old.session]
                ended = (old.session,)
        if key.broker_name in self._absent:  # a slave that is back first may lack topics
            shard.last_topics = self._absent[key.broker_name]
        returned = self._drop_absent(key.broker_name)
        self._shards[key.broker_name] = shard
        self._addresses[identity.address] = key
        self._keys[session] = key
        shard.members[key.broker_id] = Member(
            identity=identity,
            session=session,
            heard_s=now_s,
            store_instance=registration.store_instance,
            role=registration.role,
            epoch=registration.epoch,
            topics=topics,
            auto_create_topics=registration.auto_create_topics,
            end_offset=registration.end_offset,
        )
        change = self._settle(shard, before, seen)
        return change._replace(topics=change.topics | returned if returned else change.topics, ended=ended)

    def heartbeat(self, session: int, report: BrokerReport.Heartbeat, now_s: float) -> Change:
        """Note a sign of life, the offsets, and the role when it changed.

        Raises:
            WrongCluster: the broker has become master in the epoch of another living master.
            InvalidArgument: the session has not registered, or was replaced.
        """
        shard, member = self._speaker(session)
        role = member.role if report.role == ROLE_UNSPECIFIED else report.role
        if role not in (MASTER, SLAVE):
            raise InvalidArgument(f"{member.address}: role {role} is neither master nor slave")
        turned = (role, report.epoch) != (member.role, member.epoch)
        if turned and role == MASTER:
            shard.check_one_master(member.broker_id, member.address, report.epoch)
        member.heard_s = now_s
        self._views.pop(shard.broker_name, None)
        member.end_offset, member.confirm_offset = report.end_offset, report.confirm_offset
        if not turned:
            return NO_CHANGE
        before, seen = shard.topics(), _signature(shard)
        member.role, member.epoch = role, report.epoch
        return self._settle(shard, before, seen)

    def topics_changed(self, session: int, report: BrokerReport.TopicChanges, now_s: float) -> Change:
        """Apply a broker's changes to its topics.

        Raises:
            InvalidName, InvalidArgument, FlowControl: as for :meth:`register`; nothing was changed.
        """
        shard, member = self._speaker(session)
        for config in report.updated:
            _check_topic(config)
        if len(member.topics) + len(report.updated) > TOPICS_PER_BROKER_MAX + len(report.removed):
            raise FlowControl(f"{member.address}: more than {TOPICS_PER_BROKER_MAX} topics on one broker")
        member.heard_s = now_s
        touched = set()
        for topic in report.removed:
            if member.topics.pop(topic, None) is not None:
                touched.add(topic)
        for config in report.updated:
            topic, shape = config.topic, TopicShape.of(config)
            if member.topics.get(topic) != shape:
                member.topics[topic] = shape
                touched.add(topic)
        if member.topics is not shard.topics():
            return NO_CHANGE  # a slave's table, which counts only where no master was ever seen
        self.holders.note(shard.broker_name, touched)
        return Change(topics=frozenset(touched))

    def unregister(self, session: int) -> Change:
        """Take the session's broker out, unless another session speaks for it now."""
        key = self._keys.get(session)
        if key is None:
            return NO_CHANGE
        del self._keys[session]
        shard = self._shards[key.broker_name]
        before, seen = shard.topics(), _signature(shard)
        member = shard.members.pop(key.broker_id)
        self._addresses.pop(member.address, None)
        return self._settle(shard, before, seen)

    def expire(self, now_s: float) -> Change:
        """Take out brokers silent for the expiry time. ``ended``: their sessions, the longest silent first."""
        heard = sorted((member.heard_s, member.session) for member in self._members())
        silent = tuple(session for heard_s, session in heard if now_s - heard_s >= EXPIRY_MS / 1000)
        changes = [self.unregister(session) for session in silent]
        return Change(
            topics=frozenset().union(*(change.topics for change in changes)),
            shards=frozenset().union(*(change.shards for change in changes)),
            ended=silent,
        )

    def excuse_silence(self, now_s: float) -> None:
        """Count everybody's silence from now: the nameserver itself stood still."""
        for member in self._members():
            member.heard_s = now_s

    def route(self, topic: str) -> TopicRoute:
        """The route of ``topic``. One that exists nowhere gets all living shards, so that it can be created there."""
        living: Topics = {}  # by group
        absent: Topics = {}
        for name in sorted(self.holders[topic]):
            shape = self._topics_of(name).get(topic)  # none: it is gone, and the index does not know yet
            if shape is not None:
                (absent if name in self._absent else living)[name] = shape
        told = living or absent
        if not told:
            return TopicRoute(topic=topic, exists=False, shards=self._living_views())
        route = TopicRoute(
            topic=topic,
            exists=True,
            queues=[_queue_data(name, config) for name, config in told.items()],
            shards=[self._view(name) for name in living],
            absent=[_queue_data(name, config) for name, config in absent.items()],
        )
        for config in told.values():
            for attribute, value in config.attributes:
                if attribute not in route.attributes:
                    route.attributes[attribute] = value
        return route

    def shard(self, broker_name: str) -> ShardView:
        """The living members of a broker group; empty if all are gone."""
        return self._view(broker_name) if self._living(broker_name) else ShardView(broker_name=broker_name)

    def cluster(self) -> ClusterView:
        """All living shards, by name, and the absent ones."""
        absent = [self._shards[name].view() for name in sorted(self._absent)]
        return ClusterView(shards=self._living_views(), absent=absent)

    def forget(self, broker_name: str) -> Change:
        """Drop an absent shard from all routes. Raises InvalidArgument: a member lives, or no such shard is known."""
        if shard := self._living(broker_name):
            living = ", ".join(member.address for member in shard.members.values())
            raise InvalidArgument(f"broker group {broker_name} is not gone: {living} lives; stop it first")
        if broker_name not in self._absent:
            raise InvalidArgument(f"broker group {broker_name} is not known here{_listed(sorted(self._absent))}")
        return Change(topics=self._drop_absent(broker_name))

    def _check_place(self, session: int, key: _Key, shard: Shard, registration: BrokerReport.Registration) -> None:
        identity = registration.identity
        if self._keys.get(session, key) != key:
            spoken = self._keys[session]
            raise InvalidArgument(f"the session of {spoken.broker_name}:{spoken.broker_id} cannot register {key}")
        if shard.cluster != identity.cluster:
            raise WrongCluster(
                f"broker group {key.broker_name} is in cluster {shard.cluster}, and the broker at {identity.address} "
                f"says brokerClusterName={identity.cluster}: give it the right one or another brokerName"
            )
        old = shard.members.get(key.broker_id)
        if old is not None and identity.address != old.address and registration.store_instance != old.store_instance:
            raise WrongCluster(
                f"broker {key.broker_id} of {key.broker_name} is alive at {old.address}: the one at "
                f"{identity.address} needs another brokerId or brokerName"
            )
        owner = self._addresses.get(identity.address, key)
        if owner != key:
            raise WrongCluster(
                f"address {identity.address} belongs to broker {owner.broker_id} of {owner.broker_name}: broker "
                f"{key.broker_id} of {key.broker_name} must advertise another brokerIP1 or listenPort"
            )
        if registration.role == MASTER:
            shard.check_one_master(key.broker_id, identity.address, registration.epoch)
        if old is None and len(self._keys) >= BROKERS_MAX:
            raise FlowControl(f"{BROKERS_MAX} brokers are registered: no place for {identity.address}")
        held = sum(len(member.topics) for member in self._members() if member is not old)
        if held + len(registration.topics) > TOPICS_MAX:
            raise FlowControl(
                f"{identity.address}: {len(registration.topics)} topics, and {held} of other brokers are known here: "
                f"at most {TOPICS_MAX} in all"
            )

    def _speaker(self, session: int) -> tuple[Shard, Member]:
        key = self._keys.get(session)
        if key is None:
            raise InvalidArgument("the session has no registration: register first")
        shard = self._shards[key.broker_name]
        return shard, shard.members[key.broker_id]

    def _living(self, name: str) -> Shard | None:
        return None if name in self._absent else self._shards.get(name)

    def _living_views(self) -> list[ShardView]:
        return [self._view(name) for name in sorted(self._shards) if name not in self._absent]

    def _members(self) -> list[Member]:
        return [member for shard in self._shards.values() for member in shard.members.values()]

    def _settle(self, shard: Shard, before: Topics, seen: object) -> Change:
        """Draw the consequences of changed members: master, topics, views."""
        name = shard.broker_name
        self._views.pop(name, None)
        shard.elect()
        if not shard.members:
            self._absent[name] = before
            shard.leave(before)
            touched = self.holders.changed(name, before, is_all_changed=True)
            while len(self._absent) > ABSENT_SHARDS_MAX or self._absent_weight() > ABSENT_TOPICS_MAX:
                touched |= self._drop_absent(next(iter(self._absent)))
            return Change(topics=touched, shards=frozenset((name,)))
        changed = self.holders.changed(name, before)
        return Change(topics=changed, shards=frozenset((name,)) if _signature(shard) != seen else frozenset())

    def _topics_of(self, name: str) -> Topics:
        """What the group serves, or served when it went."""
        if name in self._absent:
            return self._absent[name]
        shard = self._shards.get(name)
        return {} if shard is None else shard.topics()

    def _absent_weight(self) -> int:
        return sum(self._shards[name].weight for name in self._absent)

    def _drop_absent(self, name: str) -> frozenset[str]:
        """Forget the group if it is absent. Returns the topics that it held then; of many, none yet."""
        if name not in self._absent:
            return frozenset()
        del self._shards[name]
        return self.holders.changed(name, self._absent.pop(name), is_all_changed=True)

    def _view(self, name: str) -> ShardView:
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._shards[name].view()
        return view


def _queue_data(name: str, shape: TopicShape) -> QueueData:
    return QueueData(broker_name=name, read_queues=shape.read_queues, write_queues=shape.write_queues, perm=shape.perm)


def _listed(absent: list[str]) -> str:
    return f": absent are {', '.join(absent)}" if absent else ", and none is absent"


def _signature(shard: Shard) -> object:
    """The part of a shard's view that watchers are told: all but the offsets, which move with every message."""
    view = shard.view()
    members = tuple((member.broker_id, member.address, member.role, member.data_port) for member in view.members)
    return view.epoch, view.auto_create_topics, members


def checked_topics(registration: BrokerReport.Registration) -> Iterator[Topics]:
    """The topics of a registration, some at a time. Raises where a name or number is not legal, or too many are."""
    if len(registration.topics) > TOPICS_PER_BROKER_MAX:
        raise FlowControl(f"{registration.identity.address}: more than {TOPICS_PER_BROKER_MAX} topics on one broker")
    for start in range(0, len(registration.topics), SHAPES_AT_ONCE):
        part = registration.topics[start : start + SHAPES_AT_ONCE]
        for config in part:
            _check_topic(config)
        yield {config.topic: TopicShape.of(config) for config in part}


def _check_broker(registration: BrokerReport.Registration) -> None:
    identity = registration.identity
    check_identity(identity)
    if len(identity.address) > ADDRESS_LENGTH_MAX or not _ADDRESS.fullmatch(identity.address):
        raise InvalidArgument(f"{identity.broker_name}: address {identity.address[:80]!r} is not host:port")
    if identity.data_port > PORT_MAX:
        raise InvalidArgument(f"{identity.address}: data port {identity.data_port}: must be 0..{PORT_MAX}")
    if registration.role not in (MASTER, SLAVE):
        raise InvalidArgument(f"{identity.broker_name}: role {registration.role} is neither master nor slave")


def _check_topic(config: TopicConfig) -> None:
    names.check_topic(config.topic)
    if not (0 <= config.read_queues <= QUEUES_MAX and 0 <= config.write_queues <= QUEUES_MAX):
        raise InvalidArgument(
            f"topic {config.topic}: {config.read_queues} read and {config.write_queues} write queues: "
            f"0..{QUEUES_MAX} are allowed"
        )
    if config.attributes and config.ByteSize() > ATTRIBUTES_BYTES_MAX:
        raise InvalidArgument(
            f"topic {config.topic}: attributes of {config.ByteSize()} bytes: at most {ATTRIBUTES_BYTES_MAX} are allowed"
        )
