"""``penstock topic``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..options import compose, json_option, key_values, namesrv_option
from ..output import note, print_json, print_table

if TYPE_CHECKING:
    from penstock.client import TopicInfo

PERMISSIONS = {"r": 4, "w": 2, "rw": 6}

_asked = compose(namesrv_option, json_option)
_shape = compose(
    click.option("--read-queues", type=int, help="Readable queues, where they differ from the writable ones."),
    click.option("--write-queues", type=int),
    click.option("--perm", type=click.Choice(list(PERMISSIONS)), help="What clients may do."),
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
@_asked
def create(name: str, queues: int, namesrv: str, as_json: bool, **options: Any) -> None:
    """Create a topic. Creating it again with the same shape changes nothing."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        _print(admin.create_topic(name, queues, **_shape_options(options)), as_json)


@topic.command()
@click.argument("name")
@click.option("--queues", type=int, help="Queues at each broker group.")
@_shape
@_asked
def update(name: str, queues: int | None, namesrv: str, as_json: bool, **options: Any) -> None:
    """Change a topic; what is not given stays."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        _print(admin.update_topic(name, queues, **_shape_options(options)), as_json)


@topic.command()
@click.argument("name")
@_asked
def delete(name: str, namesrv: str, as_json: bool) -> None:
    """Delete a topic with its messages and committed offsets."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        admin.delete_topic(name)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        note(f"topic {name} deleted")


@topic.command(name="list")
@_asked
def list_(namesrv: str, as_json: bool) -> None:
    """All topics, without internal ones."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        infos = [admin.topic(name) for name in admin.list_topics()]
    if as_json:
        print_json({"topics": [_document(info) for info in infos]})
    else:
        rows = [[info.topic, info.queues, _holders(info)] for info in infos]
        print_table(["topic", "queues", "broker groups"], rows)


@topic.command()
@click.argument("name")
@_asked
def show(name: str, namesrv: str, as_json: bool) -> None:
    """Where a topic lies, and what each of its queues holds."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        info, stats = admin.topic(name), admin.topic_stats(name)
    if as_json:
        print_json({**_document(info), **asdict(stats)})
        return
    _print(info, False)
    columns = ["broker_name", "queue_id", "min_offset", "max_offset", "messages"]
    print_table(columns, [[getattr(queue, column) for column in columns] for queue in stats.queues])
    print(f"{stats.messages:,} messages")
    for missing in stats.unreachable:
        note(f"broker group {missing} did not answer: its queues are missing above")


def _holders(info: TopicInfo) -> list[str]:
    living = {shard.broker_name: shard.broker_name for shard in info.shards}
    return [name for _, name in sorted((living | {name: f"{name} (down)" for name in info.absent}).items())]


def _document(info: TopicInfo) -> dict[str, Any]:
    return asdict(info)


def _print(info: TopicInfo, as_json: bool) -> None:
    if as_json:
        print_json(_document(info))
        return
    names = {number: text for text, number in PERMISSIONS.items()}
    rows = [[s.broker_name, s.read_queues, s.write_queues, names.get(s.perm, str(s.perm))] for s in info.shards]
    print_table(["broker group", "read queues", "write queues", "perm"], rows, title=f"topic {info.topic}")
