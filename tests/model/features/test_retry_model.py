"""Messages that are sent back against a model: calls, repeated ones and deliveries, while brokers fail as they do.

Consumers repeat a call until it is answered. Whatever befalls the broker, each message of a call comes again once and
after its time, or is a dead letter once, as the call and its tries have it; in the end nothing answered is missing.
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock.broker.core.tables.groups import Group
from penstock.broker.features.later import timers
from penstock.broker.features.later.later import Later
from penstock.broker.features.retry.retry import Retry
from penstock.formats.record.layout import Record
from penstock.proto import names
from penstock.proto.errors import PenstockError
from penstock.proto.wire.retry_pb2 import SendBackRequest
from tests.support.broker.stores import batch

from .trouble import QUEUES, Troubled

GROUPS: Final = "billing", "shipping"
WAITS_S: Final = {0: 10, 1: 1, 2: 5, 3: 10}
"""By delay level; 0: at least."""
RUN_COUNT: Final = 4
LAST_TURNS: Final = 4

HAS, WAITS, DIES, MAY_COME, ENDED = "its group has it", "it comes again", "it is to be a dead letter", "maybe", "ended"


class Message:
    """One of a group's, as far as its consumers know."""

    def __init__(self, group: str, body: bytes) -> None:
        self.group, self.body = group, body
        self.state = HAS
        self.place = "", 0, 0  # topic, queue, offset of the newest record
        self.tries = 0
        self.not_before_ms = 0


class Call:
    """A call, until it is answered."""

    def __init__(self, request: SendBackRequest, messages: list[Message]) -> None:
        self.request, self.messages = request, messages


class SendingBack(Troubled):
    topics = ("orders", "bills")
    made = tuple(prefix + group for group in GROUPS for prefix in (names.RETRY_PREFIX, names.DLQ_PREFIX))

    def __init__(self) -> None:
        self.messages: dict[tuple[str, bytes], Message] = {}
        self.calls: dict[str, Call] = {}
        self.sequence = self.sent = 0
        super().__init__()
        self.patches.setattr(timers, "RUN_COUNT", RUN_COUNT)
        for group in GROUPS:
            self._put(lambda name=group: self.node.put_group(Group(name)))  # type: ignore[misc]
        for topic in self.topics:
            self.send(topic, 0, 6)

    async def turn(self) -> None:
        await self.node[Later].timers.turn()

    def is_theirs(self, topic: str, record: Record) -> None:
        body, place = record.body, (topic, record.queue_id, record.queue_offset)
        for group in GROUPS:
            if topic in self.topics:
                message = self.messages[group, body] = Message(group, body)
                message.place = place
            elif topic.endswith(f"%{group}"):
                self._comes(self.messages[group, body], topic, record)

    def _comes(self, message: Message, topic: str, record: Record) -> None:
        what = f"{message.body!r} of {message.group}"
        is_dead = topic.startswith(names.DLQ_PREFIX)
        assert message.state in (DIES if is_dead else WAITS, MAY_COME), f"{what} comes to {topic}: {message.state}"
        assert record.reconsume_times == message.tries + 1, f"{what} was tried {record.reconsume_times} times"
        if is_dead:
            message.state = ENDED
            return
        assert self.manual.wall_ms() + self.set_back_ms >= message.not_before_ms, f"{what} comes before its time"
        message.state, message.tries = HAS, record.reconsume_times
        message.place = topic, record.queue_id, record.queue_offset

    @rule(topic=st.sampled_from(topics), queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4))
    def send(self, topic: str, queue_id: int, count: int) -> None:
        bodies = [b"%d" % number for number in range(self.sent, self.sent + count)]
        self.sent += count

        async def append() -> None:
            self.node.store.append(topic, batch(topic, bodies, queue_id), queues=QUEUES)
            self.node.role.on_appended()

        self.attempt(append())

    @rule(
        group=st.sampled_from(GROUPS),
        at=st.integers(0, 5),
        levels=st.lists(st.sampled_from((-1, 0, 1, 2, 3)), min_size=1, max_size=5),
        tries_max=st.integers(0, 3),
    )
    def send_back(self, group: str, at: int, levels: list[int], tries_max: int) -> None:
        """Of some of one queue that the group has, unless a call of its is to be repeated."""
        if group not in self.calls:
            has = [each for each in self.messages.values() if each.group == group and each.state == HAS]
            first = has[at % len(has)] if has else None
            chosen = [each for each in has if first and each.place[:2] == first.place[:2]][: len(levels)]
            if chosen:
                self._ask(group, sorted(chosen, key=lambda each: each.place), levels, tries_max)
        self._call(group)

    def _ask(self, group: str, chosen: list[Message], levels: list[int], tries_max: int) -> None:
        self.sequence += 1
        topic, queue_id, _ = chosen[0].place
        request = SendBackRequest(
            group=group,
            topic=topic,
            queue_id=queue_id,
            offsets=[each.place[2] for each in chosen],
            delay_levels=levels[: len(chosen)],
            max_reconsume_times=tries_max,
            producer_id=100 + GROUPS.index(group),
            sequence=self.sequence,
        )
        for message, level in zip(chosen, levels, strict=False):
            message.state = DIES if level < 0 or message.tries >= tries_max else WAITS
            message.not_before_ms = self.manual.wall_ms() + 1000 * WAITS_S.get(level, 0)
        self.calls[group] = Call(request, chosen)

    def _call(self, group: str) -> None:
        call = self.calls.get(group)
        if call is None:
            return
        expected = [call.messages[number].state for number in range(len(call.messages))]
        reply = self.attempt(self.node[Retry].send_back(call.request))
        if isinstance(reply, PenstockError):
            call.request.again = True
            return
        del self.calls[group]
        gone = set(reply.gone)
        assert reply.later + reply.dead + len(gone) == len(call.messages)
        for message, offset, before in zip(call.messages, call.request.offsets, expected, strict=True):
            if offset in gone and message.state == before and before in (WAITS, DIES):
                message.state = MAY_COME if call.request.again else ENDED

    def end_well(self) -> None:
        for _ in range(LAST_TURNS):
            for group in GROUPS:
                self._call(group)
            self.pass_s(61)
        assert not self.calls, "a call is not answered"
        assert self.node.metrics()["penstock_timer_waiting", ""] == 0
        for message in self.messages.values():
            assert message.state in (HAS, ENDED, MAY_COME), f"{message.body!r} of {message.group}: {message.state}"


SendingBack.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestSendingBack = SendingBack.TestCase
