"""How the slaves of a master stand: heard or silent, and since when each has not had everything."""

from __future__ import annotations

from collections.abc import Collection

from .progress import Progress
from .sync_state_set import Standing


class Standings:
    """The slaves' standings during one term of a master.

    A slave was level when it had what the log had then; so each is compared with a mark, an earlier end of the log,
    which is set anew whenever it has been reached.
    """

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, float, float]] = {}  # slave -> master's end then, when, level last

    def at(self, now: float, progress: Progress, end: int, silent: Collection[int]) -> list[Standing]:
        """The slaves at ``now`` (seconds), when the log ends at ``end`` and the members ``silent`` are not heard."""
        found, marks = [], {}
        for each in progress.replicas():
            is_level = progress.is_level(each)
            mark_end, marked_at, level_at = self._marks.get(each.broker_id, (end, now, now))
            if progress.has(each, mark_end):  # to be level with a log that grows is a matter of the moment
                level_at, mark_end, marked_at = now if progress.has(each, end) else marked_at, end, now
            marks[each.broker_id] = (mark_end, marked_at, level_at)
            is_silent = each.broker_id in silent or not each.connected
            found.append(
                Standing(each.broker_id, is_silent, is_level and each.in_sync, (now - level_at) * 1000, each.learner)
            )
        self._marks = marks  # of those alone: strangers choose their ids
        return found
