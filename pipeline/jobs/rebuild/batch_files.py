"""Files of batch consume queues, from the units of a log's inner batches (:mod:`penstock.formats.batch_unit`).

A unit's place depends on how many lie before it, which no task knows: tasks write the units of a part of a queue to a
file of its own, and the driver joins these, some bytes per client batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.formats.batch_unit import BATCH_UNIT, BATCH_UNIT_BYTES
from penstock.formats.directory import BATCH_QUEUE, file_name, is_safe_topic

_UNITS_AT_ONCE = 1 << 16


def _path(root: str | Path, topic: str, queue_id: int, part: int) -> Path:
    return Path(root) / BATCH_QUEUE / topic / str(queue_id) / f".part-{part}"


def write_batch_part(root: str, table: pa.Table) -> int:
    """Write the units of a part of a queue, in the log's order; how many there are. 0, if no queue may be called so."""
    topic, queue_id, part = (table.column(name)[0].as_py() for name in ("topic", "queueId", "part"))
    units = np.frombuffer(b"".join(table.column("batches").to_pylist()), BATCH_UNIT)
    if not len(units) or not is_safe_topic(topic) or queue_id < 0:
        return 0
    target = _path(root, topic, queue_id, part)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    draft.write_bytes(units[np.argsort(units["physical_offset"], kind="stable")].tobytes())
    draft.replace(target)  # a task may run twice
    return len(units)


def join_batch_files(root: Path, written: Iterable[Mapping[str, Any]], per_file: int) -> None:
    """Make the queues' files, of ``per_file`` units each, of the parts that ``written`` tells of, which go."""
    parts = [(row["topic"], row["queueId"], row["file"]) for row in written if row["units"]]
    places: dict[tuple[str, int], int] = {}
    for topic, queue_id, part in sorted(parts):
        path = _path(root, topic, queue_id, part)
        place = places.get((topic, queue_id), 0)
        with path.open("rb") as source:
            while data := source.read(_UNITS_AT_ONCE * BATCH_UNIT_BYTES):
                place = _append(path.parent, place, data, per_file * BATCH_UNIT_BYTES)
        places[topic, queue_id] = place
        path.unlink()


def _append(folder: Path, place: int, data: bytes, file_bytes: int) -> int:
    """Write bytes of a queue from its byte ``place`` on; the place behind them."""
    while data:
        start = place - place % file_bytes
        piece, data = data[: start + file_bytes - place], data[start + file_bytes - place :]
        path = folder / file_name(start)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(file_bytes)  # what is not written yet stays a hole
            file.seek(place - start)
            file.write(piece)
        place += len(piece)
    return place
