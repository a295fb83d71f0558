"""Received messages: every attribute, and the JSON document."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.client import Message, MessageQueue, MessageView
from penstock.formats.record.layout import Host, Record, encode_record
from penstock.formats.record.properties import encode_properties
from penstock.formats.record.reading import RecordBatch


def view(body: bytes = b"hello", **properties: str) -> MessageView:
    record = Record(
        topic="orders",
        body=body,
        properties=encode_properties(properties),
        queue_id=3,
        flag=5,
        queue_offset=7,
        physical_offset=1024,
        sys_flag=0,
        born_timestamp_ms=1700000000000,
        born_host=Host.parse("10.0.0.1:50000"),
        store_timestamp_ms=1700000000123,
        store_host=Host.parse("10.0.0.2:10911"),
        reconsume_times=2,
        prepared_transaction_offset=0,
    )
    return MessageView(RecordBatch(encode_record(record)), 0, "broker-a")


def test_a_message_decodes_every_attribute() -> None:
    message = view(TAGS="paid", KEYS="k1 k2", UNIQ_KEY="ID", region="eu", __SHARDINGKEY="c", __PSEQ="x")
    assert message.topic == "orders"
    assert message.body == b"hello"
    assert message.tag == "paid"
    assert message.keys == ["k1", "k2"]
    assert message.properties == {"region": "eu"}
    assert message.all_properties["UNIQ_KEY"] == "ID"
    assert message.sharding_key == "c"
    assert message.message_id == "ID"
    assert message.message_queue == MessageQueue("orders", "broker-a", 3)
    assert (message.queue_offset, message.physical_offset, message.reconsume_times) == (7, 1024, 2)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1700000000000, 1700000000123)
    assert (message.born_host, message.store_host) == ("10.0.0.1:50000", "10.0.0.2:10911")
    assert message.offset_message_id == "0A00000200002A9F0000000000000400"
    assert (message.flag, message.sys_flag, message.size) == (5, 0, len(message.record_bytes))
    assert "orders" in repr(message)


def test_a_message_without_properties_has_the_offset_id() -> None:
    message = view()
    assert message.message_id == message.offset_message_id
    assert (message.tag, message.keys, message.properties, message.sharding_key) == (None, [], {}, None)


def test_the_document_holds_text_or_base64() -> None:
    document = view("größe".encode(), TAGS="t").as_document()
    assert list(document) == [
        *("topic", "broker_name", "queue_id", "queue_offset", "physical_offset", "size", "message_id"),
        *("offset_message_id", "tag", "keys", "properties", "born_timestamp_ms", "store_timestamp_ms", "born_host"),
        *("store_host", "flag", "sys_flag", "reconsume_times", "body_crc", "body"),
    ]
    assert document["body"] == "größe"
    assert view(b"\xff\xfe").as_document()["body_base64"] == "//4="


def test_queues_sort_by_topic_broker_and_id() -> None:
    queues = [
        MessageQueue("b", "a", 0),
        MessageQueue("a", "b", 0),
        MessageQueue("a", "a", 10),
        MessageQueue("a", "a", 9),
    ]
    assert sorted(queues) == queues[::-1]


def test_a_message_to_send_is_immutable() -> None:
    message = Message("orders", b"x")
    with pytest.raises(AttributeError):
        message.body = b"y"  # type: ignore[misc]


def test_importing_the_client_loads_no_kernels_and_every_name_is_there() -> None:
    program = (
        "import sys, penstock.client as client\n"
        "assert 'numba' not in sys.modules and 'numpy' not in sys.modules\n"
        "import penstock.client.aio as aio\n"
        "assert set(client.__all__) <= set(dir(client)) and set(aio.__all__) <= set(dir(aio))\n"
        "[getattr(client, name) for name in client.__all__]\n"
        "[getattr(aio, name) for name in aio.__all__]\n"
        "assert 'numba' not in sys.modules\n"
        "assert not hasattr(client, 'Nothing') and not hasattr(aio, 'Nothing')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
