"""Damage to each structure of a store: found and refused, or repaired; never silently short, never a wrong byte.

An index that was closed cleanly is believed; ``penstock store verify`` compares it with the log. What nobody can tell
is left out: RocketMQ's record has a checksum for the body alone, so a changed bit among the
properties, or in a header field that says nothing about places and sizes, looks like what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.broker.store import FlushMode, Store
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import Corrupt, StorageError
from tests.support.broker.stepped_store import abandon, flusher_of, stepped_stores
from tests.support.broker.stores import batch, dispatch_all, read_records, store_config
from tests.support.clock import ManualClock
from tests.support.crash.simulated_disk import SimulatedDisk

ROOT = "/srv/store"
SEGMENT = 4096
SENT = [b"%06d " % number * 40 for number in range(24)]
SIZE = 91 + len(SENT[0]) + 1 + 7
PER_FILE = (SEGMENT - 8) // SIZE
MIDDLE, LAST = PER_FILE + 2, len(SENT) - 1
SLOTS, ENTRIES = 50, 120
QUEUE = f"{ROOT}/consumequeue/t/0/{0:020d}"
DAMAGES = ("1 bit", "1 byte", "512 zeros", "truncated", "missing", "wrong size", "previous version")


class Structure(NamedTuple):
    """Where it lies: a file, or the first of a directory, and a position in it."""

    path: str
    position: int


def _log_place(number: int, behind: int) -> Structure:
    file, place = divmod(number, PER_FILE)
    return Structure(f"{ROOT}/commitlog/{file * SEGMENT:020d}", place * SIZE + behind)


STRUCTURES = {
    "record size": _log_place(MIDDLE, 2),
    "record magic": _log_place(MIDDLE, 5),
    "record place": _log_place(MIDDLE, 34),
    "record body": _log_place(MIDDLE, 120),
    "body of the last record": _log_place(LAST, 120),
    "length of properties": _log_place(MIDDLE, SIZE - 8),
    "blank": Structure(f"{ROOT}/commitlog/{0:020d}", PER_FILE * SIZE + 2),
    "queue entry": Structure(QUEUE, 5 * 20 + 6),
    "last queue entry": Structure(QUEUE, 19 * 20 + 6),
    "index header": Structure(f"{ROOT}/index/", 39),
    "index slot": Structure(f"{ROOT}/index/", 40 + 4 * 7 + 3),
    "index entry": Structure(f"{ROOT}/index/", 40 + 4 * SLOTS + 20 * 3 + 1),
    "checkpoint": Structure(f"{ROOT}/checkpoint", 6),
    "positions": Structure(f"{ROOT}/penstockCheckpoint", 30),
    "other positions": Structure(f"{ROOT}/penstockCheckpoint", 512 + 30),
    "abort": Structure(f"{ROOT}/abort", 0),
}


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped_stores():
        yield


def _open(disk: SimulatedDisk) -> Store:
    config = store_config(
        Path(ROOT),
        segment_bytes=SEGMENT,
        flush_mode=FlushMode.SYNC_FLUSH,
        consume_queue_bytes=400 * 20,
        index_slots=SLOTS,
        index_entries=ENTRIES,
    )
    return Store.open(config, disk=disk, clock=ManualClock())


def _put(store: Store, bodies: list[bytes]) -> None:
    for body in bodies:
        store.append("t", batch("t", [body], properties=[b"KEYS\x01k\x02"]), queues=1)
    store.request_flush(store.end_offset)
    flusher_of(store).step()
    dispatch_all(store)


def _filled(*, clean: bool) -> tuple[SimulatedDisk, dict[str, bytes]]:
    """A store on a disk, closed or killed; and every file as it was before the last few messages."""
    disk = SimulatedDisk(1)
    store = _open(disk)
    _put(store, SENT[:16])
    store.checkpoint()
    before = _files(disk)
    _put(store, SENT[16:20])
    store.checkpoint()
    _put(store, SENT[20:])
    if clean:
        store.close()
    else:
        abandon(store)
    disk = disk.kill()
    return disk, before


def _files(disk: SimulatedDisk, directory: str = ROOT) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        try:
            found[path] = disk.contents(path)
        except AssertionError:
            found |= _files(disk, path)
    return found


def _damage(disk: SimulatedDisk, structure: Structure, damage: str, before: dict[str, bytes]) -> str:
    """Do it; the path of the file. Empty where it cannot be done."""
    path = structure.path
    if path.endswith("/"):
        path += disk.list(path.rstrip("/"))[0]
    if not disk.exists(path):
        return ""
    content = bytearray(disk.contents(path))
    at = structure.position
    if damage == "1 bit":
        content[at : at + 1] = bytes([content[at] ^ 1]) if len(content) else b""
    elif damage == "1 byte":
        content[at : at + 1] = bytes([content[at] ^ 0xFF]) if len(content) else b""
    elif damage == "512 zeros":
        content[at : at + 512] = bytes(min(512, len(content) - at))
    elif damage == "truncated":
        del content[at:]
    elif damage == "wrong size":
        content += bytes(20)
    elif damage == "previous version":
        content = bytearray(before.get(path, b""))
    if damage == "missing":
        disk.lose(path)
    elif bytes(content) == disk.contents(path):
        return ""
    else:
        disk.replace(path, bytes(content))
    return path


def _read_all(store: Store) -> list[bytes]:
    """What a consumer gets, which checks each body."""
    return [decode_record(raw, check_crc=True).body for raw in read_records(store, "t")]


def _check_index(store: Store, bodies: list[bytes], *, may_lack: bool) -> None:
    """It never tells what is not so; after a clean end nobody looks whether it tells all of it."""
    found = [decode_record(raw, check_crc=True).body for raw in store.lookup.query("t", "k", 100, 0, 1 << 60)]
    expected = bodies[::-1]
    assert found == expected or (may_lack and set(found) < set(expected))


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_damage_is_refused_by_name_or_repaired(
    name: str, damage: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk, before = _filled(clean=clean)
    path = _damage(disk, STRUCTURES[name], damage, before)
    if not path:
        return
    damaged = _files(disk)
    try:
        with caplog.at_level(logging.WARNING):
            store = _open(disk)
    except StorageError as error:
        assert path.rpartition("/")[0] in str(error), f"the error does not name what is damaged: {error}"
        assert _log_files(_files(disk)) == _log_files(damaged), "a refused log was changed"
        return
    try:
        bodies = _read_all(store)
    except Corrupt as error:
        assert "commitlog" in path or "consumequeue" in str(error), f"not where the damage is: {error}"
    else:
        told = {record.levelno for record in caplog.records}
        if (name, damage) == ("blank", "missing"):  # the oldest file: as if it had been cleaned away
            assert bodies == SENT[PER_FILE:]
            assert logging.WARNING in told
        elif bodies != SENT:
            assert bodies == SENT[: len(bodies)]
            assert name == "body of the last record", "only the tail may be cut"
            assert logging.ERROR in told, "synced messages went silently"
        _check_index(store, bodies, may_lack=clean and path.startswith(f"{ROOT}/index"))
    finally:
        abandon(store)


def _log_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if "/commitlog/" in path and content}
