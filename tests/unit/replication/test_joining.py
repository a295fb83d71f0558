"""A slave whose log is no beginning of its master's: cut, begun anew, or left as it is and named."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.epochs import Epoch
from penstock.proto.errors import InvalidArgument, NotMaster, PenstockError, WrongStore
from penstock.replication import EpochHistory, EpochsInMemory, ReplicationConfig, frames
from penstock.replication.admission import Joining, check_welcome, starting_offset, tail_of
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import following, hello_of, identity, new_master, serving, welcome_of
from tests.support.waiting import eventually

QUICK = ReplicationConfig(heartbeat_interval_ms=20, reconnect_min_ms=5, reconnect_max_ms=20)
SYNC = ReplicationConfig(sync=True, heartbeat_interval_ms=20, reconnect_min_ms=5, reconnect_max_ms=20)
SEGMENT = 512
SHARED = bytes(range(200)) * 4  # 800 bytes of epoch 1
OLD, NEW = EpochHistory([Epoch(1, 0)]), EpochHistory([Epoch(1, 0), Epoch(2, 800)])


def log_of(content: bytes, confirm: int = 0) -> MemoryLog:
    log = MemoryLog(SEGMENT)
    log.write(content)
    log.flush()
    log.confirm_offset = confirm
    return log


async def refused(copy: MemoryLog, master_log: MemoryLog, config: ReplicationConfig = QUICK) -> PenstockError:
    """Why a slave of epoch 1 with ``copy`` does not follow a master of epoch 2 with ``master_log``."""
    epochs = EpochsInMemory(OLD)
    master = new_master(master_log, config, epoch=2, epochs=NEW)
    async with serving(master), following(master.address, log=copy, epochs=epochs, config=QUICK) as slave:
        await eventually(lambda: slave.replica.last_error, what="the refusal")
        assert slave.replica.last_error is not None
        assert epochs.history == OLD
        return slave.replica.last_error


def test_a_tail_that_the_new_master_never_had_is_cut_off() -> None:
    async def scenario() -> None:
        copy, epochs = log_of(SHARED + b"never acknowledged" * 40, confirm=800), EpochsInMemory(OLD)
        master = new_master(log_of(SHARED + b"the second epoch"), SYNC, epoch=2, epochs=NEW)
        async with serving(master), following(master.address, log=copy, epochs=epochs, config=QUICK) as slave:
            await eventually(lambda: copy.content() == master.log.content(), what="the slave is level")
            assert epochs.history == NEW
            assert slave.replica.last_loss.startswith("[800, 1520): broker-a:0 never had it; 0 bytes acknowledged")

    asyncio.run(scenario())


def test_what_is_known_to_be_acknowledged_is_never_cut_off() -> None:
    async def scenario() -> None:
        content = SHARED + b"acknowledged"
        copy = log_of(content, confirm=805)
        error = await refused(copy, log_of(SHARED + b"the second epoch"), SYNC)
        with pytest.raises(WrongStore, match=r"has \[800, 805\) as acknowledged, master broker-a:0 of epoch 2"):
            raise error
        assert copy.content() == content

    asyncio.run(scenario())


def test_where_nothing_more_was_promised_the_loss_is_reported_with_its_range(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        copy = log_of(SHARED + b"acknowledged", confirm=812)
        master = new_master(log_of(SHARED + b"the second epoch"), QUICK, epoch=2, epochs=NEW)
        async with (
            serving(master),
            following(master.address, log=copy, epochs=EpochsInMemory(OLD), config=QUICK, initial_confirm=812) as slave,
        ):
            await eventually(lambda: copy.content() == master.log.content(), what="the slave is level")
            await eventually(lambda: slave.replica.confirm_offset == 816, what="the confirm offset goes on")
            assert "12 bytes acknowledged" in slave.replica.last_loss

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "cut=[800, 812) known_acknowledged_bytes=12 known_confirm=812" in caplog.text


def test_a_master_with_a_new_disk_does_not_take_the_last_copy_along() -> None:
    """Without any promise between replicas, and in the same epoch: nobody was elected, the log is just gone."""

    async def scenario() -> None:
        copy = log_of(SHARED, confirm=800)
        master = new_master(log_of(b""), QUICK, epoch=1, epochs=OLD)
        async with (
            serving(master),
            following(master.address, log=copy, epochs=EpochsInMemory(OLD), config=QUICK) as slave,
        ):
            await eventually(lambda: slave.replica.last_error, what="the refusal")
            with pytest.raises(WrongStore, match=r"has \[0, 800\) as acknowledged"):
                raise slave.replica.last_error or AssertionError
            assert copy.content() == SHARED

    asyncio.run(scenario())


def test_equal_epochs_over_different_bytes_are_refused_and_nothing_is_cut() -> None:
    async def scenario() -> None:
        content = bytes(800) + b"other bytes"
        copy = log_of(content)
        with pytest.raises(WrongStore, match="its bytes below 800 are not the master's"):
            raise await refused(copy, log_of(SHARED + b"the second epoch"))
        assert copy.content() == content

    asyncio.run(scenario())


@pytest.mark.parametrize("had", [SHARED[:100], SHARED[:100] + bytes(50)])
def test_a_slave_older_than_the_minimum_starts_over_from_there_and_says_so(
    had: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        log = log_of(SHARED + b"the second epoch")
        log.drop_before(SEGMENT)
        copy, epochs = log_of(had, confirm=100), EpochsInMemory(OLD)
        master = new_master(log, SYNC, epoch=2, epochs=NEW)
        async with serving(master), following(master.address, log=copy, epochs=epochs, config=QUICK) as slave:
            await eventually(lambda: copy.end_offset == log.end_offset, what="the slave is level")
            assert (copy.min_offset, copy.content()) == (SEGMENT, log.content())
            assert slave.replica.last_loss.startswith(f"[0, {len(had)}): older than the minimum")

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "starting over" in caplog.text


def test_a_cut_that_fails_is_tried_again_at_the_next_connection() -> None:
    class Stubborn(MemoryLog):
        failures = 2

        async def truncate_to(self, offset: int) -> None:
            if self.failures:
                self.failures -= 1
                raise WrongStore("not today")
            await super().truncate_to(offset)

    async def scenario() -> None:
        copy, epochs = Stubborn(SEGMENT), EpochsInMemory(OLD)
        copy.write(SHARED + b"tail")
        master = new_master(log_of(SHARED + b"the second epoch"), QUICK, epoch=2, epochs=NEW)
        async with serving(master), following(master.address, log=copy, epochs=epochs, config=QUICK):
            await eventually(lambda: copy.content() == master.log.content(), what="the slave is level")
            assert copy.failures == 0

    asyncio.run(scenario())


def test_a_log_that_has_not_recovered_from_a_cut_is_shown_to_no_master() -> None:
    class Unfinished(MemoryLog):
        failures = 2

        async def recover(self) -> None:
            if self.failures:
                self.failures -= 1
                raise WrongStore("not yet")

        def append_bytes(self, start: int, data: memoryview | bytes) -> int:
            assert self.failures == 0
            return super().append_bytes(start, data)

    async def scenario() -> None:
        copy = Unfinished(SEGMENT)
        master = new_master(log_of(SHARED), QUICK)
        async with serving(master), following(master.address, log=copy, config=QUICK):
            await eventually(lambda: copy.content() == master.log.content(), what="the slave is level")

    asyncio.run(scenario())


WRONG: list[tuple[str, dict[str, object], type[PenstockError], str]] = [
    ("below what is the same", {"start_offset": 900}, InvalidArgument, "same up to 800"),
    ("beyond the slave's end, not a file's start", {"start_offset": 850}, InvalidArgument, "same up to 800"),
    ("beyond its own end", {"start_offset": 2 * SEGMENT}, InvalidArgument, "same up to 800"),
    ("a negative start", {"start_offset": -1}, InvalidArgument, "same up to 800"),
    ("an older epoch", {"epochs": EpochHistory([Epoch(0, 0)])}, NotMaster, "seen 1"),
    ("unknown epochs", {"epochs": EpochHistory([Epoch(7, 1)])}, WrongStore, "no epoch is the same"),
    ("a long tail", {"tail": (1 << 20, 0)}, InvalidArgument, "tail"),
    ("a negative tail", {"tail": (-5, 0)}, InvalidArgument, "tail"),
    ("another file size", {"segment_bytes": 1024}, WrongStore, "mappedFileSizeCommitLog"),
]


@pytest.mark.parametrize(("what", "field", "error", "words"), WRONG, ids=[case[0] for case in WRONG])
def test_a_welcome_that_cannot_be_true_is_refused(
    what: str, field: dict[str, object], error: type[PenstockError], words: str
) -> None:
    values: dict[str, object] = {
        "epochs": NEW,
        "start_offset": 800,
        "segment_bytes": SEGMENT,
        "flush_acknowledged": False,
    }
    values.update(field)
    welcome = welcome_of(identity(0), values.pop("epochs"), **values)  # type: ignore[arg-type]
    with pytest.raises(error, match=words):
        check_welcome(welcome, identity(1), OLD, log_of(SHARED + b"tail"), master_end=816, sync=False)


@pytest.mark.parametrize("has_state", [True, False])
def test_a_slave_whose_older_state_would_go_with_the_cut_is_refused_unless_its_master_has_no_more(
    has_state: bool,
) -> None:
    """Its retention is ahead of the master's: what told of the files that are gone is newer than the cut."""
    log = log_of(SHARED + b"tail")
    log.drop_before(SEGMENT)
    log.has_state = has_state
    for master_minimum in (0, SEGMENT):
        welcome = welcome_of(
            identity(0),
            NEW,
            start_offset=800,
            segment_bytes=SEGMENT,
            flush_acknowledged=False,
            tail=tail_of(log, 800),
            min_offset=master_minimum,
        )
        if has_state or master_minimum == SEGMENT:
            assert check_welcome(welcome, identity(1), OLD, log, master_end=816, sync=False) is Joining.CUT
        else:
            with pytest.raises(WrongStore, match="would tell of topics, groups and offsets from before"):
                check_welcome(welcome, identity(1), OLD, log, master_end=816, sync=False)


