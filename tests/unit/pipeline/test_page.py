"""What the plots of a report's page show."""

from __future__ import annotations

import itertools
import re
from typing import Any

from penstock.pipeline.jobs.framework.page import HEIGHT, LEFT, RIGHT, WIDTH, render
from penstock.pipeline.jobs.framework.report import Plot, Report


def page_of(plot: Plot, problems: int = 0) -> str:
    report = Report("job", {})
    report.plots.append(plot)
    for number in range(problems):
        report.problem(f"problem {number}")
    return render(report.finish().as_document())


def test_a_point_without_neighbours_is_a_dot() -> None:
    page = page_of(Plot("Lag", "times", [1_700_000_000_000], {"g": [120]}, "messages"))
    assert page.count("<circle") == 1
    assert page.count("2023-11-14 22:13:20") == 1
    page = page_of(Plot("Rate", "lines", [0, 1, 2, 3], {"a": [1.0, None, 3.0, 4.0]}))
    assert (page.count("<circle"), page.count("<polyline")) == (1, 1)


def test_faults_are_named_and_stay_within_the_plot() -> None:
    marks = [
        (15.0, 20.0, "kill <a>"),
        (35.0, 60.0, "late"),
        (-5.0, 2.0, "early"),
        (70.0, 80.0, "after"),
        (-9, -1, "b4"),
    ]
    page = page_of(Plot("Rate", "lines", list(range(40)), {"sent": [300.0] * 40}, "/s", marks))
    assert re.findall(r"<text[^>]*>(kill &lt;a&gt;|late|early|after|b4)</text>", page) == [
        "kill &lt;a&gt;",
        "late",
        "early",
    ]
    boxes = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', page)
    assert len(boxes) == 3
    for left, width in boxes:
        assert LEFT <= float(left) <= float(left) + float(width) <= WIDTH - RIGHT + 0.11
    lines = re.findall(r'y="(\d+)" text-anchor="\w+">(?:kill|late|early)', page)
    assert len(set(lines)) == 3


def labels(page: str) -> list[tuple[float, str]]:
    found = re.findall(rf'<text x="([\d.]+)" y="{HEIGHT - 8}" text-anchor="middle">([^<]*)</text>', page)
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
        told = labels(page_of(Plot("Rows", "bars", names, series)))
        assert len(told) >= 2
        for (left, one), (right, other) in itertools.pairwise(told):
            assert right - left >= 6 * (len(one) + len(other)) / 2, (one, other)
        assert len({text for _, text in told}) == len(told)
    assert len(labels(page_of(Plot("Rows", "bars", list(range(8)), {"rows": [1.0] * 8})))) == 8


def test_one_problem_is_no_problems() -> None:
    plot = Plot("Rate", "lines", [0], {"sent": [1.0]})
    assert "passed</span>" in page_of(plot)
    assert "failed: 1 problem</span>" in page_of(plot, 1)
    assert "failed: 2 problems</span>" in page_of(plot, 2)
