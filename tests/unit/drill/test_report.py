"""The document of a drill, and the page made of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from penstock.drill.lab.watching import Sample
from penstock.drill.page import render
from penstock.drill.result import failed, result_of, skipped
from tests.support.cluster.drill_history import FAULT_START, MS, clean

VOID = {"meta", "line", "rect", "circle", "polyline", "br"}


def document(**changes: Any) -> dict[str, Any]:
    damaged = clean()
    for name, value in changes.items():
        setattr(damaged.conditions, name, value)
    samples = [
        Sample(at * 100 * MS, f"broker-a-{number}", "broker-a", role, epoch)
        for number, before, after in ((0, "MASTER", ""), (1, "SLAVE", "MASTER"))
        for at in range(100)
        for role, epoch in [(before, 1) if at * 100 * MS < FAULT_START else (after, 2 if after else 0)]
    ]
    return result_of(damaged.history, damaged.conditions, samples)


def test_the_document_tells_what_happened() -> None:
    found = document()
    assert found["ok"]
    assert found["counts"] == {
        "acknowledged": 4000,
        "refused": 0,
        "unknown": 0,
        "received": 4000,
        "duplicates": 0,
        "read": 4000,
    }
    assert found["windows"] == [{"what": "kill", "target": "broker-a-0", "start_s": 4.0, "end_s": 6.0}]
    assert found["latency_ms"]["during"] == {"count": 800, "p50": 2.0, "p99": 2.0, "max": 2.0}
    assert [outage["shard"] for outage in found["outages"]] == ["broker-a", "broker-b"]
    assert found["target_met"] is None
    assert document(recovery_target_ms=1000)["target_met"] is True
    assert document(recovery_target_ms=1)["target_met"] is False


def test_the_timeline_adds_up_and_names_roles() -> None:
    timeline = document()["timeline"]
    first, second = timeline["shards"]
    assert sum(first["acknowledged"]) + sum(second["acknowledged"]) == 4000
    assert len(first["acknowledged"]) * timeline["bin_s"] == timeline["seconds"]
    (old, new) = first["brokers"]
    assert [(each["role"], each["epoch"]) for each in old["stretches"]] == [("MASTER", 1), ("no answer", 0)]
    assert [(each["role"], each["epoch"]) for each in new["stretches"]] == [("SLAVE", 1), ("MASTER", 2)]
    assert new["stretches"][0]["end_s"] == new["stretches"][1]["start_s"] == 4.0


class Balance(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert name not in ("src", "onclick"), f"{tag} {name}={value}"
            if name == "href":
                assert value is not None
                assert value.startswith("#")
        if tag not in VOID or tag == "rect" or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = render([document(), skipped("disk-full", 1, "mounting needs root"), document(seed=2)])
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"https?://|@import|url\(|<script|<link|<img", page)
    text = " ".join(parser.text)
    assert "master, epoch 2" in text
    assert "mounting needs root" in text
    assert "penstock drill master-kill --seed 1" in text
    assert page.count("<svg") == 4


def test_a_violation_is_shown_with_its_examples_and_escaped() -> None:
    page = render([document(error_lines=["broker-a-0: ERROR <b>& worse</b>"])])
    assert "broker-a-0: ERROR &lt;b&gt;&amp; worse&lt;/b&gt;" in page
    assert '<span class="badge bad">violated</span>' in page


def test_a_drill_that_broke_off_is_not_well(tmp_path: Any) -> None:
    broken = failed("master-kill", 3, "broker-a has no master", tmp_path)
    assert not broken["ok"]
    assert "broker-a has no master" in render([broken, document()])


@pytest.mark.parametrize("sizes", [0, 1])
def test_a_drill_without_messages_has_a_page(sizes: int) -> None:
    damaged = clean(10)
    for name in ("invoked", "sent", "received", "read", "looks"):
        setattr(damaged, name, getattr(damaged, name)[:sizes])
    assert "<svg" in render([result_of(damaged.history, damaged.conditions)])
