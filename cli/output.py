"""What commands print: rich tables for people, one JSON document for programs, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

PIPED_WIDTH = 1_000_000
"""Columns of what goes into a file or pipe, where nothing has to fit a window."""


def console() -> Console:
    """Standard output, with colours only on a terminal."""
    from rich.console import Console

    return Console(width=None if on_terminal() else PIPED_WIDTH, highlight=False, soft_wrap=False)


def on_terminal() -> bool:
    """True if people read standard output as it is written."""
    return sys.stdout.isatty()


def harmless(text: str) -> str:
    """``text`` for a terminal: control characters, which could move its cursor or forge lines, are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_json(document: Any) -> None:
    """One document, keys in the order in which they were put in; escaped on a terminal, which has lines of its own."""
    if on_terminal():
        text = json.dumps(document, indent=2, ensure_ascii=False)
        print("\n".join(map(harmless, text.split("\n"))), flush=True)
    else:
        print_json_line(document)


def print_json_line(document: Any) -> None:
    text = json.dumps(document, ensure_ascii=False)
    print(harmless(text) if on_terminal() else text, flush=True)


class Answer:
    """Prints what a command found: with ``--json`` the document, else what people read, a line or what prints it."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, document: Any, people: str | Callable[[], object]) -> None:
        if self.as_json:
            print_json(document)
        elif isinstance(people, str):
            print(people)
        else:
            people()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table, numbers to the right. Where a terminal is too narrow for it, without lines; where that does not help,
    row below row, each column a line: nothing of a row is cut off. Without rows it is what there is room for.
    """
    lines = [list(row) for row in rows]
    screen = console()
    boundless = screen.options.update(max_width=PIPED_WIDTH)
    for table in (_table(columns, lines, title), _table(columns, lines, title, box=None, pad_edge=False)):
        if not lines or screen.measure(table, options=boundless).maximum <= screen.width:
            screen.print(table)
            return
    if title:
        print(title)
    for line in lines:
        print_fields(dict(zip(columns, line, strict=True)))
        print()


def _table(columns: Sequence[str], lines: Sequence[Sequence[object]], title: str, **look: Any) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold", **look)
    for index, column in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[index], (int, float)) or line[index] is None for line in lines)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(shown(cell)) for cell in line))
    return table


def shown(value: object) -> str:
    """A cell as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    return harmless(str(value)) if on_terminal() else str(value)


def print_rows(columns: Sequence[str], rows: Iterable[object]) -> None:
    """A table of objects: the attributes that the columns are named after."""
    print_table(columns, [[getattr(row, column) for column in columns] for row in rows])


def print_fields(fields: dict[str, Any]) -> None:
    """``name  value`` line by line."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {shown(value)}")


def print_error(message: str) -> None:
    """The one line that a failed command leaves, red on a terminal."""
    line = "error: " + harmless(" ".join(message.split()))
    red = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\x1b[31m{line}\x1b[0m" if red else line, file=sys.stderr, flush=True)


def note(message: str) -> None:
    """One line about what was done, on standard error."""
    print(harmless(message), file=sys.stderr, flush=True)


def note_silent(broker_names: Iterable[str], missing: str) -> None:
    """A note for each broker group that did not answer: what is ``missing`` here."""
    for name in broker_names:
        note(f"broker group {name} did not answer: {missing} missing")


class ProgressLine:
    """Progress on standard error: one line that renews itself on a terminal, and a line every few seconds elsewhere.

    With ``counts`` a bar shows the share that is done, with ``counts_bytes`` also bytes per second.
    """

    def __init__(self, every_s: float = 5.0, *, counts: bool = False, counts_bytes: bool = False) -> None:
        self._columns = (counts or counts_bytes, counts_bytes)
        self._every_s = every_s
        self._told_s = time.monotonic()
        self._live: Progress | None = None  # while something is shown on a terminal

    def show(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Show ``text``, and how much of ``total`` is done, in place of what stood there."""
        if sys.stderr.isatty():
            if self._live is None:
                self._live = _live(*self._columns)
                self._live.start()
                self._live.add_task("")
            self._live.update(self._live.task_ids[0], description=text, completed=done, total=total)
        elif (now := time.monotonic()) - self._told_s >= self._every_s:
            self._told_s = now
            share = f" {100 * done / total:.0f} %" if total else ""
            print(f"{text}{share}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line for what comes next."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _live(counts: bool, counts_bytes: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TransferSpeedColumn
    from rich.table import Column

    words = Column(no_wrap=True, overflow="ellipsis", ratio=None if counts else 1)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False, table_column=words)]
    if counts:
        columns += [BarColumn(), TaskProgressColumn()]
    if counts_bytes:
        columns.append(TransferSpeedColumn())
    # What is printed meanwhile stays where it was sent: standard output may be read by a program.
    return Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        expand=not counts,
        redirect_stdout=False,
        redirect_stderr=False,
    )
