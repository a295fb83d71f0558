"""A store against lists: whatever is appended, dispatched, closed, killed and dropped, queues read like the lists."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.store import Store
from tests.support.broker.stores import batch, bodies, dispatch_all, store_config

TOPICS = ("a", "b", "%RETRY%g")
QUEUES = 3
_messages = st.lists(
    st.tuples(st.integers(0, QUEUES - 1), st.sampled_from([0, 1, 40, 700, 3000])), min_size=1, max_size=8
).filter(lambda messages: sum(size for _, size in messages) <= 14_000)  # a batch fits a log file of 16 KiB


class StoreModel(RuleBasedStateMachine):
    """``sent`` is what was appended per queue, ``visible`` how many of these were dispatched."""

    @initialize()
    def open(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.store = Store.open(store_config(self.root))
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.visible: dict[tuple[str, int], int] = {}
        self.sequence = 0
        self.undispatched: set[str] = set()
        self.has_dropped = False

    @rule(topic=st.sampled_from(TOPICS), messages=_messages, is_marked=st.booleans())
    def append(self, topic: str, messages: list[tuple[int, int]], is_marked: bool) -> None:
        self.sequence += 1
        made = [b"%d.%d" % (self.sequence, part) + bytes(size) for part, (_, size) in enumerate(messages)]
        queue_ids = [queue_id for queue_id, _ in messages]
        mark = (7, 0, 0, self.sequence) if is_marked else None
        result = self.store.append(topic, batch(topic, made, queue_ids, mark=mark), queues=QUEUES)
        for queue_id, first in zip(result.queue_ids, result.queue_offsets, strict=True):
            assert first == len(self.sent.get((topic, queue_id), ()))
        for queue_id, body in zip(queue_ids, made, strict=True):
            self.sent.setdefault((topic, queue_id), []).append(body)
        self.undispatched.add(topic)

    @rule(max_bytes=st.sampled_from([1, 500, 1 << 20]))
    def dispatch(self, max_bytes: int) -> None:
        self.store.set_confirm(self.store.end_offset)
        for topic, queue_id, maximum in self.store.dispatch(max_bytes).arrived:
            assert maximum > self.visible.get((topic, queue_id), 0)
            self.visible[topic, queue_id] = maximum
        if self.store.dispatched_offset == self.store.end_offset:
            self.undispatched.clear()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def close_and_open(self) -> None:
        dispatched = self.store.dispatched_offset
        self.store.close()
        self.store = Store.open(store_config(self.root))
        assert self.store.recovery.clean
        assert self.store.dispatched_offset == dispatched

    @rule(removed=st.sampled_from(["", "", "penstockCheckpoint", "consumequeue", "index"]))
    def kill_and_open(self, removed: str) -> None:
        end = self.store.end_offset
        self.store.abandon()
        if self.has_dropped:
            removed = ""  # the log alone does not tell that a topic was dropped: its old records would be back
        path = self.root / removed
        if removed and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.store = Store.open(store_config(self.root))
        assert (self.store.end_offset, self.store.dispatched_offset) == (end, end)
        self.visible = {queue: len(sent) for queue, sent in self.sent.items()}
        self.undispatched.clear()

    @precondition(lambda self: not self.undispatched)
    @rule(topic=st.sampled_from(TOPICS))
    def drop(self, topic: str) -> None:
        self.has_dropped = True
        self.store.drop_topic(topic)
        self.store.checkpoint()
        for queue in [queue for queue in self.sent if queue[0] == topic]:
            del self.sent[queue]
            self.visible.pop(queue, None)

    @invariant()
    def queues_read_like_the_lists(self) -> None:
        for queue, sent in self.sent.items():
            count = self.visible.get(queue, 0)
            if count:
                assert self.store.reader.queue_range(*queue) == (0, count)
                assert bodies(self.store, *queue) == sent[:count]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            dispatch_all(self.store)
            self.visible = {queue: len(sent) for queue, sent in self.sent.items()}
            self.queues_read_like_the_lists()
            self.store.close()
            shutil.rmtree(self.root)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
