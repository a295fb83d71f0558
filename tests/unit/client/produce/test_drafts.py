"""When a message is to be delivered: the arguments that say it, and RocketMQ's properties that mean the same."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from penstock.client import Message
from penstock.client.produce.drafts import Draft
from penstock.formats.destination import LATER_S_MAX, Delayed, Later, Ordinary
from penstock.formats.record.properties import decode_properties
from penstock.proto.errors import InvalidArgument


def draft(**settings: Any) -> Draft:
    return Draft("orders", b"body", **settings)


def test_a_delay_counts_from_the_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000)
    assert draft(delay_s=1.5).due_ms == 1_001_500
    assert draft(delay_s=0).due_ms == 1_000_000
    assert draft(delay_s=LATER_S_MAX).destination == Later("orders")


@pytest.mark.parametrize("wrong", [5, "x", [("a", "b")], ["DELAY"], [[]]])
def test_properties_that_are_no_mapping_are_refused(wrong: Any) -> None:
    for settings in ({}, {"wait": False}):
        with pytest.raises(InvalidArgument, match="properties must be a mapping of texts to texts, not "):
            draft(properties=wrong, **settings).encoded()


@pytest.mark.parametrize("wrong", [5, "orders", None, b"x"])
def test_a_batch_of_something_else_than_messages_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"a batch is of Message, not of {wrong!r}"):
        Draft.of(wrong)


def test_each_way_to_say_when_chooses_where_the_message_waits() -> None:
    assert draft().destination == Ordinary("orders")
    assert draft(deliver_at=7000).destination == Later("orders")
    assert draft(deliver_at=dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC)).due_ms == 7000
    assert draft(delay_level=3).destination == Delayed("orders", 3)
    assert Draft.of(Message("orders", b"x", delay_level=18)).destination == Delayed("orders", 18)
    assert Draft.of(Message("orders", b"x", delay_s=2)).destination == Later("orders")


@pytest.mark.parametrize(
    ("wish", "meant"),
    [
        (("DELAY", "3"), {"delay_level": 3}),
        (("DELAY", "0"), {}),
        (("TIMER_DELAY_SEC", "2"), {"delay_s": 2}),
        (("TIMER_DELAY_MS", "2500"), {"delay_s": 2.5}),
        (("TIMER_DELIVER_MS", "9000"), {"deliver_at": 9000}),
        (("__STARTDELIVERTIME", "9000"), {"deliver_at": 9000}),
    ],
)
def test_rocketmqs_properties_mean_what_they_mean_there(
    monkeypatch: pytest.MonkeyPatch, wish: tuple[str, str], meant: dict[str, Any]
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000)
    found, expected = draft(properties={"own": "yes", wish[0]: wish[1]}), draft(properties={"own": "yes"}, **meant)
    assert (found.destination, found.due_ms) == (expected.destination, expected.due_ms)
    properties = decode_properties(found.encoded() or b"")
    assert properties.pop("own") == "yes"
    assert set(properties) <= {"TIMER_DELIVER_MS", "TIMER_OUT_MS"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"delay_level": 0}, r"delay_level 0: must be one of the broker's, 1\.\.18"),
        ({"delay_level": True}, "delay_level True"),
        ({"delay_level": "3"}, "delay_level '3'"),
        ({"delay_level": 129}, "delay_level 129"),
        ({"delay_s": -1}, "delay_s -1"),
        ({"delay_s": float("nan")}, "delay_s nan"),
        ({"delay_s": LATER_S_MAX + 1}, f"delay_s {LATER_S_MAX + 1}"),
        ({"delay_s": "1"}, "delay_s '1'"),
        ({"delay_s": 1, "delay_level": 1}, "delay_s and delay_level for one message: give one of them"),
        ({"deliver_at": 1, "delay_s": 1}, "deliver_at and delay_s"),
        ({"properties": {"DELAY": "x"}}, "property 'DELAY': 'x' is no whole number"),
        ({"properties": {"DELAY": 3}}, "property 'DELAY': 3 is no whole number"),
        ({"properties": {"DELAY": "3"}, "delay_level": 3}, "property 'DELAY' beside another time"),
        ({"properties": {"TIMER_DELAY_MS": "3", "TIMER_DELAY_SEC": "3"}}, "property 'TIMER_DELAY_SEC' beside another"),
        ({"properties": {"TIMER_DELAY_MS": "3", "DELAY": "3"}}, "give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        draft(**settings)
