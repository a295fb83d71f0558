"""Consumer groups: a table derived from state records, with RocketMQ's ``subscriptionGroup.json`` as its snapshot.

| Tag | Body |
|---|---|
| ``GROUP`` | an entry of ``subscriptionGroup.json``: ``groupName``, ``consumeEnable``, ``retryMaxTimes``, … |
| ``GROUP_DELETED`` | ``{"groupName": g}``; takes the group's committed offsets with it (:mod:`.offsets`) |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.proto.wire import common_pb2

from .retry_policy import RetryPolicy
from .table import NamedTable, StateRecord, json_entries
from .topics import fields_beside

GROUP: Final = "GROUP"
GROUP_DELETED: Final = "GROUP_DELETED"
RETRY_MAX_TIMES_DEFAULT: Final = 16

_KEYS: Final = frozenset(
    {
        *("groupName", "consumeEnable", "retryMaxTimes", "retryQueueNums", "groupRetryPolicy", "attributes"),
        *("consumeMessageOrderly", "consumeBroadcastEnable", "consumeFromMinEnable"),
    }
)
_DEFAULTS: Final[Mapping[str, Any]] = {
    "brokerId": 0,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "whichBrokerWhenConsumeSlowly": 1,
}


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group's settings; ``extra`` keeps RocketMQ's other fields as they were read."""

    name: str
    consume_enable: bool = True
    retry_max_times: int = RETRY_MAX_TIMES_DEFAULT
    attributes: Mapping[str, str] = field(default_factory=dict)
    retry_queues: int = 1
    retry_policy: RetryPolicy = RetryPolicy()  # noqa: RUF009  a value
    orderly: bool = False
    broadcast_enable: bool = True
    from_min_enable: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> common_pb2.GroupConfig:
        """The wire's message of this group."""
        return common_pb2.GroupConfig(
            group=self.name,
            consume_enable=self.consume_enable,
            retry_max_times=self.retry_max_times,
            attributes=dict(self.attributes),
            retry_policy=self.retry_policy.to_wire(),
            retry_queues=self.retry_queues,
            orderly=self.orderly,
            broadcast_enable=self.broadcast_enable,
            from_min_enable=self.from_min_enable,
        )

    def to_json(self) -> dict[str, Any]:
        """An entry of ``subscriptionGroup.json``, RocketMQ's defaults where nothing else is known."""
        document = {**_DEFAULTS, **self.extra}
        document |= {"groupName": self.name, "consumeEnable": self.consume_enable}
        document |= {"retryMaxTimes": self.retry_max_times, "attributes": dict(self.attributes)}
        document |= {"retryQueueNums": self.retry_queues, "groupRetryPolicy": self.retry_policy.to_json()}
        document |= {"consumeMessageOrderly": self.orderly, "consumeBroadcastEnable": self.broadcast_enable}
        document |= {"consumeFromMinEnable": self.from_min_enable}
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Group:
        """The group of a ``subscriptionGroup.json`` entry. Raises KeyError, TypeError or ValueError if it is none."""
        return cls(
            name=str(document["groupName"]),
            consume_enable=bool(document.get("consumeEnable", True)),
            retry_max_times=int(document.get("retryMaxTimes", RETRY_MAX_TIMES_DEFAULT)),
            attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
            retry_queues=int(document.get("retryQueueNums", 1)),
            retry_policy=RetryPolicy.from_json(document.get("groupRetryPolicy") or {}),
            orderly=bool(document.get("consumeMessageOrderly", False)),
            broadcast_enable=bool(document.get("consumeBroadcastEnable", True)),
            from_min_enable=bool(document.get("consumeFromMinEnable", True)),
            extra=fields_beside(document, _KEYS, _DEFAULTS),
        )


class Groups(NamedTable[Group]):
    """Every consumer group that one broker group knows."""

    file_name = "subscriptionGroup.json"
    kinds = frozenset({GROUP, GROUP_DELETED})

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if kind == GROUP_DELETED:
            self.delete(position, document["groupName"])
        else:
            group = Group.from_json(document)
            self.put(position, group.name, group)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for group in self.older_than(position):
            yield GROUP, group.to_json()

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        for group in [Group.from_json(entry) for entry in document["subscriptionGroupTable"].values()]:
            self.put_loaded(group.name, group)

    def pieces(self) -> Iterator[str]:
        yield '\t"forbiddenTable":{},\n\t"subscriptionGroupTable":{'
        yield from json_entries((group.name, group.to_json()) for group in self.values())
        yield "}"
