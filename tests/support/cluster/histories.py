"""Histories of load tests as files: a clean one, for tests to damage."""

from __future__ import annotations

from pathlib import Path

from penstock.judge.conditions import Conditions, Window
from penstock.judge.history import SUFFIX, Events, Recorder

from . import drill_history
from .drill_history import FAULT_END, FAULT_START, MS, SHARDS, STREAM, rows

__all__ = ["CONDITIONS", "MS", "SHARDS", "STREAM", "clean", "rows", "write"]

CONDITIONS = Conditions(windows=[Window("kill", "broker-a-0", FAULT_START, FAULT_END)], duplicates_allowed=3)


def clean(count: int = 400) -> dict[str, Events]:
    """``count`` messages over ten seconds to two queues of each of two shards, by operation; nothing is wrong."""
    made = drill_history.clean(count)
    return {name: getattr(made, name) for name in ("invoked", "sent", "received", "read", "looks")}


def write(folder: Path, parts: dict[str, Events], conditions: Conditions = CONDITIONS) -> Path:
    """The history as a drill leaves it, one file per operation, a torn row at the end of each."""
    folder.mkdir(parents=True)
    for number, (name, events) in enumerate(parts.items()):
        path = folder / f"{name}{SUFFIX}"
        recorder = Recorder(path, number, name, SHARDS)
        recorder.add_all(events)
        recorder.close()
        with open(path, "ab") as file:
            file.write(b"torn")
    conditions.save(folder)
    return folder
