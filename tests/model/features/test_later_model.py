"""Messages for later against a model: sent and taken back in any order, while brokers fail as they do.

Whatever befalls the broker, no message comes before its time, twice, or after its recall was answered to be in time; in
the end every one that was acknowledged has come, or was taken back, and those of one queue and time in their order.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock.broker.features.later import timers
from penstock.broker.features.later.later import Later
from penstock.formats.record.layout import Record
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from penstock.proto.errors import OutcomeUnknown, PenstockError
from penstock.proto.wire.later_pb2 import RecallRequest
from tests.support.broker.stores import batch
from tests.support.broker.timing import later_properties

from .trouble import QUEUES, Troubled

DELAYS_S = (0, 1, 2, 5, 40, 200)
RUN_COUNT = 4
LAST_TURNS = 3


class Sent:
    """A message for later, as its producer knows it."""

    def __init__(self, body: bytes, topic: str, queue_id: int, due_ms: int) -> None:
        self.body, self.topic, self.queue_id, self.due_ms = body, topic, queue_id, due_ms
        self.is_there = False  # for sure
        self.is_recalled = False  # for sure
        self.may_be_recalled = False


class Waiting(Troubled):
    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.shown: Counter[bytes] = Counter()
        super().__init__()
        self.patches.setattr(timers, "RUN_COUNT", RUN_COUNT)
        for topic in self.topics:
            self.send(topic, 0, [6, 200, 6, 40])

    async def turn(self) -> None:
        await self.node[Later].timers.turn()

    def is_theirs(self, topic: str, record: Record) -> None:
        body = record.body
        message = self.sent[body]
        self.shown[body] += 1
        assert self.shown[body] == 1, f"{body!r} comes twice"
        assert message.topic == topic
        assert self.manual.wall_ms() + self.set_back_ms >= message.due_ms, f"{body!r} comes before its time"
        assert not message.is_recalled, f"{body!r} was taken back"

    def look(self) -> None:
        """Of one queue nothing has come before what was sent earlier and is due earlier."""
        latest: dict[tuple[str, int], int] = {}
        for message in reversed(self.sent.values()):
            key, due_ms = (message.topic, message.queue_id), message.due_ms
            if self.shown[message.body]:
                latest[key] = max(latest.get(key, 0), due_ms)
            elif message.is_there and not message.is_recalled and not message.may_be_recalled:
                is_gone = message.topic == "gone" and self.is_gone
                assert is_gone or due_ms >= latest.get(key, 0), f"{message.body!r} is passed over"

    @rule(
        topic=st.sampled_from(("orders", "orders", "bills", "gone")),
        queue_id=st.integers(0, QUEUES - 1),
        delays_s=st.lists(st.sampled_from(DELAYS_S), min_size=1, max_size=6),
    )
    def send(self, topic: str, queue_id: int, delays_s: list[int]) -> None:
        topic = "orders" if self.is_gone and topic == "gone" else topic
        first, now_ms = len(self.sent), self.manual.wall_ms()
        due = [now_ms + 1000 * each for each in delays_s]
        messages = [Sent(b"%d" % (first + number), topic, queue_id, due[number]) for number in range(len(due))]
        self.sent |= {message.body: message for message in messages}
        properties = [
            later_properties(topic, queue_id, message.due_ms) + encode_properties({"UNIQ_KEY": message.body.decode()})
            for message in messages
        ]
        records = batch(names.TIMER_TOPIC, [message.body for message in messages], properties=properties)
        is_safe = self.attempt(self._append(records))
        for message in messages:
            message.is_there = is_safe is True

    async def _append(self, records: bytes) -> bool:
        node = self.node
        end = node.store.append(names.TIMER_TOPIC, records, queues=1).end
        node.role.on_appended()
        await node.core.acknowledgements.safe(end, "messages")
        return True

    @rule(at=st.integers(0, 9), count=st.integers(1, 3), is_cut_off=st.booleans())
    def recall(self, at: int, count: int, is_cut_off: bool) -> None:
        self.attempt(self.turn())  # a broker that has just begun does not know yet what waits
        there = [message for message in self.sent.values() if message.is_there and message.topic != "gone"]
        chosen = [each for each in there if not self.shown[each.body]][at:][:count]
        if is_cut_off and chosen:
            self.replicas_go(len(chosen), 0)
        for message in chosen:
            self._recall(message)

    def _recall(self, message: Sent) -> None:
        request = RecallRequest(topic=message.topic, unique_key=message.body.decode(), due_ms=message.due_ms)
        reply = self.attempt(self.node[Later].recall(request))
        if isinstance(reply, OutcomeUnknown):
            message.may_be_recalled = True
        elif not isinstance(reply, PenstockError):
            assert not reply.in_time or not self.shown[message.body], f"{message.body!r} had come"
            message.is_recalled |= reply.in_time

    def end_well(self) -> None:
        for _ in range(LAST_TURNS):
            self.pass_s(201)
        assert self.node.metrics()["penstock_timer_waiting", ""] == 0
        for message in self.sent.values():
            if message.is_there and not (message.topic == "gone" and self.is_gone):
                wanted = (0,) if message.is_recalled else (0, 1) if message.may_be_recalled else (1,)
                assert self.shown[message.body] in wanted, f"{message.body!r} is gone"


Waiting.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestWaiting = Waiting.TestCase
