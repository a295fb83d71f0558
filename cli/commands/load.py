"""``penstock load``: the load generator of :mod:`penstock.bench` on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import ConsumeFrom, compose, json_option, namesrv_option
from ..output import Answer, ProgressLine, note, print_fields
from ..signals import interrupts

if TYPE_CHECKING:
    from penstock.bench.load.crew import Worker
    from penstock.bench.load.plan import LoadPlan
    from penstock.bench.report import LoadReport

BAR_WIDTH = 40
STYLE_OPTIONS = ("sync", "async", "asyncio", "columnar")
NOTED_STYLES = STYLE_OPTIONS[:3]
HISTORY_WORKER = "penstock.drill.load.worker"


@click.group()
def load() -> None:
    """Load test: rate, bytes, latency, errors by outcome; --verify checks loss, duplicates and order."""


_common = compose(
    click.option("--topic", default="load-test", show_default=True, metavar="T"),
    click.option("--count", type=int, metavar="N", help="Messages in all."),
    click.option("--seconds", type=float, metavar="S", help="End after that time. [10 without --count]"),
    click.option("--verify", is_flag=True, help="Number the messages; check loss, duplicates and order at the end."),
    namesrv_option,
    json_option,
)
_producing = compose(
    click.option("--size", default=1024, show_default=True, metavar="B", help="Bytes of a body."),
    click.option("--rate", type=float, metavar="R", help="Messages per second of all producers."),
    click.option("--producers", default=1, show_default=True, metavar="P", help="Producer processes."),
    click.option(
        "--threads",
        default=1,
        show_default=True,
        metavar="N",
        help="Waiting senders per producer, with --sync or --asyncio.",
    ),
    click.option("--batch", type=int, metavar="N", help="Messages per call with --sync [1] or --columnar [10000]."),
    click.option("--keys", default=0, metavar="K", help="So many different keys, which also choose the queue."),
    click.option("--queues", default=8, show_default=True, help="Per shard, when the topic has to be made."),
    click.option("--linger-ms", type=float, help="How long produce() waits for a fuller batch."),
    click.option("--sync", is_flag=True, help="send() and wait, one after the other."),
    click.option("--async", "async", is_flag=True, help="send_async()."),
    click.option("--asyncio", "asyncio", is_flag=True, help="AsyncProducer.send() and wait, in --threads tasks."),
    click.option("--columnar", is_flag=True, help="produce_many()."),
    click.option(
        "--history",
        type=click.Path(file_okay=False, path_type=Path),
        help="With --verify: leave a row for each message in this new directory, for penstock pipeline audit.",
    ),
)
_consuming = compose(
    click.option("--consumers", default=1, show_default=True, metavar="C", help="Consumer processes in one group."),
    click.option("--group", default="", metavar="G", help="Consumer group. [a new one]"),
    click.option("--arrays", is_flag=True, help="poll_batch() instead of message objects."),
)


@load.command()
@_common
@_producing
def produce(answer: Answer, **options: Any) -> int:
    """Send messages; the default is produce(), the buffered fast path."""
    return _run("produce", answer, options)


@load.command()
@_common
@_consuming
@click.option("--from", "consume_from", type=ConsumeFrom(), default="first", show_default=True)
def consume(answer: Answer, **options: Any) -> int:
    """Receive messages until count, time, or five seconds without any."""
    return _run("consume", answer, options)


@load.command()
@_common
@_producing
@_consuming
def both(answer: Answer, **options: Any) -> int:
    """Send and receive at the same time; ends when everything acknowledged was received."""
    return _run("both", answer, options)


def _run(kind: str, answer: Answer, options: dict[str, Any]) -> int:
    from penstock.bench.load.crew import Worker
    from penstock.bench.load.load import ensure_topic, run_load
    from penstock.bench.load.plan import LoadPlan

    arrays = options.pop("arrays", False)
    style = _style(options)
    history: Path | None = options.pop("history", None)
    plan = LoadPlan(kind=kind, style=style, consume_style="arrays" if arrays else "messages", **options)
    if history is not None and not (plan.verify and plan.style in NOTED_STYLES):
        ways = ", ".join(f"--{name}" for name in NOTED_STYLES)
        raise click.UsageError(f"--history goes with --verify, which numbers messages, and one of {ways}")
    progress = ProgressLine(every_s=2.0)
    try:
        with interrupts() as interruption:
            if kind != "consume":
                ensure_topic(plan)
            start = Worker if history is None else _with_history(plan, history)
            report = run_load(plan, progress.show, start)
    finally:
        progress.clear()
    answer(asdict(report), lambda: _show(report))
    if report.interrupted:
        note("interrupted: the figures are of the part that was done")
        return interruption.exit_code
    return 0 if report.is_clean else 1


def _with_history(plan: LoadPlan, folder: Path) -> Callable[[dict[str, Any]], Worker]:
    """What starts the processes of a load test whose producers write into ``folder``, which it makes.

    Raises:
        UsageError: the folder exists, or the topic has messages of others.
    """
    from penstock.bench.load.crew import Worker
    from penstock.client import Admin

    with Admin(plan.namesrv) as admin:
        held = admin.topic_stats(plan.topic).messages
        shards = sorted(shard.broker_name for shard in admin.topic(plan.topic).shards)
    if held:
        raise click.UsageError(
            f"--history: topic {plan.topic} holds {held} messages of others: name a new one, --topic"
        )
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise click.UsageError(f"--history {folder}: exists: name a directory that does not") from None

    def start(job: dict[str, Any]) -> Worker:
        if job["role"] != "produce":
            return Worker(job)
        return Worker({**job, "history": str(folder), "shards": shards}, HISTORY_WORKER)

    return start


def _style(options: dict[str, Any]) -> str:
    """How to send; takes the options that say so out of ``options``."""
    given = [style for style in STYLE_OPTIONS if options.pop(style, False)]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} are two ways to send: give one of them")
    return given[0] if given else "produce"


def _show(report: LoadReport) -> None:
    done = "received" if report.kind == "consume" else "acknowledged"
    if report.interrupted:
        print("interrupted")
    fields: dict[str, Any] = {
        "topic": f"{report.topic}, bodies of {report.size} bytes" if report.kind != "consume" else report.topic,
        done: f"{report.count if report.kind == 'consume' else report.acknowledged:,} in {report.seconds:.2f} s",
        "rate": f"{report.messages_per_s:,.0f} messages/s, {report.bytes_per_s / 1e6:,.1f} MB/s",
    }
    if report.kind != "consume":
        fields["refused, unknown"] = f"{report.refused:,}, {report.unknown:,}"
    if report.consumed is not None:
        side = report.consumed
        fields["received"] = f"{side.count:,} in {side.seconds:.2f} s, {side.messages_per_s:,.0f} messages/s"
        fields["age when received"] = _latency(side.latency_ms, side.count)
    if report.verified:
        fields["lost, duplicates"] = f"{report.lost:,}, {report.duplicates:,} ({report.stored_twice:,} stored twice)"
        fields["out of order"] = f"{report.out_of_order:,}"
    if report.histogram_ms:
        samples = sum(count for _, count in report.histogram_ms)
        beside = ", single ones beside the load" if report.style in ("produce", "columnar") else ""
        fields["latency"] = f"{_latency(report.latency_ms, samples)} (of {samples:,} sends{beside})"
    print_fields(fields)
    most = max((count for _, count in report.histogram_ms), default=0)
    for limit, count in report.histogram_ms:
        print(f"  <= {limit:>10,.3f} ms {count:>10,} {'#' * round(BAR_WIDTH * count / most)}")
    for text, count in report.errors.items():
        print(f"{count:,} × {text}", file=sys.stderr)


LATENCIES = {"p50": ("p50", 1), "p99": ("p99", 100), "p999": ("p99.9", 1000), "max": ("max", 1)}
"""Names for people, and how many samples it takes for the figure to mean anything."""


def _latency(found: dict[str, float | None], samples: int) -> str:
    shown = [
        f"{LATENCIES[name][0]} {value:,.2f} ms"
        for name, value in found.items()
        if value is not None and samples >= LATENCIES[name][1]
    ]
    return ", ".join(shown) or "-"
