"""What plots show."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from typing import Any

from penstock.pages.pictures import Picture
from penstock.pages.plots import HEIGHT, RIGHT, WIDTH, Plot


def drawn(plot: Plot) -> str:
    return str(plot.picture())


def test_a_point_without_neighbours_is_a_dot() -> None:
    page = drawn(Plot("Lag", "times", [1_700_000_000_000], {"g": [120]}, "messages"))
    assert page.count("<circle") == 1
    assert page.count("2023-11-14 22:13:20") == 1
    page = drawn(Plot("Rate", "lines", [0, 1, 2, 3], {"a": [1.0, None, 3.0, 4.0]}))
    assert (page.count("<circle"), page.count("<polyline")) == (1, 1)


def test_faults_are_named_and_stay_within_the_plot() -> None:
    marks = [
        (15.0, 20.0, "kill <a>"),
        (35.0, 60.0, "late"),
        (-5.0, 2.0, "early"),
        (70.0, 80.0, "after"),
        (-9, -1, "b4"),
    ]
    page = drawn(Plot("Rate", "lines", list(range(40)), {"sent": [300.0] * 40}, "/s", marks))
    assert re.findall(r"<text[^>]*>(kill &lt;a&gt;|late|early|after|b4)</text>", page) == [
        "kill &lt;a&gt;",
        "late",
        "early",
    ]
    boxes = re.findall(r'<rect class="fault" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', page)
    assert len(boxes) == 3
    for left, width in boxes:
        assert 84 <= float(left) <= float(left) + float(width) <= WIDTH - RIGHT + 0.11
    lines = re.findall(r'y="([\d.]+)" text-anchor="\w+">(?:kill|late|early)', page)
    assert len(set(lines)) == 3


def labels(page: str) -> list[tuple[float, str]]:
    found = re.findall(
        rf'<text class="faint" x="([\d.]+)" y="{HEIGHT - 8:.1f}" text-anchor="middle">([^<]*)</text>', page
    )
    return [(float(x), text) for x, text in found]


def test_labels_of_bars_do_not_reach_into_each_other() -> None:
    for names in (
        [f"broker-a {number * (1 << 30)}" for number in range(13)],
        [f"2026-03-{day:02}" for day in range(1, 31)],
        list(range(8)),
        list(range(500)),
        [f"a-name-much-longer-than-a-bar-is-wide {number:020}" for number in range(9)],
    ):
        series: dict[str, Any] = {"rows": [1.0] * len(names)}
        told = labels(drawn(Plot("Rows", "bars", names, series)))
        assert len(told) >= 2
        for (left, one), (right, other) in itertools.pairwise(told):
            assert right - left >= 6 * (len(one) + len(other)) / 2, (one, other)
        assert len({text for _, text in told}) == len(told)
    assert len(labels(drawn(Plot("Rows", "bars", list(range(8)), {"rows": [1.0] * 8})))) == 8


def test_each_bar_has_a_name_as_far_as_names_can_be_shortened() -> None:
    names = [f"orders-of-customers-{number}" for number in range(10)]
    told = labels(drawn(Plot("Skew", "bars", names, {"skew": [1.0] * 10})))
    assert [text[-1] for _, text in told] == [str(number) for number in range(10)]


def test_long_labels_have_room_beside_the_axis() -> None:
    page = drawn(Plot("Rate", "lines", [0, 1], {"sent": [9_000_000.0, 1.0]}, "acknowledged messages in a second"))
    (x, words) = re.findall(r'x="([\d.]+)"[^>]*text-anchor="end">([^<]*acknowledged[^<]*)<', page)[0]
    assert float(x) >= 6 * len(words)


def test_a_picture_names_itself_and_escapes_its_words() -> None:
    picture = Picture(10, 10, "over <floors>")
    picture.text(1, 1, "produce & rate")
    root = ET.fromstring(picture.markup())
    assert root.attrib["aria-label"] == "over <floors>"
    assert [each.text for each in root] == ["produce & rate"]


def test_an_axis_of_nothing_but_zeros_reaches_to_one() -> None:
    page = drawn(Plot("Rates", "bars", ["a", "b"], {"consumed": [0.0, None]}, "/s"))
    assert re.findall(r'text-anchor="end">([^<]*)</text>', page) == ["0", "0.5", "1 /s"]
