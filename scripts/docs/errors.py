"""The page of errors: every class below ``PenstockError``."""

from __future__ import annotations

import inspect

from penstock.proto import errors
from penstock.proto.errors import PenstockError, Refused, Retryable, StorageError

from .markdown import NOTE, code, plain, table

_ALL = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PenstockError)]

GROUPS = (
    (Retryable, "Not stored; the same request may succeed later or elsewhere. Clients try again by themselves."),
    (Refused, "Not stored; the request itself must change."),
    (StorageError, "The broker's store cannot do what was asked."),
)


def page() -> str:
    everything = _below(PenstockError)
    shown = {kind for group, _ in GROUPS for kind in (group, *_below(group))}
    parts = [
        f"{NOTE}\n# Errors\n\nAll derive from `PenstockError`. `error.code` is the number on the wire, "
        "`error.retryable` says whether trying again may help, and the message names the object, the value seen and "
        "what to do.\n"
        "[Order and failures](../guide/order-and-failures.md) says what an outcome means for a message.\n"
    ]
    for group, meaning in GROUPS:
        parts.append(f"## {group.__name__}\n\n{meaning}\n\n{_table([group, *_below(group)])}")
    parts.append(f"## Others\n\n{_table([kind for kind in everything if kind not in shown])}")
    return "\n".join(parts)


def _below(kind: type[PenstockError]) -> list[type[PenstockError]]:
    """All classes of :mod:`penstock.proto.errors` derived from ``kind``, in the order of their codes."""
    return sorted((each for each in _ALL if issubclass(each, kind) and each is not kind), key=lambda each: each.code)


def _table(kinds: list[type[PenstockError]]) -> str:
    rows = []
    for kind in kinds:
        meaning, *others = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
        remedy = next((text.removeprefix("Do: ") for text in others if text.startswith("Do: ")), "")
        if not remedy:
            raise ValueError(f"{kind.__name__} does not say what to do: add a paragraph 'Do: …' to its docstring")
        again = "yes" if kind.retryable else ""
        rows.append((code(kind.__name__), str(kind.code), plain(meaning), again, plain(remedy)))
    return table(("Class", "Code", "Means", "Again", "Do"), rows)
