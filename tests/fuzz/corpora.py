"""Inputs that a fuzzer kept, in ``corpus/TARGET.txt``: one a line, in hexadecimal, the shortest first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).with_name("corpus")
KEPT_MAX = 400


def load(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    path = HERE / f"{name}.txt"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def save(name: str, inputs: Iterable[bytes]) -> None:
    """Keep these, the shortest ones where there are many."""
    lines = [data.hex() for data in sorted(set(inputs), key=lambda data: (len(data), data))[:KEPT_MAX]]
    HERE.mkdir(exist_ok=True)
    (HERE / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
