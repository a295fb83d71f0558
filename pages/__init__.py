"""Pages of results: one look for drills, jobs and benchmarks, from templates that escape what they show.

A page is one file without references to anything else. Templates lie beside the code that fills them, and find
``base.html``, ``macros.html`` and the style sheets here. Pictures are SVG (:mod:`.pictures`, :mod:`.plots`), with the
same colours in light and in dark.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent

__all__ = ["render", "shown"]

WORD_CHARACTERS = 20
LONG_CHARACTERS = 60


def render(template: Path, **values: Any) -> str:
    """``template`` filled with ``values``; what an ``.html`` template shows is escaped."""
    return _environment(template.parent).get_template(template.name).render(values)


@functools.cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["shown"] = shown
    made.tests["figure"] = is_figure
    made.tests["long"] = is_long
    made.tests["word"] = is_word
    return made


def is_figure(value: Any) -> bool:
    """True if this is a number, which stands to the right in a table."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_long(value: Any) -> bool:
    """True if a table's column has to be wide for this, which would else be a tower of single words."""
    return len(shown(value)) >= LONG_CHARACTERS


def is_word(value: Any) -> bool:
    """True if this may be broken anywhere, as an id: a long word without a blank, which else widens the page."""
    return isinstance(value, str) and max(map(len, value.split()), default=0) >= WORD_CHARACTERS


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items())
    return str(value)
