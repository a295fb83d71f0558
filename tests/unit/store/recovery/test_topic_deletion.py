"""A topic's deletion is a record: what stands in front of it goes from the queues, what stands behind begins at 0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.core.tables.topics import deleted_topic
from penstock.broker.store import Store
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.proto.names import STATE_TOPIC
from tests.support.broker.stores import batch, bodies, dispatch_all, read, store_config

LIGHT = "%LMQ%a"
NAMES_LIGHT = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"


def _open(root: Path, **changes: Any) -> Store:
    return Store.open(store_config(root, lmq_enable=True, multi_dispatch=True, **changes), deletes=deleted_topic)


def _put(store: Store, *texts: bytes, queue_id: int = 0, properties: bytes = b"") -> list[int]:
    records = batch("t", texts, queue_id, properties=[properties] * len(texts))
    return store.append("t", records, queues=2).queue_offsets


def _delete(store: Store, topic: str = "t") -> None:
    body = json.dumps({"topicName": topic}).encode()
    store.append(STATE_TOPIC, batch(STATE_TOPIC, [body], properties=[b"TAGS\x01TOPIC_DELETED\x02"]), queues=1)


def _dispatch(store: Store, max_bytes: int) -> None:
    store.set_confirm(store.end_offset)
    while store.dispatched_offset < store.end_offset:
        store.dispatch(max_bytes)


def _ship(source: Store, target: Store) -> None:
    target.append_bytes(target.end_offset, source.read_bytes(target.end_offset, 1 << 14))


def _seen(store: Store) -> list[list[bytes]]:
    return [bodies(store, "t", queue_id) for queue_id in (0, 1)]


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_topic_made_anew_before_its_deletion_is_dispatched_begins_at_0(
    tmp_path: Path, max_bytes: int, is_dispatched: bool
) -> None:
    store = _open(tmp_path)
    _put(store, b"old", b"older")
    _put(store, b"old", queue_id=1)
    if is_dispatched:
        dispatch_all(store)
    _delete(store)
    assert _put(store, b"new") == [0]
    assert _put(store, b"newer") == [1]
    _dispatch(store, max_bytes)
    assert _seen(store) == [[b"new", b"newer"], []]
    assert _put(store, b"newest", queue_id=1) == [0]
    dispatch_all(store)
    store.abandon()
    shutil.rmtree(tmp_path / "consumequeue")
    store = _open(tmp_path)
    assert _seen(store) == [[b"new", b"newer"], [b"newest"]]
    store.close()


def test_dispatch_drops_the_queues_of_a_deleted_topic_and_tells_of_none_of_them(tmp_path: Path) -> None:
    store = _open(tmp_path)
    _put(store, b"old")
    _delete(store)
    store.set_confirm(store.end_offset)
    assert list(store.dispatch().arrived) == [(STATE_TOPIC, 0, 1)]
    assert store.queues() == {STATE_TOPIC: [0]}
    assert not (tmp_path / "consumequeue/t").exists()
    store.close()


def test_no_checkpoint_knows_of_a_deletion_whose_queues_are_still_there(tmp_path: Path) -> None:
    store = _open(tmp_path)
    _put(store, b"old")
    dispatch_all(store)
    _delete(store)
    dispatch_all(store)
    store.checkpoint()  # as its thread may at any time
    store.abandon()
    store = _open(tmp_path)
    assert (store.recovery.queues_rebuilt, store.reader.queue_range("t", 0)) == (False, (0, 0))
    store.close()


def test_a_topic_deleted_and_made_anew_in_one_slice_loses_its_queues(tmp_path: Path) -> None:
    store, slave = _open(tmp_path / "master"), _open(tmp_path / "slave")
    _put(store, b"old")
    _put(store, b"old", queue_id=1)
    _delete(store)
    _put(store, b"new")
    _ship(store, slave)
    dispatch_all(slave)
    assert _seen(slave) == [[b"new"], []]
    store.close()
    slave.close()


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_slave_that_becomes_master_in_front_of_a_deletion_begins_the_topic_anew(
    tmp_path: Path, max_bytes: int
) -> None:
    store, slave = _open(tmp_path / "master"), _open(tmp_path / "slave")
    _put(store, b"old", b"older", properties=NAMES_LIGHT)
    _ship(store, slave)
    dispatch_all(slave)
    _put(store, b"oldest")
    _delete(store)
    _ship(store, slave)
    assert _put(slave, b"new", properties=NAMES_LIGHT) == [0]
    _dispatch(slave, max_bytes)
    assert _seen(slave) == [[b"new"], []]
    assert bodies(slave, LIGHT) == [b"old", b"older", b"new"]
    store.close()
    slave.close()


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_light_queue_made_anew_before_its_deletion_is_dispatched_begins_at_0(tmp_path: Path, max_bytes: int) -> None:
    store = _open(tmp_path)
    _put(store, b"old", b"older", properties=NAMES_LIGHT)
    dispatch_all(store)
    _delete(store, LIGHT)
    _put(store, b"new", properties=NAMES_LIGHT)
    _dispatch(store, max_bytes)
    _put(store, b"newer", properties=NAMES_LIGHT)
    dispatch_all(store)
    given = [decode_properties(record.properties)["INNER_MULTI_QUEUE_OFFSET"] for record in read(store, "t")]
    assert given == ["0", "1", "0", "1"]
    assert bodies(store, LIGHT) == [b"new", b"newer"]
    assert store.reader.queue_range(LIGHT, 0) == (0, 2)
    assert decode_record(store.lookup.view(0)).body == b"old"
    store.close()
