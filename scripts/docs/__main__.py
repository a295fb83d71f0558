"""Writes the pages of ``docs/reference`` and the README's chart; with ``--check`` only says which are not current."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import chart, clients, commands, errors, keys, limits, metrics, spark

ROOT = Path(__file__).parents[2]
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/broker-conf.md": keys.broker_page,
    "docs/reference/namesrv-conf.md": keys.nameserver_page,
    "docs/reference/gateway-conf.md": keys.gateway_page,
    "docs/reference/clients.md": clients.page,
    "docs/reference/commands.md": commands.page,
    "docs/reference/metrics.md": lambda: metrics.page(ROOT / "broker"),
    "docs/reference/errors.md": errors.page,
    "docs/reference/limits.md": limits.page,
    "docs/reference/spark.md": spark.page,
    "docs/assets/throughput.svg": lambda: chart.svg(ROOT / "bench"),
}


def main(arguments: list[str]) -> int:
    """The exit code: 1 if a page is not current and was not to be written."""
    stale = [name for name, make in PAGES.items() if not _is_current(ROOT / name, make())]
    if arguments == ["--check"]:
        for name in stale:
            print(f"{name} is not current: run make reference")
        return int(bool(stale))
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(PAGES[name]())
        print(f"wrote {name}")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
