"""``penstock group`` and ``penstock offset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

import click

from ..options import ConsumeFrom, asking, queue_place
from ..output import Answer, note_silent, print_table

if TYPE_CHECKING:
    from penstock.client import Admin, QueuePosition


NOTHING_COMMITTED = -1


@click.group()
def group() -> None:
    """Create, list, show and delete consumer groups. A consumer also creates its group by joining."""


@group.command()
@click.argument("name")
@click.option("--consume/--no-consume", "consume_enable", default=None, help="Whether members get messages.")
@click.option(
    "--retry-max-times", type=int, help="A message that fails once more is a dead letter; new groups: after 16."
)
@click.option("--retry-delays", metavar="'10s 1m 2h'", help="Before the first retry, the second, …; the last repeats.")
@click.option("--orderly/--no-orderly", default=None, help="Push consumers must consume in order.")
@click.option(
    "--broadcast/--no-broadcast",
    "broadcast_enable",
    default=None,
    help="Broadcasting consumers may use the group's name.",
)
@click.option(
    "--from-min/--no-from-min", "from_min_enable", default=None, help="Without commits it may begin at the first."
)
@asking
def create(admin: Admin, answer: Answer, name: str, retry_delays: str | None, **options: Any) -> None:
    """Create or change a group; what is not mentioned stays as it is."""
    from penstock.formats.delay_levels import levels_ms

    try:
        delays_s = [delay / 1000 for delay in levels_ms(retry_delays)] if retry_delays is not None else None
    except ValueError as error:
        raise click.BadParameter(f"{error!s:.40}: give times as 10s, 1m, 2h", param_hint="--retry-delays") from None
    info = admin.create_group(name, retry_policy=delays_s, **options)
    answer(asdict(info), f"group {name} created")


@group.command()
@click.argument("name")
@asking
def delete(admin: Admin, answer: Answer, name: str) -> None:
    """Delete a group without members, its offsets, and its retries and dead letters."""
    admin.delete_group(name)
    answer({"group": name, "deleted": True}, f"group {name} deleted")


@group.command(name="list")
@asking
def list_(admin: Admin, answer: Answer) -> None:
    """All groups, with members and lag."""
    names = admin.list_groups()
    found = [(admin.group(name), admin.group_lag(name)) for name in names]
    rows = [[info.group, len(info.members), lag.lag, info.consume_enable] for info, lag in found]
    unreachable = sorted({*names.unreachable, *(name for _, lag in found for name in lag.unreachable)})

    def people() -> None:
        print_table(["group", "members", "lag", "consume"], rows)
        note_silent(unreachable, "its members, its lag, and groups that only it has are")

    answer({"groups": [{**asdict(info), "lag": lag.lag} for info, lag in found], "unreachable": unreachable}, people)


@group.command()
@click.argument("name")
@asking
def show(admin: Admin, answer: Answer, name: str) -> None:
    """Members of a group, how far it is in each queue, what is in flight of one that pops, and its producers of
    transactions."""
    from penstock.client import GroupNotFound

    producers = admin.producers(name)
    made = [[each.client_id, each.answers, each.broker_names] for each in producers]
    told = {"producers": [asdict(each) for each in producers]}

    def makers() -> None:
        if made:
            print_table(["producer", "answers", "broker_names"], made, title=f"producers of group {name}")

    try:
        info, lag = admin.group(name), admin.group_lag(name)
    except GroupNotFound:
        if not producers:
            raise
        answer({"group": name, **told}, makers)  # of producers alone
        return

    def people() -> None:
        makers()
        rows = [
            [m.client_id, [f"{t}: {e}" for t, e in m.subscriptions.items()], "all" if m.broadcasting else len(m.queues)]
            for m in info.members
        ]
        print_table(["member", "subscriptions", "queues"], rows, title=f"group {info.group}")
        if info.pops or info.in_flight:
            print(f"simple consumers pop: {info.in_flight:,} messages in flight")
        columns = ["topic", "broker_name", "queue_id", "committed_offset", "max_offset", "lag", "client_id"]
        found = [[getattr(queue, column) for column in columns] for queue in lag.queues]
        print_table(columns, [[None if cell == NOTHING_COMMITTED else cell for cell in row] for row in found])
        print(f"lag {lag.lag:,}")
        note_silent(lag.unreachable, "its queues are")

    answer({**asdict(info), **asdict(lag), **told}, people)


_dry_run = click.option("--dry-run", is_flag=True, help="Show from where to where, and change nothing.")


@click.group()
def offset() -> None:
    """Move a group's position."""


@offset.command()
@click.argument("group_name", metavar="GROUP")
@click.argument("topic")
@click.option("--to", "target", type=ConsumeFrom(), help="first, last, or the first message stored at that time.")
@click.option("--offset", type=click.IntRange(min=0), help="The same offset in every queue.")
@click.option("--queue", "queues", multiple=True, metavar="BROKER:ID", help="Only this queue; repeatable.")
@_dry_run
@asking
def reset(
    admin: Admin,
    answer: Answer,
    group_name: str,
    topic: str,
    target: str | int | None,
    offset: int | None,
    queues: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Move GROUP in TOPIC; members follow at once. --to last skips what waits."""
    if (target is None) == (offset is None):
        raise click.UsageError("give exactly one of --to and --offset")
    place: dict[str, Any] = {"offset": offset}
    if target is not None:
        place = {"timestamp_ms": target} if isinstance(target, int) else {"to": target}
    place |= {"queues": [_queue(text) for text in queues] or None, "dry_run": dry_run}
    _tell(answer, group_name, admin.reset_offset(group_name, topic, **place), dry_run)


@offset.command()
@click.argument("source")
@click.argument("target")
@click.option("--topic", help="Only this topic.")
@_dry_run
@asking
def clone(admin: Admin, answer: Answer, source: str, target: str, topic: str | None, dry_run: bool) -> None:
    """Give group TARGET the committed offsets of group SOURCE; TARGET is made when it does not exist."""
    _tell(answer, target, admin.clone_offsets(source, target, topic, dry_run=dry_run), dry_run)


def _queue(text: str) -> tuple[str, int]:
    broker_name, number = queue_place(text)
    if not broker_name:
        raise click.BadParameter(f"{text!r}: give it as broker-a:{number}", param_hint="--queue")
    return broker_name, number


def _tell(answer: Answer, group_name: str, moved: Sequence[QueuePosition], dry_run: bool) -> None:
    rows = [
        [*astuple(each)[:3], None if each.former == NOTHING_COMMITTED else each.former, each.offset] for each in moved
    ]
    columns, title = ["topic", "broker_name", "queue_id", "from", "to"], f"group {group_name}"
    document = {"group": group_name, "queues": [asdict(position) for position in moved], "dry_run": dry_run}
    answer(document, lambda: print_table(columns, rows, title + (": nothing was changed" if dry_run else "")))
