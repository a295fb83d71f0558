"""``penstock topic``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..options import asking, compose, key_values
from ..output import Answer, note_silent, print_rows, print_table

if TYPE_CHECKING:
    from penstock.client import Admin, TopicInfo

PERMISSIONS = {"r": 4, "w": 2, "rw": 6}
TYPES = ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]

_shape = compose(
    click.option("--read-queues", type=int, help="Readable queues, where they differ from the writable ones."),
    click.option("--write-queues", type=int),
    click.option("--perm", type=click.Choice(list(PERMISSIONS)), help="What clients may do."),
    click.option("--type", type=click.Choice(TYPES), help="What is sent there; others are refused. MIXED: all."),
    click.option("--order/--no-order", "order_topic", default=None, help="Keys stay in their queues whatever happens."),
    click.option("--attribute", "attributes", multiple=True, callback=key_values, metavar="KEY=VALUE"),
    click.option("--broker", "brokers", multiple=True, metavar="NAME", help="Only at this broker group; repeatable."),
)


@click.group()
def topic() -> None:
    """Create, update, delete, list and show topics."""


def _shape_options(options: dict[str, Any]) -> dict[str, Any]:
    perm = options.pop("perm")
    brokers = list(options.pop("brokers")) or None
    given = {name: value for name, value in options.items() if value not in (None, {})}
    return {**given, "brokers": brokers, **({"perm": PERMISSIONS[perm]} if perm else {})}


@topic.command()
@click.argument("name")
@click.option("--queues", default=8, show_default=True, help="Queues at each broker group.")
@_shape
@asking
def create(admin: Admin, answer: Answer, name: str, queues: int, **options: Any) -> None:
    """Create a topic. Creating it again with the same shape changes nothing."""
    info = admin.create_topic(name, queues, **_shape_options(options))
    answer(asdict(info), lambda: _print(info))


@topic.command()
@click.argument("name")
@click.option("--queues", type=int, help="Queues at each broker group.")
@_shape
@asking
def update(admin: Admin, answer: Answer, name: str, queues: int | None, **options: Any) -> None:
    """Change a topic; what is not given stays."""
    info = admin.update_topic(name, queues, **_shape_options(options))
    answer(asdict(info), lambda: _print(info))


@topic.command()
@click.argument("name")
@asking
def delete(admin: Admin, answer: Answer, name: str) -> None:
    """Delete a topic with its messages and committed offsets."""
    admin.delete_topic(name)
    answer({"topic": name, "deleted": True}, f"topic {name} deleted")


@topic.command(name="list")
@asking
def list_(admin: Admin, answer: Answer) -> None:
    """All topics, without internal ones."""
    infos = [admin.topic(name) for name in admin.list_topics()]
    rows = [[info.topic, info.queues, info.message_type, info.is_ordered, _holders(info)] for info in infos]
    answer(
        {"topics": [asdict(info) for info in infos]},
        lambda: print_table(["topic", "queues", "type", "order", "broker groups"], rows),
    )


@topic.command()
@click.argument("name")
@asking
def show(admin: Admin, answer: Answer, name: str) -> None:
    """Where a topic lies, and what each of its queues holds."""
    info, stats = admin.topic(name), admin.topic_stats(name)

    def people() -> None:
        _print(info)
        print_rows(["broker_name", "queue_id", "min_offset", "max_offset", "messages"], stats.queues)
        print(f"{stats.messages:,} messages")
        note_silent(stats.unreachable, "its queues are")

    answer({**asdict(info), **asdict(stats)}, people)


def _holders(info: TopicInfo) -> list[str]:
    living = {shard.broker_name: shard.broker_name for shard in info.shards}
    return [name for _, name in sorted((living | {name: f"{name} (down)" for name in info.absent}).items())]


def _print(info: TopicInfo) -> None:
    names = {number: text for text, number in PERMISSIONS.items()}
    rows = [[s.broker_name, s.read_queues, s.write_queues, names.get(s.perm, str(s.perm))] for s in info.shards]
    title = f"topic {info.topic}" + (f" of {info.message_type} messages" if info.message_type else "")
    title += ", an order topic" if info.is_ordered else ""
    print_table(["broker group", "read queues", "write queues", "perm"], rows, title=title)