@st.composite
def forks(draw: st.DrawFn) -> tuple[int, EpochHistory, int, EpochHistory, int]:
    """Two continuations of one log: where they part, and each one's history and end."""
    epoch, at, entries = 0, 0, [Epoch(1, 0)]
    for _ in range(draw(st.integers(0, 3))):
        epoch, at = entries[-1].epoch + 1, at + draw(st.integers(0, 300))
        entries.append(Epoch(epoch, at))
    fork = at + draw(st.integers(0, 300))
    shared, latest = EpochHistory(entries), entries[-1].epoch
    slave, slave_end = shared, fork + draw(st.integers(0, 300))
    if draw(st.booleans()):
        slave = shared.lead(latest + 1, fork)
    master, master_end = shared.lead(latest + 2, fork), fork + draw(st.integers(0, 300))
    return fork, master, master_end, slave, slave_end


@settings(max_examples=300, deadline=None)
@given(forks(), st.integers(0, 900), st.integers(0, 3), st.integers(0, 2**32))
def test_whatever_two_logs_share_is_kept_and_nothing_else(
    fork: tuple[int, EpochHistory, int, EpochHistory, int], confirm: int, taken: int, seed: int
) -> None:
    """Hello and welcome agree on the same place, for every pair of histories: where the logs part, or, where the
    master has that no more since retention has ``taken`` files, its minimum.
    """
    at, master_epochs, master_end, slave_epochs, slave_end = fork
    numbers = random.Random(seed)
    shared = numbers.randbytes(at)
    master, slave = (
        log_of(shared + numbers.randbytes(master_end - at)),
        log_of(shared + numbers.randbytes(slave_end - at)),
    )
    slave.confirm_offset = min(confirm, slave_end)
    minimum = min(taken, max(master_end - 1, 0) // SEGMENT) * SEGMENT
    master.drop_before(minimum)
    length, crc = tail_of(slave, slave_end)
    said = frames.decode_report(
        hello_of(identity(1), slave_epochs, end_offset=slave_end, store_instance="a", tail_bytes=length, tail_crc=crc)
    )
    assert isinstance(said, frames.Hello)
    start = starting_offset(said, identity(0), master_epochs, master)
    agreed = min(at, slave_end)
    assert start == (max(agreed, minimum) if slave_end else minimum)
    welcome = welcome_of(
        identity(0),
        master_epochs,
        start_offset=start,
        segment_bytes=SEGMENT,
        flush_acknowledged=False,
        sync=True,
        tail=tail_of(master, start),
    )
    try:
        joining = check_welcome(welcome, identity(1), slave_epochs, slave, master_end=master_end, sync=False)
    except WrongStore:
        assert slave.confirm_offset > agreed
        return
    if slave_end == 0:
        assert joining is Joining.BEGIN
    elif agreed < minimum:
        assert joining is Joining.START_OVER
        assert slave.confirm_offset <= agreed
    else:
        assert joining is (Joining.GO_ON if slave_end == start else Joining.CUT)
        assert joining is Joining.GO_ON or slave.confirm_offset <= start
