"""A member that may lack what the others count on it for is not trusted for a while.

Synced bytes at its log's end have come back damaged: they are cut and kept. Or its machine has lost power, and with it
what was acknowledged from memory.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config import BrokerConfig, BrokerRole, IdentityConfig, NameserversConfig, ReplicationSettings
from penstock.broker.core.dispatch import Dispatcher
from penstock.broker.core.events import LogEvents
from penstock.broker.group import held_membership
from penstock.broker.group.held_membership import FILE_NAME, MembershipFile
from penstock.broker.group.leadership import Leadership
from penstock.broker.group.making import RoleMaker
from penstock.broker.opening import Opened, open_store
from penstock.broker.store import Disk, FlushMode, Store, StoreConfig
from penstock.broker.store.disk import Data
from penstock.broker.store.recovery import opening
from penstock.formats.directory import DOUBT
from penstock.nameserver.election.elections import Choice, MemberReport, choose
from penstock.proto.errors import DiskFull, StorageError, SyncFailed
from penstock.proto.register import Register, new_register
from penstock.runtime.clock import SystemClock
from tests.support.broker.stores import HOST, NEVER_MS, batch, flush, patch
from tests.support.crash.failing_disk import FailingDisk
from tests.support.waiting import wait_until

SECTOR = 512


def config_of(folder: Path, broker_id: int, flush_mode: FlushMode = FlushMode.SYNC_FLUSH) -> BrokerConfig:
    """A member of an elected group, with small files."""
    return BrokerConfig(
        identity=IdentityConfig(broker_name="broker-a", broker_id=broker_id, bind_address="127.0.0.1"),
        nameservers=NameserversConfig(addresses=("127.0.0.1:1",)),
        replication=ReplicationSettings(role=BrokerRole.SYNC_MASTER, is_elected=True, in_sync_replicas=2),
        store=StoreConfig(
            root=folder,
            segment_bytes=1 << 20,
            body_bytes_max=8192,
            flush_mode=flush_mode,
            flush_interval_ms=NEVER_MS,
            flush_thorough_interval_ms=NEVER_MS,
            store_host=HOST,
            index_enable=False,
        ),
    )


def leadership_of(config: BrokerConfig, opened: Opened, register: Register) -> Leadership:
    """That of a member that has read the register."""
    dispatcher = Dispatcher(opened.store, opened.tables)
    role: Any = RoleMaker(config, opened, LogEvents(opened.store, dispatcher), SystemClock()).make()
    leadership: Leadership = role.leadership
    leadership.register = register
    return leadership


def report(
    folder: Path, broker_id: int, register: Register, flush_mode: FlushMode = FlushMode.SYNC_FLUSH
) -> MemberReport:
    """What a member says of itself after a start."""
    config = config_of(folder, broker_id, flush_mode)
    with open_store(config, ()) as opened:
        leadership = leadership_of(config, opened, register)
        said = leadership.candidacy()
        end = opened.store.end_offset
        leadership.role.close()
        opened.store.abandon()
    return MemberReport(broker_id, 0.0, 0, said.log_epoch, end, False, False, 0, said.is_doubtful)


def two_members(tmp_path: Path, *, confirmed: bool) -> tuple[Path, Path, list[int]]:
    """The store roots of a master and a slave that lost power when both had synced everything; ends of the records."""
    roots = tmp_path / "0", tmp_path / "1"
    for broker_id, root in enumerate(roots):
        with open_store(config_of(root, broker_id), ()) as opened:
            opened.store.close()
        MembershipFile(root).hold("coordinator", broker_id)
    master, slave = (Store.open(_store_config(root, number)) for number, root in enumerate(roots))
    ends = [master.append("t", batch("t", [b"%04d" % n + b"." * 600]), queues=1).end for n in range(20)]
    flush(master)
    slave.append_bytes(0, master.read_bytes(0, ends[-1]))
    if confirmed:
        slave.set_confirm(ends[-1])
        while slave.dispatched_offset < ends[-1]:
            slave.dispatch()
    flush(slave)
    master.abandon()
    slave.abandon()
    return *roots, ends


def _store_config(root: Path, broker_id: int) -> StoreConfig:
    return dataclasses.replace(config_of(root, broker_id).store, replicated=True)


def elected(register: Register, reports: Iterable[MemberReport]) -> Choice | None:
    return choose(register, {each.broker_id: each for each in reports}, unclean_allowed=False)


@pytest.mark.parametrize("confirmed", [False, True], ids=["not-confirmed", "confirmed"])
@pytest.mark.parametrize("damage", [bytes(SECTOR), b"\x5a" * SECTOR], ids=["zeros", "garbage"])
@pytest.mark.parametrize("first", [0, 1], ids=["whole-first", "damaged-first"])
def test_a_member_with_a_damaged_synced_tail_is_not_elected_before_the_whole_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, damage: bytes, confirmed: bool
) -> None:
    whole, damaged, ends = two_members(tmp_path, confirmed=confirmed)
    register = dataclasses.replace(new_register("cluster", "broker-a", 0, 1), sync_state_set=frozenset((0, 1)))
    start = ends[-1] - ends[-1] % SECTOR
    before = (damaged / "commitlog" / f"{0:020d}").read_bytes()[: ends[-1]]
    patch(damaged, start, damage[: ends[-1] - start])
    cut = max(end for end in ends if end <= start)
    with caplog.at_level(logging.ERROR):
        reports = {number: report(root, number, register) for number, root in ((1, damaged), (0, whole))}
    assert (reports[0].end_offset, reports[0].is_doubtful) == (ends[-1], False)
    assert (reports[1].end_offset, reports[1].is_doubtful) == (cut, True)
    kept = damaged / f"penstockCut.{cut:020d}"
    assert kept.read_bytes().rstrip(b"\0") == (before[cut:start] + damage[: ends[-1] - start]).rstrip(b"\0")
    assert re.search(rf"synced bytes .* damaged.* at={cut} .*kept={re.escape(str(kept))}", caplog.text)
    assert elected(register, [reports[first]]) == (None if first == 1 else Choice(0))
    assert elected(register, reports.values()) == Choice(0)
    assert report(damaged, 1, register).is_doubtful, "another start forgets nothing"

    master, slave = Store.open(_store_config(whole, 0)), Store.open(_store_config(damaged, 1))
    slave.append_bytes(cut, master.read_bytes(cut, ends[-1] - cut))
    flush(slave)
    slave.end_doubt()  # as the leadership does when it has caught up
    assert slave.doubt == ""
    assert kept.exists()
    for store in (master, slave):
        store.close()
    assert not report(damaged, 1, register).is_doubtful


def test_a_torn_tail_that_was_not_synced_leaves_no_doubt(tmp_path: Path) -> None:
    _, slave_root, ends = two_members(tmp_path, confirmed=True)
    Store.open(_store_config(slave_root, 1)).close()  # cleanly, so that the next start asks for no sync
    store = Store.open(_store_config(slave_root, 1))
    end = store.append("t", batch("t", [b"x" * 900]), queues=1).end
    store.abandon()
    patch(slave_root, end - 300, bytes(300))
    reopened = Store.open(_store_config(slave_root, 1))
    assert (reopened.end_offset, reopened.doubt) == (ends[-1], "")
    assert not list(slave_root.glob("penstockCut.*"))
    reopened.close()


def test_a_part_of_a_record_that_a_slave_had_synced_leaves_no_doubt(tmp_path: Path) -> None:
    """The rest of it never came; nobody was told that it is there."""
    whole, _, ends = two_members(tmp_path, confirmed=True)
    master = Store.open(_store_config(whole, 0))
    root = tmp_path / "part"
    slave = Store.open(_store_config(root, 1))
    slave.append_bytes(0, master.read_bytes(0, ends[-1] - 100))
    flush(slave)
    slave.abandon()
    master.close()
    reopened = Store.open(_store_config(root, 1))
    assert (reopened.end_offset, reopened.doubt) == (ends[-2], "")
    reopened.close()


class UnnotedDisk(FailingDisk):
    """Whose failure cannot even be noted."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if path.endswith(DOUBT):
            raise OSError(errno.EROFS, "read-only", path)
        return super().open(path, create=create, read_only=read_only)


