"""What commands print: rich tables for people, one JSON document for programs, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 240
"""Columns of a table that goes into a file or pipe, where nothing has to fit a window."""


def console() -> Console:
    """Standard output, with colours only on a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, soft_wrap=False)


def print_json(document: Any) -> None:
    """One document, keys in the order in which they were put in."""
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table; numbers stand to the right."""
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[index], (int, float)) or line[index] is None for line in lines)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(shown(cell)) for cell in line))
    console().print(table)


def shown(value: object) -> str:
    """A cell as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    return str(value)


def print_fields(fields: dict[str, Any]) -> None:
    """``name  value`` line by line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {shown(value)}")


def print_error(message: str) -> None:
    """The one line that a failed command leaves, red on a terminal."""
    line = "error: " + " ".join(message.split())
    red = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\x1b[31m{line}\x1b[0m" if red else line, file=sys.stderr, flush=True)


def note(message: str) -> None:
    """One line about what was done, on standard error."""
    print(message, file=sys.stderr, flush=True)


class ProgressLine:
    """A line on standard error that renews itself on a terminal, and appears every few seconds elsewhere."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._live = sys.stderr.isatty()
        self._every_s = every_s
        self._last_s = time.monotonic() if not self._live else 0.0
        self._open = False

    def show(self, text: str) -> None:
        """Show ``text`` in place of what stood there."""
        now = time.monotonic()
        if self._live:
            print(f"\r\x1b[2K{text[:200]}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif now - self._last_s >= self._every_s:
            self._last_s = now
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line for what comes next."""
        if self._open:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._open = False
