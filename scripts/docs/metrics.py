"""The page of metrics: every family that a broker's code names when it is scraped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .markdown import NOTE, code, table

_NAME = re.compile(r"(rocketmq|penstock)_[a-z_]+")
MAKERS = {"gauge": "gauge", "gauges": "gauge", "counter": "counter", "counters": "counter", "histogram": "histogram"}
"""Methods that make a family, and its type."""


class Family(NamedTuple):
    """One metric as Prometheus shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def page(broker: Path) -> str:
    rows = [
        (code(family.name), family.kind, ", ".join(family.labels), family.meaning)
        for family in sorted(set(families(broker)))
    ]
    return (
        f"{NOTE}\n# Metrics\n\n`metricsExporterType = PROM` serves them at `/metrics` on `metricsPromExporterPort`. "
        "Names that begin with `rocketmq_` mean what they mean there. All have the labels `cluster`, "
        "`node_type` and `node_id` (the broker's name and id) besides those of the table.\n\n"
        + table(("Metric", "Type", "Labels", "Meaning"), rows)
    )


def families(folder: Path) -> Iterator[Family]:
    """Every family that code in ``folder`` makes."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.For):
                yield from _of_loop(node)
            elif isinstance(node, ast.Call) and _maker(node):
                yield from _of_call(node)


def _maker(call: ast.Call) -> str | None:
    return MAKERS.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None


def _of_call(call: ast.Call) -> Iterator[Family]:
    """A family whose name stands in the call."""
    texts = [_text(argument) for argument in call.args[:2]]
    if len(texts) == 2 and texts[0] and _NAME.fullmatch(texts[0]):
        yield _family(call, texts[0], texts[1] or "")


def _of_loop(loop: ast.For) -> Iterator[Family]:
    """Families whose names stand in the tuple that a loop goes through."""
    call = next((node for node in ast.walk(loop) if isinstance(node, ast.Call) and _maker(node)), None)
    if call is None or not isinstance(loop.iter, ast.Tuple):
        return
    for row in loop.iter.elts:
        if isinstance(row, ast.Tuple) and len(row.elts) >= 2:
            name, meaning = _text(row.elts[0]), _text(row.elts[1])
            if name and _NAME.fullmatch(name):
                yield _family(call, name, meaning or "")


def _family(call: ast.Call, name: str, meaning: str) -> Family:
    kind = _maker(call) or ""
    labels = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], ast.Tuple) else None
    texts = [_text(element) for element in labels.elts] if labels else []
    shown = name + ("_total" if kind == "counter" else "")
    return Family(shown, kind, tuple(text for text in texts if text), meaning)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
