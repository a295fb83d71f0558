"""Histories of load tests, made by hand: a clean one, for tests to damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipeline.jobs.audit.history import EVENT, INVOKE, MAGIC, OK, POSITION, READ, RECEIVE, SEND

SHARDS = ("broker-a", "broker-b")
MS = 1_000_000
STREAM = 7
CONDITIONS = {
    "mode": "durable",
    "windows": [{"what": "kill", "target": "broker-a-0", "start_ns": 4_000 * MS, "end_ns": 6_000 * MS}],
    "duplicates_allowed": 3,
    "commit_interval_ms": 1000,
}


def rows(count: int) -> npt.NDArray[Any]:
    """Rows in which nothing is known."""
    made = np.zeros(count, EVENT)
    made["key"], made["shard"], made["queue"], made["position"] = -1, -1, -1, -1
    return made


def clean(count: int = 400) -> dict[str, npt.NDArray[Any]]:
    """``count`` messages over ten seconds to two queues of each of two shards, by operation; nothing is wrong."""
    numbers = np.arange(count)
    times = numbers * 10_000 * MS // count
    sent = rows(count)
    sent["op"], sent["outcome"], sent["stream"], sent["sequence"] = SEND, OK, STREAM, numbers
    sent["shard"], sent["queue"], sent["offset"] = numbers % 4 // 2, numbers % 2, numbers // 4
    sent["key"] = np.where(numbers % 3 == 0, numbers % 4, -1)
    sent["start_ns"], sent["end_ns"] = times, times + 2 * MS
    sent["epoch"] = np.where((sent["shard"] == 0) & (times >= 4_000 * MS), 2, 1)
    sent["crc"] = numbers * 2654435761 % (1 << 32)
    received = sent.copy()
    received["op"], received["epoch"] = RECEIVE, 0
    received["start_ns"], received["end_ns"] = times + 2 * MS, times + 5 * MS
    read = sent.copy()
    read["op"], read["epoch"] = READ, 0
    read["start_ns"] = read["end_ns"] = 11_000 * MS
    invoked = rows(1)
    invoked["op"], invoked["stream"], invoked["offset"] = INVOKE, STREAM, count
    looks = rows(20)
    looks["op"], looks["shard"], looks["queue"] = POSITION, 0, 1
    looks["end_ns"] = np.arange(20) * 500 * MS
    looks["sequence"], looks["position"], looks["offset"] = 0, np.arange(20) * 10 + 5, np.arange(20) * 10
    return {"invoked": invoked, "sent": sent, "received": received, "read": read, "looks": looks}


def write(folder: Path, parts: dict[str, npt.NDArray[Any]], conditions: dict[str, Any] = CONDITIONS) -> Path:
    """The history as a drill leaves it, one file per operation, a torn row at the end of each."""
    folder.mkdir(parents=True)
    for number, (name, events) in enumerate(parts.items()):
        description = json.dumps({"client": number, "name": name, "shards": list(SHARDS)}).encode()
        head = MAGIC + struct.pack("<I", len(description)) + description
        (folder / f"{name}.history").write_bytes(head + events.tobytes() + b"torn")
    (folder / "conditions.json").write_text(json.dumps(conditions))
    return folder
