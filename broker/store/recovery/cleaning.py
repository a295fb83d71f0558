"""Which log files may go, and when writes are refused: decisions only. Times, ages, sizes and holds are passed in.

| Disk in use | What happens |
|---|---|
| at most ``used_max`` (75 %) | expired files go in the hours of ``delete_hours`` |
| more | expired files go at any hour |
| more than ``forced_from`` (85 %) | the oldest files go, expired or not, whatever wants to keep them |
| more than ``full_from`` (90 %) | the same, and messages are refused until use is at ``forced_from`` again |

A file is expired when it was last written ``reserved_ms`` ago: age counts per file, not per message. The last file
never goes. Files go from the oldest on, and the first one that must stay keeps all behind it. None is forced out
where all but the last lie on disks that get no new files: that would make no space for the next one.

Two kinds of limits keep a file. What the broker itself has not worked up (synced, dispatched, in snapshots) keeps
it always. A wish (a slave that has not got it yet, messages that a group has not read) keeps it until the disk
forces it.
Source: RocketMQ DefaultMessageStore.CleanCommitLogService; differs: it knows no limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """What the operator wants; per cents of the disk as RocketMQ counts them, rounded up."""

    reserved_ms: int = 72 * HOUR_MS
    delete_hours: frozenset[int] = frozenset({4})
    used_max: int = 75
    forced_from: int = 85
    full_from: int = 90
    is_forcing: bool = True  # may unexpired files be deleted?
    files_max: int = 10  # per round


class FileAge(NamedTuple):
    """A log file: offsets ``[base, end)``, when it was last written, and whether new ones have its space afterwards."""

    base: int
    end: int
    modified_ms: int
    makes_space: bool = True


class Wish(NamedTuple):
    """Somebody who wants to keep what lies from ``offset`` on."""

    who: str
    offset: int


class Choice(NamedTuple):
    """The first ``files`` files, which end at ``end``, are to go. ``kept_by``: why the one behind them is not."""

    files: int = 0
    end: int = 0
    is_forced: bool = False
    kept_by: str = ""


class DiskUse(NamedTuple):
    """Bytes of a file system: in use, and free for this process."""

    used: int
    free: int

    @property
    def percent(self) -> int:
        """Used share, rounded up as RocketMQ does: so 75.01 % is more than 75."""
        total = self.used + self.free
        return -(-100 * self.used // total) if total else 100


def is_writable(was_writable: bool, percent: int, rules: CleaningRules) -> bool:
    """True if messages are welcome: refused above ``full_from``, welcome again only at ``forced_from`` or below."""
    if percent > rules.full_from:
        return False
    return was_writable or percent <= rules.forced_from


def hour_of(now_ms: int) -> int:
    """The hour of the local day."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().hour


def choose(
    files: Sequence[FileAge],
    rules: CleaningRules,
    *,
    now_ms: int,
    percent: int,
    must_keep: int,
    wishes: Sequence[Wish] = (),
) -> Choice:
    """What one round deletes of ``files``, in the log's order; from ``must_keep`` on nothing goes, forced or not."""
    forced = _is_forced(files, rules, percent)
    if not (forced or percent > rules.used_max or hour_of(now_ms) in rules.delete_hours):
        return Choice()
    chosen = Choice(is_forced=forced)
    for number, file in enumerate(files[:-1][: rules.files_max], start=1):
        expired = now_ms - file.modified_ms >= rules.reserved_ms
        if not (forced or expired):
            break
        if file.end > must_keep:
            return chosen._replace(kept_by="not synced, dispatched or in snapshots yet")
        keeper = min((wish for wish in wishes if wish.offset < file.end), key=lambda wish: wish.offset, default=None)
        if keeper is not None and not forced:
            return chosen._replace(kept_by=keeper.who)
        chosen = Choice(number, file.end, forced)
    return chosen


def _is_forced(files: Sequence[FileAge], rules: CleaningRules, percent: int) -> bool:
    """True if the disk forces files out."""
    is_of_use = len(files) <= 1 or any(file.makes_space for file in files[:-1])
    return rules.is_forcing and percent > rules.forced_from and is_of_use


def next_to_go(files: Sequence[FileAge], rules: CleaningRules, *, now_ms: int, percent: int) -> int:
    """Where the log will begin when the next deletion is over, if nobody keeps anything; its minimum now if nothing
    goes.

    The next deletion is the coming hour of ``delete_hours``, or the running one; short of space it is any moment.
    """
    if not files:
        return 0
    forced = _is_forced(files, rules, percent)
    until_ms = now_ms + HOUR_MS if percent > rules.used_max else _end_of_hour(now_ms, rules.delete_hours)
    end = files[0].base
    for number, file in enumerate(files[:-1]):
        if until_ms - file.modified_ms < rules.reserved_ms and not (forced and number < rules.files_max):
            break
        end = file.end
    return end


def _end_of_hour(now_ms: int, hours: frozenset[int]) -> int:
    """The end of the first hour from now on, the running one included, that is one of ``hours``."""
    start_ms = now_ms - now_ms % HOUR_MS
    for step in range(25):
        if hour_of(start_ms + step * HOUR_MS) in hours:
            return start_ms + (step + 1) * HOUR_MS
    return start_ms + 25 * HOUR_MS  # an hour that a change to summer time left out today