class WatchedDisk(Disk):
    """``written``: positions and sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, int]] = []

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        self.written.append((position, len(data)))
        super().pwrite(descriptor, data, position)


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not-even-noted"])
def test_after_a_failed_sync_the_bytes_are_written_again_before_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """Also where the failure could not be noted: a start that finds no clean exit believes no memory of the system."""
    config = _store_config(tmp_path / "store", 1)
    (tmp_path / "store").mkdir()
    disk = FailingDisk() if noted else UnnotedDisk()
    store = Store.open(config, disk=disk)
    store.append("t", batch("t", [b"kept"]), queues=1)
    flush(store)
    synced = store.flushed_offset
    told: list[SyncFailed] = []
    store.on_fatal = told.append  # type: ignore[assignment]
    end = store.append("t", batch("t", [b"lost?"]), queues=1).end
    disk.kind, disk.nth, disk.count, disk.code = "sync", 1, 0, errno.EIO
    store.request_flush(end)
    wait_until(lambda: told, what="the fatal error")
    store.abandon()

    watched = WatchedDisk()
    reopened = Store.open(config, disk=watched)
    page = synced - synced % 4096
    assert (page, end - page) in watched.written
    assert reopened.flushed_offset == end
    assert bool(reopened.doubt) == noted
    reopened.abandon()
    monkeypatch.setattr(opening, "boot_id", lambda: "another")
    watched.written.clear()
    Store.open(config, disk=watched).close()
    assert (page, end - page) not in watched.written, "what is read after a boot comes from the disk"


def after_power_loss(
    root: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode = FlushMode.ASYNC_FLUSH
) -> Register:
    """Broker 0's store in ``root`` was in use when the machine lost power; the register of its group."""
    config = config_of(root, 0, flush_mode)
    with open_store(config, ()) as opened:
        opened.store.close()
    MembershipFile(root).hold("coordinator", 0)
    store = Store.open(dataclasses.replace(config.store, replicated=True))
    store.append("t", batch("t", [b"x" * 600]), queues=1)
    store.abandon()
    for module in (held_membership, opening):
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    return dataclasses.replace(new_register("cluster", "broker-a", 0, 1), sync_state_set=frozenset((0, 1)))


