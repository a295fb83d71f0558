"""The confirm offset and in-sync decisions against a model that recomputes everything from the history."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.proto.errors import InvalidArgument
from penstock.replication.config import ReplicationConfig
from penstock.replication.master.progress import Progress, ReplicaProgress, confirmed_end

TIMEOUT_S = 3.0
GAP_BYTES = 1000


class ProgressMachine(RuleBasedStateMachine):
    """Slaves come, go, acknowledge, lie and fall behind while the log grows and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.end = 0
        self.flushed = 0
        self.best = 0  # the largest offset that was ever confirmed, by the naive definition
        self.slaves: dict[int, ReplicaProgress] = {}
        self.acks: dict[int, list[tuple[float, int, int]]] = {}  # of the living stream: time, written, flushed
        self.level_at: dict[int, float] = {}  # last time the slave had everything, or came forward

    @initialize(sync=st.booleans(), needed=st.integers(1, 4), flush=st.booleans(), start=st.integers(0, 50))
    def begin(self, sync: bool, needed: int, flush: bool, start: int) -> None:
        self.config = ReplicationConfig(
            sync=sync,
            in_sync_replicas=needed,
            flush_acknowledged=flush,
            replica_timeout_ms=int(TIMEOUT_S * 1000),
            gap_bytes_max=GAP_BYTES,
        )
        self.end, self.flushed, self.best = start, start // 2, start // 3
        self.progress = Progress(self.config, end=self.end, flushed=self.flushed, confirm=self.best)

    @rule(count=st.integers(0, 600))
    def append(self, count: int) -> None:
        for broker_id in self.slaves:
            if self.has(broker_id) >= self.end:
                self.level_at[broker_id] = self.now
        self.end += count
        self.progress.on_end(self.end, self.now)

    @rule(fraction=st.floats(0, 1))
    def flush(self, fraction: float) -> None:
        self.flushed += int((self.end - self.flushed) * fraction)
        self.progress.on_flushed(self.flushed)

    @rule(broker_id=st.integers(1, 4), fraction=st.floats(0, 1))
    def connect(self, broker_id: int, fraction: float) -> None:
        if broker_id in self.slaves:
            self.progress.disconnect(self.slaves[broker_id], "replaced")
        start = int(self.end * fraction)
        self.slaves[broker_id] = self.progress.connect(broker_id, f"slave-{broker_id}", start, self.now)
        self.acks[broker_id] = [(self.now, start, 0)]
        self.level_at[broker_id] = self.now

    @precondition(lambda self: self.slaves)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.slaves)))
        self.progress.disconnect(self.slaves.pop(broker_id), "connection lost")
        del self.acks[broker_id]

    @precondition(lambda self: self.slaves)
    @rule(data=st.data(), written=st.integers(-200, 700), flushed=st.integers(-200, 700))
    def acknowledge(self, data: st.DataObject, written: int, flushed: int) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.slaves)))
        slave = self.slaves[broker_id]
        slave.sent = self.end
        _, last_written, last_flushed = self.acks[broker_id][-1]
        written, flushed = last_written + written, last_flushed + flushed
        possible = last_written <= written <= self.end and last_flushed <= flushed <= written
        confirm = self.progress.confirm
        try:
            self.progress.on_ack(slave, written, flushed, self.now)
            assert possible, "an impossible acknowledgement was believed"
        except InvalidArgument:
            assert not possible, "a true acknowledgement was refused"
            assert self.progress.confirm == confirm
            return
        before = self.has(broker_id)  # as the acknowledgements before this one said
        self.acks[broker_id].append((self.now, written, flushed))
        if self.has(broker_id) > before or self.has(broker_id) >= self.end:
            self.level_at[broker_id] = self.now

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def has(self, broker_id: int) -> int:
        if len(self.acks[broker_id]) == 1:
            return 0  # its hello is a claim, not an acknowledgement
        _, written, flushed = self.acks[broker_id][-1]
        return flushed if self.config.flush_acknowledged else written

    @invariant()
    def confirm_is_what_enough_brokers_have_and_never_goes_back(self) -> None:
        master = self.flushed if self.config.flush_acknowledged else self.end
        needed = self.config.in_sync_replicas - 1 if self.config.sync else 0
        for candidate in sorted({master, *(self.has(each) for each in self.slaves)}):
            copies = sum(self.has(each) >= candidate for each in self.slaves)
            if candidate <= master and copies >= needed:
                self.best = max(self.best, candidate)
        assert self.progress.confirm == self.best

    @invariant()
    def in_sync_is_who_answers_and_follows(self) -> None:
        self.progress.refresh(self.now)
        in_sync = set()
        for broker_id in self.slaves:
            answered, written, _ = self.acks[broker_id][-1]
            follows = self.has(broker_id) >= self.end or self.now - self.level_at[broker_id] <= TIMEOUT_S
            acknowledged = len(self.acks[broker_id]) > 1
            if acknowledged and self.now - answered <= TIMEOUT_S and self.end - written <= GAP_BYTES and follows:
                in_sync.add(broker_id)
        assert {replica.broker_id for replica in self.progress.replicas() if replica.in_sync} == in_sync
        assert self.progress.has_enough() == (not self.config.sync or len(in_sync) >= self.config.in_sync_replicas - 1)


TestProgress = ProgressMachine.TestCase
TestProgress.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_with_too_few_replicas_nothing_is_confirmed() -> None:
    assert confirmed_end(100, [50, 70], 3) == 0
    assert confirmed_end(100, [50, 70], 2) == 50
    assert confirmed_end(100, [50, 170], 1) == 100
    assert confirmed_end(100, [], 0) == 100


def test_copies_that_are_gone_do_not_count_with_later_ones() -> None:
    progress = Progress(ReplicationConfig(sync=True, in_sync_replicas=3), end=100, flushed=100, confirm=0)
    first = progress.connect(1, "slave-1", 0, 0.0)
    first.sent = 100
    progress.on_ack(first, 100, 0, 0.0)
    progress.disconnect(first, "killed")
    second = progress.connect(2, "slave-2", 0, 1.0)
    second.sent = 100
    progress.on_ack(second, 100, 0, 1.0)
    assert progress.confirm == 0
    first = progress.connect(1, "slave-1", 100, 2.0)
    assert progress.confirm == 0, "a hello is a claim"
    progress.on_ack(first, 100, 0, 2.0)
    assert progress.confirm == 100
