"""Who has consumed a message: each group's committed offset, held against the message's place.

Source: RocketMQ ``DefaultMQAdminExtImpl#messageTrackDetail``; differs: a group that has passed the message has consumed
it, also when none of its members is there. Whether a consumer pulls is not told.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.proto.errors import GroupNotFound, InvalidArgument
from penstock.proto.wire.broker_pb2 import GroupDescription, GroupName

from ..cluster import Calls, offsets_in, queues_in
from ..cluster.subscription import parse_subscription
from ..message import MessageQueue, MessageView
from .admin_results import MessageTrack, TrackType

SQL_PREFIX = "SQL92: "


def message_track(calls: Calls, message: MessageView, timeout_s: float) -> list[MessageTrack]:
    """Every group that reads the message's topic, or has read it, by name."""
    if not isinstance(message, MessageView):
        raise InvalidArgument(f"message must be a MessageView, not {message!r:.60}")
    queue = message.message_queue
    found = []
    for group in calls.groups(timeout_s):
        name = GroupName(group=group)
        answers, _ = calls.everywhere("DescribeGroup", name, timeout_s, skip=GroupNotFound)
        known = {broker_name: answer for broker_name, answer in answers.items() if answer is not None}
        if _reads(known, queue.topic):
            found.append(_track(group, known, message, queue, is_told=queue.broker_name in answers))
    return found


def _reads(answers: Mapping[str, GroupDescription], topic: str) -> bool:
    return any(
        any(each.topic == topic for each in answer.committed)
        or any(topic in member.subscriptions for member in answer.members)
        or any(each.topic == topic for member in answer.members for each in member.claimed)
        for answer in answers.values()
    )


def _track(
    group: str, answers: Mapping[str, GroupDescription], message: MessageView, queue: MessageQueue, *, is_told: bool
) -> MessageTrack:
    if not is_told:
        return MessageTrack(group, TrackType.UNKNOWN, -1)
    here = answers.get(queue.broker_name, GroupDescription())
    committed = offsets_in(here.committed, queue.broker_name).get(queue, -1)
    holder = next(
        (member.client_id for member in here.members if queue in queues_in(member.claimed, queue.broker_name)), None
    )
    members = [member for answer in answers.values() for member in answer.members]
    if members and all(member.broadcasting for member in members):
        kind = TrackType.CONSUME_BROADCASTING
    elif committed > message.queue_offset:
        wanted = [member.subscriptions[queue.topic] for member in members if queue.topic in member.subscriptions]
        is_filtered = bool(wanted) and not any(_wants(each, queue.topic, message.tag) for each in wanted)
        kind = TrackType.CONSUMED_BUT_FILTERED if is_filtered else TrackType.CONSUMED
    else:
        kind = TrackType.NOT_CONSUME_YET if members else TrackType.NOT_ONLINE
    return MessageTrack(group, kind, committed, holder)


def _wants(expression: str, topic: str, tag: str | None) -> bool:
    """True if a member with that subscription may want a message with that tag; of a condition nobody knows here."""
    if expression.startswith(SQL_PREFIX):
        return True
    tags = parse_subscription(topic, expression).tags
    return not tags or tag in tags