def live(root: Path, register: Register, life: str) -> None:
    """One life of broker 0, by how it ends, and whether it had everything before."""
    config = config_of(root, 0, FlushMode.ASYNC_FLUSH)
    if life == "failed start":
        with pytest.raises(ZeroDivisionError), open_store(config, ()):
            raise ZeroDivisionError
        return
    with open_store(config, ()) as opened:
        leadership = leadership_of(config, opened, register)
        if "level" in life:
            replica: Any = leadership.role.inner.replica  # type: ignore[union-attr]
            replica.has_been_level = True
            leadership._look_level(0.0)
            assert not leadership.candidacy().is_doubtful
        leadership.role.close()
        if "stopped" in life:
            opened.store.close()
        else:
            opened.store.abandon()


@pytest.mark.parametrize(
    ("lives", "doubtful"),
    [
        ([], True),
        (["stopped"], True),
        (["stopped", "stopped"], True),
        (["killed"], True),
        (["killed", "stopped"], True),
        (["stopped", "killed", "stopped"], True),
        (["failed start"], True),
        (["level, stopped"], False),
        (["level, killed"], False),
        (["stopped", "level, killed"], False),
        (["stopped", "level, killed", "killed", "stopped"], False),
    ],
    ids=lambda value: "; ".join(value) or "at once" if isinstance(value, list) else "",
)
def test_a_member_that_lost_power_is_in_doubt_until_it_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: list[str], doubtful: bool
) -> None:
    """However often it stops before; a clean stop syncs what is there, and brings nothing back."""
    register = after_power_loss(tmp_path, monkeypatch)
    for life in lives:
        live(tmp_path, register, life)
    said = report(tmp_path, 0, register, FlushMode.ASYNC_FLUSH)
    assert said.is_doubtful == doubtful
    assert elected(register, [said]) == (None if doubtful else Choice(0))
    assert (tmp_path / DOUBT).exists() == doubtful


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize(
    ("role", "is_elected"),
    [
        (BrokerRole.SYNC_MASTER, True),
        (BrokerRole.ASYNC_MASTER, True),
        (BrokerRole.SYNC_MASTER, False),
        (BrokerRole.ASYNC_MASTER, False),
        (BrokerRole.SLAVE, False),
    ],
)
def test_a_power_loss_is_noted_only_where_a_group_counts_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode, role: BrokerRole, is_elected: bool
) -> None:
    after_power_loss(tmp_path, monkeypatch, flush_mode)
    if not is_elected:
        (tmp_path / FILE_NAME).unlink()  # else it is a member's store, and the start refuses it
    is_slave = role is BrokerRole.SLAVE
    settings = ReplicationSettings(
        role=role, is_elected=is_elected, in_sync_replicas=1, master_address="127.0.0.1:1" if is_slave else ""
    )
    config = config_of(tmp_path, 0, flush_mode)
    identity = dataclasses.replace(config.identity, broker_id=int(is_slave))
    with open_store(dataclasses.replace(config, identity=identity, replication=settings), ()) as opened:
        noted = bool(opened.store.doubt)
        opened.store.close()
    assert noted == (is_elected and role is BrokerRole.SYNC_MASTER and flush_mode is FlushMode.ASYNC_FLUSH)
    assert (tmp_path / DOUBT).exists() == noted


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("open", errno.EACCES),
        ("open", errno.ENOSPC),
        ("truncate", errno.EIO),
        ("pwrite", errno.ENOSPC),
        ("sync", errno.EIO),
        ("sync_directory", errno.EIO),
    ],
)
def test_a_doubt_that_cannot_be_noted_ends_the_start_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    """Whichever call fails: the start does, or the doubt is there after a clean stop."""
    left = tmp_path / "left"
    register = after_power_loss(left, monkeypatch)
    store_config = dataclasses.replace(
        _store_config(left, 0), flush_mode=FlushMode.ASYNC_FLUSH, is_unclean_doubtful=True
    )
    at_the_note = 0
    for nth in range(1, 100):
        root = tmp_path / str(nth)
        shutil.copytree(left, root)
        disk = FailingDisk(kind, nth, code)
        try:
            Store.open(dataclasses.replace(store_config, root=root), disk=disk).close()
        except StorageError as error:
            assert str(root) in str(error)
            assert isinstance(error, DiskFull) == (code == errno.ENOSPC)
            at_the_note += DOUBT in str(error)
        assert report(root, 0, register, FlushMode.ASYNC_FLUSH).is_doubtful, f"call {nth} failed"
        shutil.rmtree(root)
        if not disk.failed:
            break
    else:
        raise AssertionError("it never passed untouched")
    assert at_the_note or kind != "open"


def test_a_note_without_its_text_is_a_doubt_all_the_same(tmp_path: Path) -> None:
    """The disk was full when a failed sync was noted."""
    whole, _, _ = two_members(tmp_path, confirmed=True)
    register = dataclasses.replace(new_register("cluster", "broker-a", 0, 1), sync_state_set=frozenset((0, 1)))
    assert not report(whole, 0, register).is_doubtful
    (whole / DOUBT).touch()
    assert report(whole, 0, register).is_doubtful
