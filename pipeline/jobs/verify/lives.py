"""Proves the lives of topics that a log deletes: a part of the job verify.

A life lies between two deletions. The ones in front of the last deletion have no queue to be compared with: each offset
between their ends has to be there once. Behind a deletion a queue begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..framework.lives import Deletions
from ..framework.report import Report


def prove_lives(report: Report, log: Iterable[Mapping[str, Any]], deletions: Mapping[str, Deletions]) -> None:
    """Note what is wrong with the lives in ``log``: sums of parts, as verify groups them; ``deletions`` per broker."""
    firsts: dict[tuple[str, str, int, int], int] = {}
    for row in sorted(
        log, key=lambda row: (row["brokerName"], row["topic"], row["queueId"], row["life"], row["first"])
    ):
        where = {"broker": row["brokerName"], "topic": row["topic"], "queue": row["queueId"]}
        if row["life"]:
            firsts.setdefault((row["brokerName"], row["topic"], row["queueId"], row["life"]), row["first"])
        if not row["isLast"] and not _is_whole(row):
            at = deletions[row["brokerName"]][row["topic"]][row["life"]]
            text = f"queue offsets {row['first']} to {row['last']}, in front of the topic's deletion at {at}"
            report.problem(f"{row['messages']} records have the {text}: some are missing, or there twice", **where)
    for (broker, topic, queue, life), first in firsts.items():
        if first:
            at = deletions[broker][topic][life - 1]
            text = f"queue offset {first} is the first behind the topic's deletion at {at}, where 0 is due"
            report.problem(text, broker=broker, topic=topic, queue=queue)


def _is_whole(row: Mapping[str, Any]) -> bool:
    """True if the part has each offset from its first to its last one once."""
    if row["messages"] != row["last"] - row["first"] + 1:
        return False
    from ...columns.part_kernels import digest_range

    return bool(digest_range(row["first"], row["last"]) == row["offsets"])
