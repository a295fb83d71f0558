"""Up to where a store is read: what is confirmed of an open one, all that was ever there of a closed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.store import Store
from penstock.pipeline.stores.directory import list_store
from penstock.proto.errors import Corrupt, WrongStore
from tests.support import golden
from tests.support.broker.stores import batch, dispatch_all, flush, store_config
from tests.unit.pipeline.stores.test_store_splits import rows

SEGMENT_BYTES = 16384


def appended(store: Store, count: int) -> None:
    for number in range(count):
        store.append("orders", batch("orders", [b"%d" % number]), queues=3, count=1)


def test_an_open_store_is_read_up_to_what_is_confirmed_and_synced(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    try:
        appended(store, 1)
        flush(store)
        with pytest.raises(WrongStore, match=r"nothing of its log is confirmed yet: .* upTo=end"):
            list_store(str(tmp_path))
        appended(store, 399)
        dispatch_all(store)
        flush(store)
        confirmed = store.end_offset
        assert confirmed > 2 * SEGMENT_BYTES
        appended(store, 5)
        flush(store)
        listed = list_store(str(tmp_path))
        assert (listed.is_open, listed.end, len(listed.files)) == (True, confirmed, confirmed // SEGMENT_BYTES + 1)
        assert [row["body"] for row in rows(tmp_path)] == [b"%d" % number for number in [0, *range(399)]]
        assert list_store(str(tmp_path), up_to="end").end == store.end_offset
    finally:
        store.close()


def wiped(log: Path, last: int) -> None:
    path = log / f"{last // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    content = bytearray(path.read_bytes())
    content[last % SEGMENT_BYTES :] = bytes(len(content) - last % SEGMENT_BYTES)
    path.write_bytes(content)


def without_magic(log: Path, last: int) -> None:
    path = log / f"{last // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    content = bytearray(path.read_bytes())
    content[last % SEGMENT_BYTES + 4] ^= 1
    path.write_bytes(content)


def without_last_file(log: Path, last: int) -> None:
    (log / f"{last // SEGMENT_BYTES * SEGMENT_BYTES:020d}").unlink()


@pytest.mark.parametrize("lose", [wiped, without_magic, without_last_file])
@pytest.mark.parametrize("whose", ["RocketMQ's", "Penstock's"])
def test_a_closed_store_that_has_lost_its_end_is_damaged(
    tmp_path: Path, lose: Callable[[Path, int], None], whose: str
) -> None:
    root = tmp_path / "store"
    if whose == "RocketMQ's":
        golden.unpack("direct", root, only=("commitlog", "checkpoint"))
        messages = golden.expected("direct")["messages"]
        last = messages[-1]["physicalOffset"]
        if lose is wiped:  # RocketMQ's checkpoint knows a time, which several records may share
            newest = messages[-1]["storeTimestamp"]
            last = max(each["physicalOffset"] for each in messages if each["storeTimestamp"] < newest)
    else:
        store = Store.open(store_config(root))
        appended(store, 400)
        last = store.end_offset
        appended(store, 1)
        dispatch_all(store)
        store.close()
    sound = len(rows(root))
    lose(root / "commitlog", last)
    with pytest.raises(Corrupt, match=r"the closed log ends torn|records are missing: "):
        rows(root)
    assert 0 < len(rows(root, upTo="end")) < sound
