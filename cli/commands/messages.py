"""``penstock send``, ``penstock tail`` and ``penstock message``."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..options import ConsumeFrom, Timestamp, asking, compose, json_option, key_values, namesrv_option, queue_place
from ..output import Answer, harmless, note, note_silent, on_terminal, print_fields, print_json_line, print_rows

if TYPE_CHECKING:
    from penstock.client import Admin, MessageView

POLL_S = 0.5
QUIET_POLLS = 4
"""Polls without a message after which it is looked whether the topic is still there."""
MISSING_LOOKS = 3
"""So often in a row it is not there before it counts as deleted."""
IN_FLIGHT = 1000
BODY_SHOWN = 2000
"""Characters of a body on a terminal."""

_asked = compose(namesrv_option, json_option)


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--tag")
@click.option("--key", "keys", multiple=True, help="Repeatable.")
@click.option("--property", "properties", multiple=True, callback=key_values, metavar="KEY=VALUE")
@click.option("--sharding-key", help="Messages with the same one keep their order.")
@_asked
def send(topic: str, body: str | None, namesrv: str, answer: Answer, **options: Any) -> int:
    """Send BODY, or each line of standard input where BODY is - or missing. Prints where each message lies."""
    from penstock.client import Admin, Producer
    from penstock.proto.errors import TopicNotFound

    with Admin(namesrv) as admin:
        try:
            admin.topic(topic)
        except TopicNotFound as error:
            note(f"{error.message}: making it, if the brokers allow that")
    attributes = {**options, "keys": list(options["keys"]) or None, "properties": options["properties"] or None}
    bodies = iter([body.encode()]) if body not in (None, "-") else _lines()
    with Producer(namesrv) as producer:
        return _send_all(producer, topic, bodies, attributes, answer)


def _lines() -> Iterator[bytes]:
    return filter(None, (line.rstrip(b"\r\n") for line in sys.stdin.buffer))  # a message needs at least one byte


def _send_all(producer: Any, topic: str, bodies: Iterator[bytes], attributes: dict[str, Any], answer: Answer) -> int:
    """Send with many under way, and report in order; 1 when one was not acknowledged."""
    from penstock.proto.errors import PenstockError

    waiting: list[Any] = []
    failed = sent = 0

    def report(future: Any) -> bool:
        try:
            receipt = future.result()
        except PenstockError as error:
            note(f"error: message {sent}: {error}")
            return False
        if answer.as_json:
            print_json_line(receipt._asdict())
        else:
            print(f"{receipt.message_id} {receipt.broker_name}:{receipt.queue_id}:{receipt.queue_offset}", flush=True)
        return True

    for body in bodies:
        waiting.append(producer.send_async(topic, body, **attributes))
        while waiting and (len(waiting) >= IN_FLIGHT or waiting[0].done()):
            sent += 1
            failed += not report(waiting.pop(0))
    for future in waiting:
        sent += 1
        failed += not report(future)
    return 1 if failed else 0


@click.command()
@click.argument("topic")
@click.option("--group", help="Consume as a member of this group, with its committed offsets. [a passing one]")
@click.option("--from", "consume_from", type=ConsumeFrom(), default="last", show_default=True)
@click.option("--filter", "expression", default="*", help="Tags: 'paid || refunded'.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@_asked
def tail(
    topic: str,
    group: str | None,
    consume_from: str | int,
    expression: str,
    count: int | None,
    namesrv: str,
    answer: Answer,
) -> None:
    """Print messages as they arrive, one per line, until Ctrl-C."""
    from penstock.client import Admin, PullConsumer
    from penstock.proto.errors import TopicNotFound

    ended: list[int] = []
    left = count
    member = group or f"penstock-cli-{secrets.token_hex(4)}"  # a passing one, under which nothing is committed
    with (
        Admin(namesrv) as admin,
        PullConsumer(namesrv, group=member, consume_from=consume_from, auto_commit=group is not None) as consumer,
    ):
        admin.topic(topic)  # a misspelt name would wait for ever
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: ended.append(received))
        if group is not None:
            consumer.subscribe(topic, expression)
        else:
            consumer.assign(consumer.queues(topic), expression)
        quiet, missing = 0, 0
        while not ended and left != 0:
            messages = consumer.poll(timeout_s=POLL_S, max_messages=min(left or 500, 500))
            for message in messages:
                if answer.as_json:
                    print_json_line(message.as_document())
                else:
                    print(_line(message), flush=True)
                left = left - 1 if left is not None else None
            quiet = 0 if messages else quiet + 1
            if quiet % QUIET_POLLS == QUIET_POLLS - 1:
                missing = missing + 1 if _is_missing(admin, topic) else 0
                if missing == MISSING_LOOKS:
                    raise TopicNotFound(f"topic {topic!r} is gone: it was deleted", topic=topic)
    if ended and left:  # so many were asked for that did not come; without --count Ctrl-C is the end
        raise click.exceptions.Exit(128 + ended[0])


def _is_missing(admin: Admin, topic: str) -> bool:
    """True if living brokers have no such topic: deleted, nothing would come any more, and nothing would say so.

    A nameserver that has just started knows no broker yet, and not all of them at once: so one look decides nothing.
    """
    from penstock.proto.errors import Retryable, TopicNotFound

    with contextlib.suppress(Retryable):  # whether nameservers are away is not what a reader has asked
        try:
            admin.topic(topic)
        except TopicNotFound:
            return bool(admin.cluster().brokers)
    return False


def _line(message: MessageView) -> str:
    """One line for people; on a terminal without what could move its cursor, and with the beginning of the body."""
    from penstock.proto.errors import PenstockError

    stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    place = f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"
    tag = f" [{message.tag}]" if message.tag else ""
    keys = f" ({' '.join(message.keys)})" if message.keys else ""
    try:
        body = message.body.decode(errors="backslashreplace")
    except PenstockError as error:
        body = f"<{error}>"
    if on_terminal():
        cut = len(body) > BODY_SHOWN
        body = body[:BODY_SHOWN] + (f" … ({len(body):,} characters)" if cut else "")
        return harmless(f"{stored} {place}{tag}{keys} {body}")
    return f"{stored} {place}{tag}{keys} {body}"


@click.group()
def message() -> None:
    """Look messages up."""


_one = compose(
    click.argument("message_id", metavar="ID", required=False),
    click.option("--topic", metavar="T", help="With ID: where to look for a producer's message id."),
    click.option("--queue", metavar="[BROKER:]Q", help="With --topic and --offset."),
    click.option("--offset", type=int, metavar="N"),
    click.option("--broker", metavar="NAME", help="Broker group, if the topic is on several and --queue names none."),
    asking,
)


def _found(
    admin: Admin, message_id: str | None, topic: str | None, queue: str | None, offset: int | None, broker: str | None
) -> MessageView:
    if message_id and queue is None and offset is None:
        return admin.message_by_id(message_id, topic)
    if not message_id and topic is not None and queue is not None and offset is not None:
        name, number = queue_place(queue)
        return admin.message_at(topic, number, offset, broker_name=name or broker)
    raise click.UsageError("give an ID, or --topic, --queue and --offset")


@message.command()
@_one
def show(admin: Admin, answer: Answer, **wanted: Any) -> None:
    """The message with that ID, or at that place: --topic T --queue Q --offset N."""
    document = _found(admin, **wanted).as_document()
    answer(document, lambda: print_fields(document))


@message.command()
@_one
def track(admin: Admin, answer: Answer, **wanted: Any) -> None:
    """Who has consumed a message: each group that reads its topic, or has read it. Named as for show."""
    message = _found(admin, **wanted)
    tracks = admin.message_track(message)
    document = {"message_id": message.message_id, "topic": message.topic, "tracks": [asdict(each) for each in tracks]}
    answer(document, lambda: print_rows(("group", "track_type", "committed_offset", "client_id"), tracks))


@message.command()
@click.option("--topic", required=True, metavar="T")
@click.option("--key", required=True, metavar="K")
@click.option("--begin", "begin_ms", type=Timestamp(), default=0, help="Stored at that time or later.")
@click.option("--end", "end_ms", type=Timestamp(), default=0, help="Stored before that time.")
@click.option("--max", "max_count", default=32, show_default=True, type=click.IntRange(1, 10_000))
@asking
def query(admin: Admin, answer: Answer, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int) -> None:
    """Messages with a key, oldest first."""
    found = admin.query_messages(topic, key, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count)

    def people() -> None:
        for each in found:
            print(_line(each))
        note(f"{len(found)} messages")
        note_silent(found.unreachable, "its messages are")

    answer({"messages": [each.as_document() for each in found], "unreachable": found.unreachable}, people)
