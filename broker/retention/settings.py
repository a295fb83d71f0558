"""What ``broker.conf`` says of how long messages are kept."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from penstock.runtime.conf import key, require

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept, and what happens when the disk fills up. Ratios are whole per cents."""

    reserved_hours: int = key("fileReservedTime", default=72, doc="hours since a log file was last written")
    delete_when: tuple[str, ...] = key("deleteWhen", default=("04",), doc="hours of the day, with ;")
    used_max: int = key("diskMaxUsedSpaceRatio", default=75, doc="above: expired files go at any hour")
    forced_from: int = key("diskSpaceCleanForciblyRatio", default=85, doc="above: the oldest files go, expired or not")
    full_from: int = key("diskSpaceWarningLevelRatio", default=90, doc="above: messages are refused as well")
    is_forcing: bool = key("cleanFileForciblyEnable", default=True, doc="allow deletion of files that are not expired")
    interval_ms: int = key("cleanResourceInterval", default=10_000, doc="ms between two looks")
    pause_ms: int = key("deleteCommitLogFilesInterval", default=100, doc="between two files")
    files_max: int = key("deleteFileBatchMax", default=10, doc="files per round")
    grace_ms: int = key("destroyMapedFileIntervalForcibly", default=120_000, doc="how long a reader keeps a file")
    protect_unread: bool = key(
        "protectUnreadMessages",
        default=False,
        doc="keep what a group has not read until the disk forces it",
        differs="has no such key",
    )

    def __post_init__(self) -> None:
        in_range = 0 <= self.reserved_hours <= 1_000_000
        require(in_range, "fileReservedTime must be 0..1000000 hours", self.reserved_hours)
        good = all(re.fullmatch("[0-9]{1,2}", hour, re.ASCII) and int(hour) < 24 for hour in self.delete_when)
        require(
            bool(self.delete_when) and good,
            "deleteWhen must be hours of 00..23 with ; between them",
            ";".join(self.delete_when) or "nothing",
        )
        if not 10 <= self.used_max <= 95:
            log.warning("diskMaxUsedSpaceRatio=%d taken as the nearest of 10..95", self.used_max)
            object.__setattr__(self, "used_max", min(95, max(10, self.used_max)))
        for name, value in (
            ("diskSpaceCleanForciblyRatio", self.forced_from),
            ("diskSpaceWarningLevelRatio", self.full_from),
        ):
            require(30 <= value <= 100, f"{name} must be 30..100 per cent (100: never)", value)
        require(
            self.forced_from <= self.full_from,
            f"diskSpaceCleanForciblyRatio must be at most diskSpaceWarningLevelRatio={self.full_from}",
            self.forced_from,
        )
        for name, value, low in (
            ("cleanResourceInterval", self.interval_ms, 100),
            ("deleteCommitLogFilesInterval", self.pause_ms, 0),
            ("destroyMapedFileIntervalForcibly", self.grace_ms, 0),
        ):
            require(low <= value <= 3_600_000, f"{name} must be {low}..3600000 ms", value)
        require(1 <= self.files_max <= 10_000, "deleteFileBatchMax must be 1..10000", self.files_max)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours in which expired files go."""
        return frozenset(map(int, self.delete_when))
