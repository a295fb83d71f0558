"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LIKENESS_MIN = 0.6


def hint(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'NAME'?`` with the known name that is most like ``name``; nothing when none is like it."""
    spellings = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), spellings, n=1, cutoff=LIKENESS_MIN)
    return f"; did you mean {spellings[near[0]]!r}?" if near else ""
