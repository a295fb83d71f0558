"""What a check found: problems make a store *not ok*, notes are what somebody who looks at it should know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FINDINGS_MAX = 10_000
"""Kept of each kind; more are only counted, since one lost file may be wrong in a million places."""


class Finding(NamedTuple):
    """Something at ``offset`` of the file ``path``; None: about the file, or the directory, as a whole.

    The fields are those of the JSON of ``penstock store verify``.
    """

    path: str
    offset: int | None
    problem: str

    def __str__(self) -> str:
        place = self.path if self.offset is None else f"{self.path} at {self.offset}"
        return f"{place}: {self.problem}"


@dataclass(slots=True)
class Findings:
    """Collects findings, in the order in which they were made."""

    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    problems_left_out: int = 0

    def problem(self, path: object, offset: int | None, text: str) -> None:
        """Something that is not as it was written."""
        if len(self.problems) < FINDINGS_MAX:
            self.problems.append(_finding(path, offset, text))
        else:
            self.problems_left_out += 1

    def note(self, path: object, offset: int | None, text: str) -> None:
        """Something unusual that a broker is known to leave behind."""
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(_finding(path, offset, text))

    def tell(self, path: object, offset: int | None, text: str, *, expected: bool) -> None:
        """A problem, or a note where it is to be ``expected``: beside a running broker, or behind a crash."""
        (self.note if expected else self.problem)(path, offset, text)

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems


def _finding(path: object, offset: int | None, text: str) -> Finding:
    return Finding(printable(str(path)), None if offset is None else int(offset), printable(text))


def printable(text: str) -> str:
    """``text`` without what no terminal or JSON reader takes: names of files and topics may be any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()
