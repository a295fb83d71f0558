"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKENESS_MIN = 0.6
_COMPARED_MAX = 80


def nearest(name: str, known: Iterable[str], likeness: float = _LIKENESS_MIN) -> str | None:
    """The known name that is most like ``name``, whatever the case; None if none is like it.

    ``likeness``: 0..1, the share of their letters that have to agree in order.
    """
    spellings = {each.lower(): each for each in sorted(known)}
    found = difflib.get_close_matches(name[:_COMPARED_MAX].lower(), spellings, n=1, cutoff=likeness)
    return spellings[found[0]] if found else None


def hint(name: str, known: Iterable[str], likeness: float = _LIKENESS_MIN) -> str:
    """`` (did you mean 'NAME'?)`` with the :func:`nearest` name, to stand behind the wrong one; else nothing."""
    found = nearest(name, known, likeness)
    return f" (did you mean {found!r}?)" if found else ""
