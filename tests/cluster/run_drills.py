"""``python -m tests.cluster.run_drills``: every drill, many seeds; the figures go to ``RESULTS.md`` after each one.

``DRILL_ROUNDS`` (20), ``DRILL_NAMES`` (all), ``DRILL_OPTIONS`` (options of ``penstock drill``) and ``DRILL_DIR`` (a
temporary directory) change what is done. What went wrong keeps its histories, logs and stores under that directory.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.drill.catalogue import DRILLS

PAGE = Path(__file__).with_name("RESULTS.md")
HEAD = """# Failover drills

Written by `make test-drills`; do not edit. Each drill starts a fresh cluster, runs load, breaks one thing, heals it,
drains and judges (`penstock drill --help`). The longest outage of a drill is the longest time in which one shard
acknowledged nothing.
"""


def main() -> int:
    """Do the drills; 1 when an invariant was violated or a drill broke off."""
    rounds = int(os.environ.get("DRILL_ROUNDS", "20"))
    names = os.environ.get("DRILL_NAMES", "").split() or list(DRILLS)
    options = shlex.split(os.environ.get("DRILL_OPTIONS", ""))
    directory = os.environ.get("DRILL_DIR") or tempfile.mkdtemp(prefix="penstock-drills-")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(1, rounds + 1):
        for name in names:
            document = drill(name, seed, directory, options)
            found[name].append(document)
            PAGE.write_text(page(found, rounds, options))
            print(f"seed {seed} {name}: {verdict(document)}", flush=True)
            if "skipped" in document:
                names = [other for other in names if other != name]
    return 0 if all(each["ok"] for documents in found.values() for each in documents) else 1


def drill(name: str, seed: int, directory: str, options: list[str]) -> dict[str, Any]:
    """One drill in a process of its own."""
    command = [sys.executable, "-m", "penstock.cli", "drill", name, "--dir", directory, "--seed", str(seed), "--json"]
    done = subprocess.run([*command, "--drop-stores", *options], check=False, capture_output=True, text=True)
    try:
        document: dict[str, Any] = json.loads(done.stdout)["drills"][0]
    except ValueError:
        return {"drill": name, "seed": seed, "ok": False, "failed": done.stderr.strip()[-300:] or "no output"}
    return document


def verdict(document: dict[str, Any]) -> str:
    """One line of one drill."""
    if "verdicts" not in document:
        return str(document.get("skipped") or document["failed"])
    broken = [each["invariant"] for each in document["verdicts"] if each["holds"] is False]
    return f"violated {', '.join(broken)}" if broken else "all held"


def page(found: dict[str, list[dict[str, Any]]], rounds: int, options: list[str]) -> str:
    """The whole page."""
    done = [each for documents in found.values() for each in documents if "verdicts" in each]
    acknowledged = sum(each["counts"]["acknowledged"] for each in done)
    lost = sum(v["violations"] for each in done for v in each["verdicts"] if v["invariant"] == "I1")
    lines = [
        HEAD,
        f"{len(done)} drills, seeds 1 to {rounds}"
        + (f", options `{shlex.join(options)}`" if options else "")
        + f": {acknowledged:,} messages acknowledged, {lost:,} of them lost.",
        "",
        "| Drill | Rounds | All held | Acknowledged | Refused | Unknown | Delivered again | Longest outage, ms: "
        "median | worst | Target |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [row(name, documents) for name, documents in found.items() if documents]
    wrong = [each for documents in found.values() for each in documents if not each["ok"]]
    if wrong:
        lines += ["", "## What did not hold", ""]
    for each in wrong:
        lines.append(f"- {each['drill']} seed {each['seed']}: {verdict(each)}")
        for found_wrong in each.get("verdicts", []):
            if found_wrong["holds"] is False:
                lines.append(f"  - {found_wrong['invariant']}: {found_wrong['examples'][0]}")
    return "\n".join(lines) + "\n"


def row(name: str, documents: list[dict[str, Any]]) -> str:
    """One drill's line of the table."""
    done = [each for each in documents if "verdicts" in each]
    if not done:
        return f"| {name} | 0 | {verdict(documents[0])} | | | | | | | |"
    longest = [max(outage["longest_ms"] for outage in each["outages"]) for each in done]
    sums = [sum(each["counts"][what] for each in done) for what in ("acknowledged", "refused", "unknown", "duplicates")]
    target = done[0]["target_ms"]
    cells = [name, str(len(documents)), str(sum(each["ok"] for each in documents)), *(f"{each:,}" for each in sums)]
    cells += [f"{statistics.median(longest):,.0f}", f"{max(longest):,.0f}", f"{target:,}" if target else ""]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
