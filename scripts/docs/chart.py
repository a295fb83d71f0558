"""The README's chart: medians of recorded benchmarks, all on one machine, as an SVG for light and dark pages.

It shows speed beside Kafka and RocketMQ where a machine has records of that (`make bench-peers`), else rates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench import page
from penstock.bench.runner import RATIO

Panels = tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]

BESIDE: Panels = (
    (
        "Speed beside Kafka and librdkafka, which are 1",
        (
            ("produce, 100 B", "kafka-produce-100b", f"produce{RATIO}librdkafka"),
            ("produce, 1 KiB", "kafka-produce-1k", f"produce{RATIO}librdkafka"),
            ("produce_many, 1 KiB", "kafka-produce-1k", f"produce_many{RATIO}librdkafka"),
            ("produce, 1 KiB, on two brokers", "kafka-replicated", f"replicated{RATIO}librdkafka"),
            ("poll into objects, 100 B", "kafka-consume-100b", f"poll{RATIO}tuned librdkafka"),
            ("poll into objects, 1 KiB", "kafka-consume-1k", f"poll{RATIO}librdkafka"),
            ("poll_batch, 1 KiB", "kafka-consume-1k", f"poll_batch{RATIO}librdkafka"),
            ("one acknowledged send, 1 KiB", "kafka-send-latency", f"librdkafka p50{RATIO}send p50"),
        ),
    ),
    (
        "Speed beside RocketMQ and its classic client, which are 1",
        (
            ("64 tasks that wait, 1 KiB", "rocketmq-waiting-senders", f"tasks{RATIO}RocketMQ"),
            ("64 threads that wait, 1 KiB", "rocketmq-waiting-senders", f"threads{RATIO}RocketMQ"),
            ("64 tasks, SYNC_FLUSH", "rocketmq-waiting-senders-flush", f"tasks{RATIO}RocketMQ"),
            ("64 threads, SYNC_FLUSH", "rocketmq-waiting-senders-flush", f"threads{RATIO}RocketMQ"),
            ("transactions of one message", "rocketmq-transactions", f"transactions{RATIO}RocketMQ"),
        ),
    ),
)
RATES: Panels = (
    (
        "1 KiB messages, acknowledged per second",
        (
            ("asynchronous flush", "produce-1k", "rate"),
            ("on a slave too (SYNC_MASTER)", "sync-replica", "rate"),
            ("synced to disk (SYNC_FLUSH)", "sync-flush", "rate"),
        ),
    ),
    (
        "100 B messages per second, asynchronous flush",
        (
            ("produce, one by one", "produce-100b", "rate"),
            ("produce_many, columns", "produce-many-100b", "rate"),
            ("poll, one by one", "consume-100b", "rate"),
            ("poll_batch, columns", "poll-batch-100b", "rate"),
        ),
    ),
)
"""Titles, and rows of label, case and measure. Each panel has a scale of its own."""

WIDTH, LABELS, FIGURES, ROW, TITLE = 760, 240, 90, 26, 34
GREY, BAR, RANGE = "#7d8590", "#2f81a8", "#d29922"  # each readable on white and on black
FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"

Result = dict[str, Any]


def newest(folder: Path, panels: Panels) -> dict[str, Result]:
    """The newest result of each case of ``panels``, on the machine that ran all of them last.

    Raises:
        ValueError: no machine has run all.
    """
    wanted = {case for _, rows in panels for _, case, _ in rows}
    machines: dict[str, dict[str, Result]] = {}
    for result in page.kept(folder):
        case = result["case"]
        if case in wanted:
            known = machines.setdefault(_machine(result), {})
            if case not in known or known[case]["machine"]["time"] < result["machine"]["time"]:
                known[case] = result
    whole = [found for found in machines.values() if found.keys() == wanted]
    if not whole:
        raise ValueError(f"no machine has results of all of {', '.join(sorted(wanted))}: run penstock bench")
    return max(whole, key=lambda found: max(result["machine"]["time"] for result in found.values()))


def svg(folder: Path) -> str:
    try:
        found, panels, label, source = newest(folder, BESIDE), BESIDE, "Speed beside Kafka and RocketMQ", "PEERS"
    except ValueError:
        found, panels, label, source = newest(folder, RATES), RATES, "Throughput of one broker", "RESULTS"
    parts: list[str] = []
    top = 8
    for title, rows in panels:
        parts.append(_text(0, top + 18, title, weight="600"))
        top += TITLE
        measures = [(named, found[case]["measures"][name]) for named, case, name in rows]
        scale = (WIDTH - LABELS - FIGURES) / max(measure["max"] for _, measure in measures)
        for named, measure in measures:
            parts += _row(top, named, measure, scale)
            top += ROW
        if not measures[0][1]["unit"]:
            level = round(LABELS + scale, 1)
            begin = top - ROW * len(rows)
            parts.append(f"<line x1='{level}' x2='{level}' y1='{begin}' y2='{top}' stroke='{GREY}'/>")
        top += 10
    dates = sorted({result["machine"]["time"][:10] for result in found.values()})
    machine = _machine(next(iter(found.values())))
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    for line in (
        f"{machine}; clients and brokers share it. {period}.",
        f"Bars: medians. Lines: slowest and fastest repetition. All figures: bench/{source}.md",
    ):
        parts.append(_text(0, top + 14, line, size=12))
        top += 18
    height = top + 8
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'"
    return "\n".join([f"{head} role='img' aria-label='{label}'>", *parts, "</svg>", ""])


def _row(top: int, label: str, measure: Result, scale: float) -> list[str]:
    middle = top + ROW // 2
    low, median, high = (round(LABELS + measure[name] * scale, 1) for name in ("min", "median", "max"))
    length = round(median - LABELS, 1)
    return [
        _text(LABELS - 10, middle + 4, label, anchor="end"),
        f"<rect x='{LABELS}' y='{top + 4}' width='{length}' height='{ROW - 8}' rx='2' fill='{BAR}'/>",
        f"<line x1='{low}' x2='{high}' y1='{middle}' y2='{middle}' stroke='{RANGE}' stroke-width='2'/>",
        _text(max(median, high) + 8, middle + 4, _short(measure["median"], is_ratio=not measure["unit"])),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "400", size: int = 14) -> str:
    style = f"{FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' fill='{GREY}'"
    return f"<text x='{x}' y='{y}' {style}>{text}</text>"


def _short(rate: float, *, is_ratio: bool) -> str:
    if is_ratio:
        return f"{rate:.2f} ×"
    return f"{rate / 1e6:.2f} million" if rate >= 1e6 else f"{rate / 1000:.0f},000"


def _machine(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['processors']} × {machine['processor']}, {machine['memory_gib']} GiB"
