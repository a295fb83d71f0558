"""What the pages of jobs say at their head, of their checks, and over time."""

from __future__ import annotations

from penstock.pages.plots import TICKS_MAX, Plot, time_step_ms
from penstock.pipeline.jobs.audit import job as audit
from penstock.pipeline.jobs.framework.report import Report, Table, over_time, render, step_for
from penstock.pipeline.jobs.lag import job as lag


def test_the_headline_names_the_checks_that_failed_and_the_page_each_with_its_sentence() -> None:
    report = Report("verify", {}, summary="sound")
    with report.checking("records", "records are sound") as records:
        records.checked = 7
    assert (report.headline, records.holds) == ("sound", True)
    with report.checking("queues", "queues <name> the records") as queues:
        report.problem("one is missing")
        report.problem("more", count=2)
        queues.checked = 9
    assert (report.headline, queues.violations) == ("failed: 3 problems (queues)", 3)
    with report.checking("index", "the index agrees") as index:
        index.note = "no message has a key"
    page = render(report)
    for words in ("records are sound", "queues &lt;name&gt; the records", ">violated<", ">not judged<", index.note):
        assert words in page


def test_a_job_that_judges_nothing_says_what_it_found_in_no_colour_of_a_verdict() -> None:
    assert '<span class="">3 messages found</span>' in render(Report("query", {}, summary="3 messages found"))
    assert '<span class="good">passed</span>' in render(Report("mirror", {}))


def test_a_column_of_long_texts_is_wide() -> None:
    body, table = "line 0 of a golden message; " * 7, "Messages"
    page = render(Report("query", {}, tables=[Table(table, ["body", "tags"], [[body, "TagA"]])]))
    assert f'<td class="long">{body}</td><td>TagA</td>' in page
    assert "td.long { min-width:" in page


def test_an_id_may_be_broken_so_that_the_page_does_not_scroll_sideways() -> None:
    message_id = "7F000001000078DA05B0000000000001"
    page = render(Report("query", {}, tables=[Table("Messages", ["messageId", "size"], [[message_id, 12]])]))
    assert f'<td class="word">{message_id}</td>' in page
    assert "td.word { min-width: 18ch; overflow-wrap: anywhere; }" in page


def test_a_lag_report_says_how_long_its_looks_really_took() -> None:
    assert lag._seen([1_000, 13_000, 39_000], "ns:9876") == "3 looks in 38.0 s, at ns:9876."
    assert lag._seen([1_000], "ns:9876") == "One look, at ns:9876."


def test_latencies_are_counted_in_steps_of_one_two_five() -> None:
    steps = [audit._step_of(value) for value in (0.1, 0.15, 0.3, 0.9, 1.0, 1.5, 4.0, 5.1)]
    assert steps == [-3, -2, -1, 0, 0, 1, 2, 3]


def test_counts_over_time_have_zeros_between_them_and_the_largest_series() -> None:
    counts = [("a", 60_000, 2), ("a", 181_000, 1), *((f"small{number}", 60_000, 1) for number in range(9))]
    plot = over_time("Messages", counts, 60_000)
    assert plot.x == [60_000, 120_000, 180_000]
    assert plot.series["a"] == [2.0, 0.0, 1.0]
    assert (len(plot.series), plot.unit) == (6, "in 1 min")
    assert over_time("Messages", [], 1000).x == []
    assert step_for(0, 0) == 1000


def test_a_plot_beside_another_shows_the_same_series_in_the_same_colours() -> None:
    messages = over_time("Messages", [("a", 0, 9), ("b", 0, 3)], 1000)
    sizes = [("a", 0, 10), ("b", 0, 5000), ("c", 0, 9999)]
    assert over_time("Bytes", sizes, 1000, list(messages.series)).legend() == messages.legend()


def test_a_long_table_is_folded_under_the_number_of_its_rows() -> None:
    def page(rows: int) -> str:
        return render(Report("stats", {}, tables=[Table("Keys", ["key"], [[f"k{row}"] for row in range(rows)])]))

    assert "<summary>" not in page(40)
    assert "<summary>41 rows</summary>" in page(41)


def test_axes_have_ticks_at_whole_steps_of_a_clock() -> None:
    assert [time_step_ms(seconds * 1000, TICKS_MAX) for seconds in (1, 40, 3600, 86_400)] == [
        1000,
        5000,
        600_000,
        21_600_000,
    ]
    page = str(Plot("Rate", "times", [90_000, 7_290_000], {"a": [1.0, 30.0]}).picture())
    assert ">00:30<" in page
    assert all(f">{figure}<" in page for figure in (0, 10, 20, 30))
