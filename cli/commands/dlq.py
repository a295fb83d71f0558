"""``penstock dlq``: messages that a group's consumers could not take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.proto.names import DLQ_PREFIX

from ..options import compose, json_option, namesrv_option
from ..output import Answer, note, note_silent, print_json_line, print_table

if TYPE_CHECKING:
    from penstock.client import MessageView, PullConsumer, TopicStats

POLL_S = 0.5
SILENCE_S = 10.0
PAGE = 200
FIRST_LEVEL = 1
"""Of ``messageDelayLevel``, 1 s: who has letters sent again waits no longer for them."""
SHOWN_BYTES = 60
_COLUMNS = ("broker_name", "queue_offset", "origin_topic", "message_id", "reconsume_times", "tag", "keys")

_group = click.option("--group", required=True, help="The consumer group.")
_all = click.option("--all", "also_resent", is_flag=True, help="Also those that were sent again already.")
_asked = compose(namesrv_option, json_option)


@click.group()
def dlq() -> None:
    """List, show and resend dead letters. Their group remembers how far they have been sent again."""


@dlq.command(name="list")
@click.option("--group", help="Only this consumer group's.")
@_asked
def list_(group: str | None, namesrv: str, answer: Answer) -> None:
    """How many dead letters there are, by group and broker."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        groups = [topic.removeprefix(DLQ_PREFIX) for topic in admin.list_topics() if topic.startswith(DLQ_PREFIX)]
        held = {name: admin.topic_stats(DLQ_PREFIX + name) for name in groups if group in (None, name)}
        rows = [row for name, stats in held.items() for row in _counts(stats, namesrv, name)]
        if group is not None and not rows:
            admin.group(group)  # a misspelt name is an error, not a group without dead letters
    unreachable = sorted({name for stats in held.values() for name in stats.unreachable})

    def people() -> None:
        print_table(["group", "broker_name", "messages", "waiting"], [list(row.values()) for row in rows])
        note_silent(unreachable, "its dead letters are")

    answer({"dead_letters": rows, "unreachable": unreachable}, people)


def _counts(stats: TopicStats, namesrv: str, group: str) -> Iterator[dict[str, Any]]:
    from penstock.client import MessageQueue

    with _reader(namesrv, group) as consumer:
        if consumer is None:
            return
        for queue in stats.queues:
            place = MessageQueue(DLQ_PREFIX + group, queue.broker_name, queue.queue_id)
            sent_to = max(consumer.committed(place) or 0, queue.min_offset)
            yield {
                "group": group,
                "broker_name": queue.broker_name,
                "messages": queue.max_offset - queue.min_offset,
                "waiting": queue.max_offset - sent_to,
            }


@dlq.command()
@_group
@_all
@click.option("-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="So many at most.")
@_asked
def show(group: str, also_resent: bool, count: int, namesrv: str, answer: Answer) -> None:
    """Print a group's dead letters, the oldest of each broker first. As JSON, one line each."""
    rows = []
    with _reader(namesrv, group) as consumer:
        for page in _letters(namesrv, group, consumer, also_resent=also_resent, count=count):
            for found in map(_document, page):
                if answer.as_json:
                    print_json_line(found)
                else:
                    body = found.get("body") or found.get("body_base64", "")
                    rows.append([*(found[column] for column in _COLUMNS), body[:SHOWN_BYTES]])
    if not answer.as_json:
        print_table([*_COLUMNS, "body"], rows)


@dlq.command()
@_group
@_all
@click.option("-n", "--count", type=click.IntRange(min=1), help="So many at most.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@_asked
def resend(group: str, also_resent: bool, count: int | None, dry_run: bool, namesrv: str, answer: Answer) -> None:
    """Have the members of GROUP get its dead letters again, tried anew; other groups see nothing of it.

    A run that is interrupted leaves at most one page that the next run sends once more.
    """
    sent = 0
    with _reader(namesrv, group) as consumer:
        for page in _letters(namesrv, group, consumer, also_resent=also_resent, count=count):
            if not dry_run and consumer is not None:
                consumer.send_back(page, delay_level=FIRST_LEVEL)
                consumer.commit()
            sent += len(page)
    told = f"{sent} dead letters of group {group} {'would be' if dry_run else 'are'} sent again"
    answer({"group": group, "resent": 0 if dry_run else sent, "selected": sent}, lambda: note(told))


@contextlib.contextmanager
def _reader(namesrv: str, group: str) -> Iterator[PullConsumer | None]:
    """A consumer of all dead letters of ``group``, with its offsets, that commits nothing by itself; None without any.

    The topic comes with the first dead letter.
    """
    from penstock.client import PullConsumer, TopicNotFound

    with PullConsumer(namesrv, group=group, consume_from="first", auto_commit=False) as consumer:
        try:
            consumer.assign(consumer.queues(DLQ_PREFIX + group))
        except TopicNotFound:
            yield None
        else:
            yield consumer


def _letters(
    namesrv: str, group: str, consumer: PullConsumer | None, *, also_resent: bool, count: int | None
) -> Iterator[list[MessageView]]:
    """Pages of dead letters, up to what there is now. Raises GroupNotFound: no dead letters, and no such group."""
    from penstock.client import Admin, BrokerUnavailable

    if consumer is None:
        with Admin(namesrv) as admin:
            admin.group(group)
        return
    topic = DLQ_PREFIX + group
    with Admin(namesrv) as admin:
        stats = admin.topic_stats(topic)
    note_silent(stats.unreachable, "its dead letters are")
    ends = {(each.broker_name, each.queue_id): each.max_offset for each in stats.queues}
    queues = [queue for queue in consumer.queues(topic) if ends.get(queue[1:], 0)]
    if also_resent:
        consumer.seek_to_begin(queues)
    left = count
    heard_s = time.monotonic()
    while left != 0 and any((consumer.position(queue) or 0) < ends[queue[1:]] for queue in queues):
        page = consumer.poll(POLL_S, min(left or PAGE, PAGE))
        if page:
            heard_s = time.monotonic()
            left = left - len(page) if left is not None else None
            yield page
        elif time.monotonic() - heard_s > SILENCE_S:
            raise BrokerUnavailable(f"topic {topic}: not all of its queues have answered")


def _document(message: MessageView) -> dict[str, Any]:
    """The message as JSON, with where it came from."""
    from penstock.formats.record.properties import DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC

    found = message.all_properties
    origin = {"origin_topic": found.get(DLQ_ORIGIN_TOPIC), "origin_message_id": found.get(DLQ_ORIGIN_MESSAGE_ID)}
    return {**message.as_document(), **origin}
