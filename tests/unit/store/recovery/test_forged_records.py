"""Bodies that hold sound records of their own place: no start takes them for what was stored, and nobody is shown them.

Receipts say where a message lies, so a lone writer knows where its next one will.
"""

from __future__ import annotations

import faulthandler
import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.store import Store
from penstock.formats.record.kernels import PlaceStatus, place_batch
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import Corrupt, MessageNotFound
from tests.support.broker.stores import BODY_AT, HOST, batch, bodies, dispatch_all, flush, forged, patch, store_config
from tests.support.record.guarded import forbid


def hidden_record(start: int, filling: int = 700) -> bytes:
    """A body for a record at ``start``: forged records one behind the other, and something else."""
    at, parts = start + BODY_AT, []
    for _ in range(3):
        parts.append(forged(at))
        at += len(parts[-1])
    return b"".join(parts) + b"." * filling


def crashed(root: Path, *, synced: bool) -> tuple[int, int]:
    """A store whose process died behind a whole record with forged ones in it; where that begins and ends."""
    store = Store.open(store_config(root))
    for number in range(3):
        store.append("t", batch("t", [b"%04d" % number]), queues=1)
    flush(store)
    start = store.end_offset
    end = store.append("t", batch("t", [hidden_record(start)]), queues=1).end
    if synced:
        flush(store)
    store.abandon()
    return start, end


def numbers(store: Store) -> list[int]:
    return [int(body[:4]) for body in bodies(store, "t")]


def placed(records: bytes, log: np.ndarray[tuple[int], np.dtype[np.uint8]], base: int) -> int:
    """Place one record at the beginning of ``log``; the status."""
    as_array = functools.partial(np.frombuffer, dtype=np.uint8)
    longs, ints = functools.partial(np.zeros, dtype=np.int64), functools.partial(np.zeros, dtype=np.int32)
    host, topic = as_array(HOST.encode()), as_array(b"t")
    where = (0, base, 1234, host, topic, longs(1), 1, longs(1), 1 << 20, ints(1), longs(1), 1, False)
    return int(place_batch(as_array(records), log, *where)[0])


@pytest.mark.parametrize("left", [BODY_AT + 97 * 3, 600, 900])
def test_a_torn_record_with_whole_ones_in_its_body_is_cut(tmp_path: Path, left: int) -> None:
    start, end = crashed(tmp_path, synced=False)
    patch(tmp_path, start + left, bytes(end - start - left))
    store = Store.open(store_config(tmp_path))
    assert (store.end_offset, store.doubt) == (start, "")
    assert numbers(store) == [0, 1, 2]
    store.close()


@pytest.mark.parametrize("part", [1, 4, 7, 8, 9, 28, 30, 35, 36, 37, 87, BODY_AT, BODY_AT + 97, BODY_AT + 97 * 3, 600])
def test_a_part_of_such_a_record_that_a_slave_has_synced_is_cut(tmp_path: Path, part: int) -> None:
    """What arrives may end anywhere: the slave had synced the forged records, and not the outer one."""
    start, _ = crashed(tmp_path / "master", synced=True)
    master = Store.open(store_config(tmp_path / "master"))
    slave = Store.open(store_config(tmp_path / "slave", replicated=True))
    slave.append_bytes(0, master.read_bytes(0, start + part))
    flush(slave)
    slave.abandon()
    master.close()
    reopened = Store.open(store_config(tmp_path / "slave", replicated=True))
    assert (reopened.end_offset, reopened.doubt) == (start, "")
    reopened.close()


def test_a_store_of_another_program_that_ends_in_such_a_record_is_taken_over(tmp_path: Path) -> None:
    start, end = crashed(tmp_path, synced=False)
    patch(tmp_path, start + 600, bytes(end - start - 600))
    (tmp_path / "penstockCheckpoint").unlink()
    store = Store.open(store_config(tmp_path))
    assert store.end_offset == start
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda start, end: (start + 100, b"\x5a" * 4), id="body"),
        pytest.param(lambda start, end: (start, (end - start + 300).to_bytes(4, "big")), id="size"),
    ],
)
def test_real_records_behind_damage_are_no_forged_ones(
    tmp_path: Path, damage: Callable[[int, int], tuple[int, bytes]]
) -> None:
    """Also where the damaged size reaches beyond the next record: the rest of the head says another."""
    start, end = crashed(tmp_path, synced=False)
    store = Store.open(store_config(tmp_path))
    dispatch_all(store)
    for _ in range(3):
        store.append("t", batch("t", [b"later"]), queues=1)
    flush(store)
    store.abandon()
    patch(tmp_path, *damage(start, end))
    with pytest.raises(Corrupt, match=f"damaged at {start}"):
        Store.open(store_config(tmp_path))


def test_only_messages_that_a_queue_has_are_shown(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("other", batch("other", [b"first"]), queues=1)
    start = store.end_offset
    store.append("t", batch("t", [hidden_record(start)]), queues=1)
    store.set_confirm(store.end_offset)
    assert decode_record(store.lookup.view(start + BODY_AT)).body == b"forged", "it looks like one"
    with pytest.raises(MessageNotFound):
        store.lookup.message_at(start)
    dispatch_all(store)
    assert decode_record(store.lookup.message_at(0)).body == b"first"
    assert decode_record(store.lookup.message_at(start)).topic == "t"
    for offset in (start + BODY_AT, start + BODY_AT + len(forged(0))):
        with pytest.raises(MessageNotFound, match=f"at physical offset {offset} lies no message that queue 0 of topic"):
            store.lookup.message_at(offset)
    store.close()


def test_a_process_killed_while_it_places_a_record_leaves_its_head_first() -> None:
    """The copy ends at a page that may not be written, as it may end anywhere: what is there says how long it was."""
    page = mmap.PAGESIZE
    log = np.frombuffer(mmap.mmap(-1, 16 * page), np.uint8)
    record = batch("t", [hidden_record(0) + b"x" * 10 * page])
    assert placed(record, np.zeros(16 * page, np.uint8), 0) == PlaceStatus.OK
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        forbid(log[4 * page : 5 * page])
        placed(record, log, 7 * page)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    head = log[:BODY_AT].tobytes()
    assert int.from_bytes(head[:4], "big") == len(record)
    assert int.from_bytes(head[28:36], "big") == 7 * page
    assert int.from_bytes(head[84:88], "big") > 10 * page
