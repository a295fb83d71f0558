"""Nothing is missing in the reference, nothing in it is stale, and what it is made from says enough."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.config import BrokerConfig
from penstock.cli.main import COMMANDS
from penstock.gateway.config import GatewayConfig
from penstock.nameserver.config import NameserverConfig
from penstock.pipeline.catalogue import JOBS
from penstock.proto.errors import NotMaster
from penstock.runtime.conf import keyed_fields
from scripts.docs.__main__ import PAGES, ROOT
from scripts.docs.markdown import line_comments, plain, table
from scripts.docs.metrics import Family, families


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run make reference"


def test_a_class_that_was_made_of_an_error_meanwhile_is_not_on_its_page() -> None:
    # As Spark's errors become ours.
    made = type("AnalysisException", (NotMaster,), {"__module__": NotMaster.__module__})
    assert made.__name__ not in PAGES["docs/reference/errors.md"]()


@pytest.mark.parametrize("config", [BrokerConfig, NameserverConfig, GatewayConfig])
def test_every_key_says_what_it_means(config: type) -> None:
    assert [name for name, field in keyed_fields(config) if not field.metadata["doc"]] == []


def test_every_command_and_job_has_a_place() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    words = [*COMMANDS, *(f"pipeline {job}" for job in JOBS)]
    assert [each for each in words if f" penstock {each}\n" not in page] == []


def test_metrics_are_found_in_calls_and_in_loops(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "families.gauge('penstock_depth', 'How deep', 1)\n"
        "for name, doc, of in (('rocketmq_in', 'Came', 'x'), ('rocketmq_out', 'Went', 'y')):\n"
        "    families.counters(name, doc, ('topic',), rows(of))\n"
    )
    assert list(families(tmp_path)) == [
        Family("rocketmq_in_total", "counter", ("topic",), "Came"),
        Family("rocketmq_out_total", "counter", ("topic",), "Went"),
        Family("penstock_depth", "gauge", (), "How deep"),
    ]


def test_a_line_says_what_stands_behind_it_and_only_the_first_of_a_name() -> None:
    source = (
        'A = (\n    "one",  # first\n    "two",  # second  # noqa: X\n    "one",  # again\n)\nfields: int = 3  # all\n'
    )
    assert line_comments(source) == {"one": "first", "two": "second", "fields": "all"}


def test_docstrings_and_cells_become_markdown() -> None:
    assert plain("See :class:`~penstock.client.Producer`,\n    or ``x``.") == "See `Producer`, or `x`."
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below ``node``; what they compute is not looked into, which is most of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            yield from statements(child)


def test_the_internals_name_what_is_in_the_code() -> None:
    known = set()
    components = [each.parent for each in ROOT.glob("*/__init__.py") if each.parent.name != "tests"]
    for path in itertools.chain.from_iterable(folder.rglob("*.py") for folder in components):
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                known |= {node.name, *(f"{node.name}.{method}" for method in methods)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known.add(node.name)
    for name in ("one-message", "recovery"):
        text = (ROOT / f"docs/internals/{name}.md").read_text()
        words = [word for word in text.split("`")[1::2] if word.replace(".", "").replace("_", "").isalpha()]
        assert len(words) > 5
        assert [word for word in words if word not in known] == []
