"""``penstock trace``: the story of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.formats.trace import TRACE_TOPIC

from ..options import asking
from ..output import Answer, note, print_fields, print_table

if TYPE_CHECKING:
    from penstock.client import Admin, MessageTrace

_COLUMNS = ("time", "after_ms", "event", "by", "from", "cost_ms", "result")


@click.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", metavar="T", help="Where to look for the message, if no producer traced it.")
@click.option("--trace-topic", metavar="T", default=TRACE_TOPIC, show_default=True, help="Where the traces are.")
@asking
def trace(admin: Admin, answer: Answer, message_id: str, topic: str | None, trace_topic: str) -> None:
    """The story of one message: sent, stored, each consumption. ID: of a receipt, a consumer, or an offset message id.

    Clients tell it that have trace=True, or a share of messages.
    """
    found = admin.trace(message_id, topic, trace_topic=trace_topic)

    def people() -> None:
        print_fields({"message_id": found.message_id, "topic": found.topic, "tag": found.tag, "keys": found.keys})
        rows = sorted(_rows(found), key=lambda row: row[0])
        began_ms = rows[0][0] if rows else 0
        print_table(_COLUMNS, [[_time(at_ms), at_ms - began_ms, *rest] for at_ms, *rest in rows])

    answer(asdict(found), people)
    if not found.is_traced:
        note(
            f"no client has traced it in {trace_topic}: producers and consumers trace with trace=True, or a share of "
            "the messages"
        )


def _rows(found: MessageTrace) -> Iterator[tuple[Any, ...]]:
    """What happened: when, what, by which group, from which address, how long it took, and how it went."""
    for send in found.sends:
        kind = "" if send.message_type == "NORMAL" else f" ({send.message_type.lower()})"
        result = "ok" if send.success else "failed"
        yield send.timestamp_ms, f"sent{kind}", send.group, send.client_host, send.cost_ms, result
    for end in found.ends:
        asked = ", asked by a broker" if end.from_check else ""
        yield end.timestamp_ms, "decided", end.group, "", None, end.state.removesuffix("_MESSAGE").lower() + asked
    for recall in found.recalls:
        yield recall.timestamp_ms, "recalled", recall.group, "", None, "in time" if recall.success else "too late"
    if found.stored is not None:
        at, place = found.stored, f"offset {found.stored.queue_offset} of queue {found.stored.queue_id}"
        yield at.store_timestamp_ms, "stored", at.broker_name, at.store_host, None, place
    for consumption in found.consumptions:
        for number, attempt in enumerate(consumption.attempts, 1):
            result = "no end told" if attempt.code is None else attempt.code.lower().replace("_", " ")
            yield (
                *(attempt.timestamp_ms, f"attempt {number}", consumption.group, attempt.client_host),
                *(attempt.cost_ms, result),
            )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
