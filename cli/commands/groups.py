"""``penstock group`` and ``penstock offset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..options import ConsumeFrom, compose, json_option, namesrv_option
from ..output import note, print_json, print_table

if TYPE_CHECKING:
    from penstock.client import QueuePosition

_asked = compose(namesrv_option, json_option)


@click.group()
def group() -> None:
    """Create, list, show and delete consumer groups. A consumer also creates its group by joining."""


@group.command()
@click.argument("name")
@click.option("--consume/--no-consume", "consume_enable", default=True, help="Whether members get messages.")
@click.option(
    "--retry-max-times", default=16, show_default=True, help="A message that fails once more is a dead letter."
)
@click.option("--retry-delays", metavar="'10s 1m 2h'", help="Before the first retry, the second, …; the last repeats.")
@_asked
def create(
    name: str, consume_enable: bool, retry_max_times: int, retry_delays: str | None, namesrv: str, as_json: bool
) -> None:
    """Create or change a group."""
    from penstock.client import Admin
    from penstock.formats.delay_levels import levels_ms

    try:
        delays_s = [delay / 1000 for delay in levels_ms(retry_delays)] if retry_delays is not None else None
    except ValueError as error:
        raise click.BadParameter(f"{error!s:.40}: give times as 10s, 1m, 2h", param_hint="--retry-delays") from None
    with Admin(namesrv) as admin:
        info = admin.create_group(
            name, consume_enable=consume_enable, retry_max_times=retry_max_times, retry_policy=delays_s
        )
    if as_json:
        print_json(asdict(info))
    else:
        note(f"group {name} created")


@group.command()
@click.argument("name")
@_asked
def delete(name: str, namesrv: str, as_json: bool) -> None:
    """Delete a group without members, its offsets, and its retries and dead letters."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        admin.delete_group(name)
    if as_json:
        print_json({"group": name, "deleted": True})
    else:
        note(f"group {name} deleted")


@group.command(name="list")
@_asked
def list_(namesrv: str, as_json: bool) -> None:
    """All groups, with members and lag."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        found = [(admin.group(name), admin.group_lag(name)) for name in admin.list_groups()]
    if as_json:
        print_json({"groups": [{**asdict(info), "lag": lag.lag} for info, lag in found]})
    else:
        rows = [[info.group, len(info.members), lag.lag, info.consume_enable] for info, lag in found]
        print_table(["group", "members", "lag", "consume"], rows)


@group.command()
@click.argument("name")
@_asked
def show(name: str, namesrv: str, as_json: bool) -> None:
    """Members of a group, and how far it is in each queue."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        info, lag = admin.group(name), admin.group_lag(name)
    if as_json:
        print_json({**asdict(info), **asdict(lag)})
        return
    rows = [[m.client_id, [f"{t}: {e}" for t, e in m.subscriptions.items()], len(m.queues)] for m in info.members]
    print_table(["member", "subscriptions", "queues"], rows, title=f"group {info.group}")
    columns = ["topic", "broker_name", "queue_id", "committed_offset", "max_offset", "lag", "client_id"]
    print_table(columns, [[getattr(queue, column) for column in columns] for queue in lag.queues])
    print(f"lag {lag.lag:,}")
    for missing in lag.unreachable:
        note(f"broker group {missing} did not answer: its queues are missing above")


@click.group()
def offset() -> None:
    """Move a group's position."""


@offset.command()
@click.argument("group_name", metavar="GROUP")
@click.argument("topic")
@click.option("--to", "target", type=ConsumeFrom(), help="first, last, or the first message stored at that time.")
@click.option("--offset", type=click.IntRange(min=0), help="The same offset in every queue.")
@click.option("--queue", "queues", multiple=True, metavar="BROKER:ID", help="Only this queue; repeatable.")
@_asked
def reset(
    group_name: str,
    topic: str,
    target: str | int | None,
    offset: int | None,
    queues: tuple[str, ...],
    namesrv: str,
    as_json: bool,
) -> None:
    """Move GROUP in TOPIC; members follow at once."""
    if (target is None) == (offset is None):
        raise click.UsageError("give exactly one of --to and --offset")
    from penstock.client import Admin

    place: dict[str, Any] = {"offset": offset}
    if target is not None:
        place = {"timestamp_ms": target} if isinstance(target, int) else {"to": target}
    with Admin(namesrv) as admin:
        moved = admin.reset_offset(group_name, topic, **place, queues=[_queue(text) for text in queues] or None)
    _print_positions(group_name, moved, as_json)


@offset.command()
@click.argument("source")
@click.argument("target")
@click.option("--topic", help="Only this topic.")
@_asked
def clone(source: str, target: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Give group TARGET the committed offsets of group SOURCE; TARGET is made when it does not exist."""
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        _print_positions(target, admin.clone_offsets(source, target, topic), as_json)


def _queue(text: str) -> tuple[str, int]:
    broker_name, _, number = text.rpartition(":")
    if not broker_name or not number.isdigit():
        raise click.BadParameter(f"{text!r}: give it as broker-a:0", param_hint="--queue")
    return broker_name, int(number)


def _print_positions(group_name: str, moved: Sequence[QueuePosition], as_json: bool) -> None:
    if as_json:
        print_json({"group": group_name, "queues": [asdict(position) for position in moved]})
        return
    columns = ["topic", "broker_name", "queue_id", "offset"]
    print_table(columns, [[getattr(position, column) for column in columns] for position in moved])
