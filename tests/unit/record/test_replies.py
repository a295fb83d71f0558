"""Kernels that look into replies: what they find, and that no bytes lead them astray."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.formats.record.kernels.pairs import name_hash
from penstock.formats.record.layout import Host
from penstock.formats.record.properties import encode_properties
from penstock.formats.record.replies import ReplyStatus, check_replies, clients_of
from tests.support.record.encoding import encode_messages

BORN = Host.parse("10.0.0.9:4711")
GOOD = {"MSG_TYPE": "reply", "CORRELATION_ID": "i", "REPLY_TO_CLIENT": "c"}


def records(*properties: dict[str, str]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    strings = [encode_properties(each) for each in properties]
    return np.frombuffer(encode_messages("t", [b"x"] * len(strings), strings, born_host=BORN), np.uint8)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, ReplyStatus.OK),
        ({"CORRELATION_ID": "x" * 255, "REPLY_TO_CLIENT": "x" * 255}, ReplyStatus.OK),
        ({"CORRELATION_ID": "é" * 128}, ReplyStatus.BAD_CORRELATION),
        ({"CORRELATION_ID": ""}, ReplyStatus.BAD_CORRELATION),
        ({"REPLY_TO_CLIENT": "x" * 256}, ReplyStatus.BAD_CLIENT),
        ({"MSG_TYPE": "replY"}, ReplyStatus.NOT_A_REPLY),
        ({"MSG_TYPE": "replyy"}, ReplyStatus.NOT_A_REPLY),
    ],
)
def test_replies_are_told_from_what_is_none(changes: dict[str, str], status: ReplyStatus) -> None:
    batch = records(GOOD, GOOD | changes)
    assert check_replies(batch) == (status, 2 if status is ReplyStatus.OK else 1)


def test_each_record_tells_its_client() -> None:
    parts = [records(GOOD), records({}), records(GOOD | {"REPLY_TO_CLIENT": "ünïcode"})]
    sizes = np.array([len(part) for part in parts], np.int32)
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    clients = np.empty(3, np.int64)
    clients_of(np.concatenate(parts), positions, sizes, clients)
    assert clients.tolist() == [name_hash("c"), 0, name_hash("ünïcode")]


def test_cut_and_changed_bytes_are_no_replies_and_do_no_harm() -> None:
    batch, chooser = records(GOOD, GOOD), random.Random(7)
    for size in range(1, len(batch)):
        status, _ = check_replies(batch[:size].copy())
        assert status != ReplyStatus.OK or size == len(batch) // 2
    clients = np.empty(1, np.int64)
    for _ in range(5000):
        changed = batch.copy()
        for _ in range(chooser.randint(1, 4)):
            changed[chooser.randrange(len(changed))] = chooser.randrange(256)
        check_replies(changed)
        position, size = chooser.randint(-9, len(batch)), chooser.randint(0, len(batch) + 9)
        clients_of(changed, np.array([position], np.int64), np.array([size], np.int32), clients)
