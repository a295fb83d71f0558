"""Messages that a consumer could not take: their copies, and the topics of a group that hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from penstock.formats.record.producer_mark import ProducerMark, mark_property
from penstock.formats.record.reposting.retries import GROWTH_MAX, sent_back, tries_of
from penstock.proto import names
from penstock.proto.errors import GroupNotFound, LimitReached, MessageTooLarge

from .core import Core
from .intake import check_creatable
from .journal import Journal
from .reposting import Records
from .tables.groups import GROUP, Group
from .tables.topics import CREATED_MS, TOPIC, Topic

DEAD_QUEUES: Final = 1


def ensure_topic(core: Core, journal: Journal, name: str, queues: int) -> Topic:
    """The topic, with so many queues or more; it is made, or gets more, where it must."""
    topic = core.tables.topics.get(name)
    if topic is not None and topic.read_queues >= queues:
        return topic
    check_creatable(core, names.check_topic(name))
    if topic is None:
        created = {CREATED_MS: core.clock.wall_ms()}
        topic = Topic(name, queues, queues, extra=created)
    topic = replace(topic, read_queues=queues, write_queues=queues)
    journal.put(TOPIC, topic.to_json())
    return topic


def ensure_group(core: Core, journal: Journal, name: str) -> Group:
    """The group, which is created with default settings where that is allowed.

    Raises:
        InvalidName: no group can have that name.
        GroupNotFound: it does not exist and autoCreateSubscriptionGroup is false.
        LimitReached: there are enough groups.
    """
    group = group_or_new(core, name)
    if name not in core.tables.groups:
        check_group_count(core, name)
        journal.put(GROUP, group.to_json())
    return group


def group_or_new(core: Core, name: str) -> Group:
    """The group, or one with default settings where such come by their use. Raises InvalidName, GroupNotFound."""
    group = core.tables.groups.get(names.check_group(name))
    if group is None and not core.config.topics.auto_create_groups:
        raise GroupNotFound(
            f"group {name} does not exist and autoCreateSubscriptionGroup is false: create it", group=name
        )
    return group or Group(name)


def check_group_count(core: Core, group: str) -> None:
    """Refuse one more group than there may be. Raises LimitReached."""
    count, most = len(core.tables.groups), core.config.limits.groups_max
    if count >= most:
        raise LimitReached(
            f"group {group}: there are {count} groups (maxSubscriptionGroupNum): delete some, or raise the limit"
        )


def tried_times(records: Records, topic: str) -> tuple[Any, Any]:
    """How often each record, which lies in ``topic``, was tried, and the size of its properties.

    Who consumes a dead letter begins anew: what it says of tries are those of the group that gave it up.
    """
    times, properties = np.empty(len(records.offsets), np.int32), np.empty(len(records.offsets), np.int32)
    tries_of(records.data, records.positions, records.sizes, times, properties)
    if topic.startswith(names.DLQ_PREFIX):
        times[:] = 0
    return times, properties


def failed_copies(
    records: Records,
    chosen: Any,
    times: Any,
    due: Any,
    topic: str,
    where: bytes,
    mark: ProducerMark,
    *,
    are_again: bool,
) -> memoryview:
    """The records at the places ``chosen`` as a batch of ``topic``; see :func:`sent_back` for the others.

    ``times``: of all records; ``due``: of the chosen ones.

    Raises MessageTooLarge: the properties of one, ``details['index']``, have no room for the mark.
    """
    sizes = records.sizes[chosen]
    out = np.empty(int(sizes.sum()) + len(chosen) * GROWTH_MAX + GROWTH_MAX, np.uint8)
    name, place, prefix = (np.frombuffer(part, np.uint8) for part in (topic.encode(), where, mark_property(*mark)))
    positions, tried = records.positions[chosen], times[chosen] + 1
    length = int(sent_back(records.data, positions, sizes, tried, due, name, place, prefix, are_again, out))
    if length < 0:
        raise MessageTooLarge(
            "send-back: the properties of a message leave no room for its producer mark", index=-1 - length
        )
    return out[:length].data
