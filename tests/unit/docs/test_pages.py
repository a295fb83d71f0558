"""Every page can be reached, no link is dead, and what pages show of commands and keys exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from penstock.broker.config import BrokerConfig
from penstock.cli.main import cli
from penstock.gateway.config import GatewayConfig
from penstock.nameserver.config import NameserverConfig
from penstock.runtime.conf import keyed_fields

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")]
WRITTEN = [page for page in PAGES if page.parent.name != "reference"]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As mkdocs makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.replace("`", "")).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=relative)
def test_no_link_is_dead(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_site_has_every_page() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w/-]+\.md", str(navigation))
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


@pytest.mark.parametrize("page", [*WRITTEN, ROOT / "README.md"], ids=relative)
def test_commands_exist_and_take_their_options(page: Path) -> None:
    lines = [
        line
        for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.M | re.S)
        for line in block.splitlines()
    ]
    for line in lines:
        for shown in re.findall(r"(?:^|\| )penstock ([^#|&]*)", line):
            check_command(shown.split(), line)


def check_command(words: list[str], line: str) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0]) if words else None
        assert found is not None, line
        command, words = found, words[1:]
    context = click.Context(command)
    known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("-") and word != "-"} <= known, line


def test_settings_in_samples_of_files_are_keys() -> None:
    known = {name for config in (BrokerConfig, NameserverConfig, GatewayConfig) for name, _ in keyed_fields(config)}
    shown = [
        (relative(page), name)
        for page in WRITTEN
        for language, block in FENCED.findall(page.read_text())
        for name in re.findall(r"^([a-z][\w.]+) = ", block, re.MULTILINE)
        if not language
    ]
    assert len(shown) > 5
    assert [each for each in shown if each[1] not in known] == []
