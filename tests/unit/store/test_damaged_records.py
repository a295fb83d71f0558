"""A record damaged on the disk costs its readers that record, and tells the operator what to do."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from penstock.broker.store import ReadResult, ReadStatus, Store
from penstock.formats.record.layout import decode_record
from tests.support.broker.stores import batch, dispatch_all, patch, split, store_config

COUNT = 9
DAMAGED = 4


def _opened(root: Path) -> tuple[Store, list[int]]:
    store = Store.open(store_config(root))
    starts = [store.append("t", batch("t", [b"%d" % number + bytes(50)]), queues=1).start for number in range(COUNT)]
    dispatch_all(store)
    return store, starts


def _bodies(result: ReadResult) -> list[int]:
    memory = ctypes.create_string_buffer(result.bytes)
    result.copy_to(ctypes.addressof(memory))
    return [int(decode_record(raw).body[:1]) for raw in split(memory.raw)]


def _all(store: Store, **how: bool) -> tuple[list[int], list[str]]:
    found: list[int] = []
    problems = []
    offset = 0
    while offset < COUNT:
        result = store.reader.read("t", 0, offset, 1 << 20, **how)
        if result.status is ReadStatus.DAMAGED:
            assert (result.count, result.next_offset) == (0, offset + 1)
            problems.append(result.problem)
        else:
            found += _bodies(result)
        offset = result.next_offset
    return found, problems


OTHERS = [number for number in range(COUNT) if number != DAMAGED]


@pytest.mark.parametrize(("place", "verify"), [(0, False), (28, False), (28, True), (84, True), (95, True)])
def test_others_are_read_and_the_log_names_it_once(
    place: int, verify: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes of the size, the own offset, the body's length and the body."""
    store, starts = _opened(tmp_path)
    path = patch(tmp_path, starts[DAMAGED] + place, b"\x7f\x7f")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found, problems = _all(store, verify=verify)
            assert found == OTHERS
            assert len(problems) == 1
            assert f"{path}: the record at {starts[DAMAGED]} is damaged (t queue 0 offset {DAMAGED})" in problems[0]
            assert "replica" in problems[0]
            assert "penstock store rebuild" in problems[0]
    assert caplog.text.count("record damaged") == len(store.reader.damages) == 1
    store.close()


@pytest.mark.parametrize(
    "entry",
    [
        (1 << 40).to_bytes(8, "big"),
        (60).to_bytes(8, "big"),
        bytes(8) + (3).to_bytes(4, "big"),
        bytes(8) + (160).to_bytes(4, "big"),
    ],
    ids=["behind the log", "in front", "too small", "the first record"],
)
def test_an_entry_that_is_wrong_is_told_from_a_record_that_is(entry: bytes, tmp_path: Path) -> None:
    store, _ = _opened(tmp_path)
    store.checkpoint()
    path = tmp_path / "consumequeue/t/0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(20 * DAMAGED)
        file.write(entry)
    found, problems = _all(store)
    assert found == OTHERS
    assert f"{path.parent}: entry {DAMAGED} points to" in problems[0]
    assert "delete the folder" in problems[0]
    store.close()


def test_the_advice_for_a_wrong_entry_helps(tmp_path: Path) -> None:
    store, _ = _opened(tmp_path)
    store.close()
    path = tmp_path / "consumequeue/t/0" / f"{0:020d}"
    path.unlink()
    path.parent.rmdir()
    store = Store.open(store_config(tmp_path))
    assert _all(store) == (list(range(COUNT)), [])
    store.close()


def test_filters_and_limits_end_in_front_of_a_damaged_record(tmp_path: Path) -> None:
    store, starts = _opened(tmp_path)
    patch(tmp_path, starts[DAMAGED], b"\x7f")
    assert store.reader.read("t", 0, 0, 1 << 20, max_count=2).count == 2
    result = store.reader.read("t", 0, 0, 1 << 20)
    assert (result.status, result.next_offset, result.count) == (ReadStatus.FOUND, DAMAGED, DAMAGED)
    none = store.reader.read("t", 0, 0, 1 << 20, tags={7})
    assert none.status is ReadStatus.NO_MATCHED_MESSAGE, "what nobody wants may be damaged"
    store.close()
