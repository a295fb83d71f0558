"""The page of client settings: fields of the configurations, with what stands beside them in the source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any

from penstock.client import ConsumerConfig, ProducerConfig

from .markdown import NOTE, code, line_comments, plain, size, table


def page() -> str:
    parts = [
        f"{NOTE}\n# Client settings\n\nFields of `ProducerConfig` are also keyword arguments of `Producer`. Consumers "
        "take theirs as `config=ConsumerConfig(…)`.\n"
    ]
    for kind in (ProducerConfig, ConsumerConfig):
        parts.append(f"## {kind.__name__}\n\n" + table(("Field", "Default", "Meaning"), _rows(kind)))
    return "\n".join(parts)


def _rows(kind: type) -> list[tuple[str, str, str]]:
    told = _told(inspect.getsource(inspect.getmodule(kind) or kind), kind.__name__)
    return [(code(field.name), _default(field), plain(told.get(field.name, ""))) for field in dataclasses.fields(kind)]


def _told(source: str, name: str) -> dict[str, str]:
    """What the fields of class ``name`` mean: behind their line, in comments above, or in the text below.

    A text below several fields speaks of all of them.
    """
    comments = line_comments(source)
    lines = source.splitlines()
    found: dict[str, str] = {}
    waiting: list[str] = []
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field, above = node.target.id, lines[node.lineno - 2].strip()
            waiting.append(field)
            if field in comments:
                found[field] = comments[field]
            elif above.startswith("#"):
                found[field] = above.lstrip("# ")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(dict.fromkeys(waiting, node.value.value))
            waiting = []
            continue
        if not (isinstance(node, ast.AnnAssign) and lines[node.lineno].strip()):
            waiting = [] if not isinstance(node, ast.AnnAssign) else waiting[-1:]
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in field.name:
        return size(value)
    return code(str(value))
