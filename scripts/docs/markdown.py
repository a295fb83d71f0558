"""Markdown of generated pages, and what source files say beside their code."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by make reference from the code; do not edit. -->\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold anything but line ends."""
    lines = [heads, ["---"] * len(heads), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """The text in code style; empty stays empty."""
    return f"`{text}`" if text else ""


def plain(docstring: str) -> str:
    """A docstring's text as Markdown on one line: roles and double backticks become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", docstring)
    return " ".join(text.replace("``", "`").split())


def size(number: int) -> str:
    """The number, and in brackets the power of two that it is a multiple of, where that reads better."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift and number % (1 << shift) == 0:
            return f"{number} ({number >> shift} {unit})"
    return str(number)


def line_comments(source: str) -> dict[str, str]:
    """What is written behind each line of ``source``, by the first name or text on it, the first time that comes."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type in (tokenize.NAME, tokenize.STRING):
            first.setdefault(line, token.string.strip("\"'"))
        elif token.type == tokenize.COMMENT and line in first:
            text = re.sub(r"\s*#?\s*(noqa|type):.*", "", token.string.lstrip("# "))
            if text:
                found.setdefault(first[line], text)
    return found


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
