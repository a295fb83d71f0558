"""What lies on disk and in memory around a drill: stores, replicas, processes, log lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from penstock.deploy import NodeState
from penstock.formats.rocketmq_config import read_table
from penstock.inspection import list_store, verify
from penstock.inspection.queues.view import read_segments
from penstock.judge.conditions import LogComparison, StoreFinding
from penstock.proto.errors import PenstockError

PIECE_BYTES = 8 << 20
PROBLEMS_MAX = 20
_ERROR = re.compile(r" (ERROR|CRITICAL) |^Traceback ")
_OF_GRPC = re.compile(r"grpc\._cython\.cygrpc ExecuteBatchError raised in core")
"""What gRPC says of an answer whose caller has gone meanwhile: nothing of ours."""


def check_store(name: str, path: Path) -> StoreFinding:
    """Run the whole of ``penstock store verify`` on a data directory."""
    try:
        found = verify(list_store(path))
    except PenstockError as error:
        return StoreFinding(name, str(path), 0, [f"{type(error).__name__}: {error}"])
    problems = [f"{each.path} at {each.offset}: {each.problem}" for each in found.findings.problems[:PROBLEMS_MAX]]
    return StoreFinding(name, str(path), found.records, problems)


def compare_logs(shard: str, left: NodeState, right: NodeState, end: int, group: str | None) -> LogComparison:
    """Compare the logs of two brokers byte for byte, from the first byte that both have to ``end``.

    And the committed offsets of ``group`` in their snapshots, which are of one moment only when both are closed.
    """
    assert left.store_path is not None
    assert right.store_path is not None
    stores = (left.store_path, right.store_path)
    names = (left.node.name, right.node.name)
    logs = [list_store(store).segments for store in stores]
    start = max(log[0].start if log else 0 for log in logs)
    end = min(end, *(log[-1].start + log[-1].size if log else 0 for log in logs))
    differ = _differing_offsets(stores, group) if group is not None else ""
    for position in range(start, end, PIECE_BYTES):
        until = min(position + PIECE_BYTES, end)
        mine, other = (read_segments(log, position, until - position) for log in logs)
        if not np.array_equal(mine, other):
            return LogComparison(shard, *names, start, end, position + int(np.argmax(mine != other)), differ)
    return LogComparison(shard, *names, start, end, -1, differ)


def _differing_offsets(stores: Sequence[Path], group: str) -> str:
    """Committed offsets of ``group`` that two closed stores do not agree on."""
    left, right = (_committed(store, group) for store in stores)
    differ = [
        f"{key}: {left.get(key, -1)} and {right.get(key, -1)}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key, -1) != right.get(key, -1)
    ]
    return f"committed offsets differ: {'; '.join(differ[:4])}" if differ else ""


def _committed(store: Path, group: str) -> dict[str, int]:
    table = read_table(store / "config" / "consumerOffset.json", "offsetTable")
    return {
        f"{key} queue {queue}": int(offset)
        for key, queues in table.items()
        if key.endswith(f"@{group}")
        for queue, offset in queues.items()
    }


def find_on_disk(stores: Sequence[NodeState], needle: bytes) -> list[str]:
    """The stores whose logs hold these bytes: a lost message is on no disk, or on one and was not delivered."""
    found = []
    for state in stores:
        segments = list_store(state.store_path).segments if state.store_path is not None else []
        if any(needle in segment.path.read_bytes() for segment in segments):
            found.append(state.node.name)
    return found


def footprint(pid: int, store: Path | None = None) -> dict[str, float] | None:
    """Memory of its own in MiB, open files and threads of a process; None when it is gone.

    The files of its ``store`` do not count: they become more with what it holds.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory = process.memory_info()
            own = (memory.rss - getattr(memory, "shared", 0)) / (1 << 20)
            files = [each for each in Path(f"/proc/{pid}/fd").iterdir() if not _is_below(each, store)]
            return {"own_mib": round(own, 1), "files": len(files), "threads": process.num_threads()}
    except (psutil.Error, OSError):
        return None


def _is_below(descriptor: Path, folder: Path | None) -> bool:
    """True if this link of ``/proc`` leads to something below ``folder``."""
    try:
        return folder is not None and descriptor.readlink().is_relative_to(folder.resolve())
    except FileNotFoundError:  # closed meanwhile
        return False


def error_lines(states: Sequence[NodeState], expected: Sequence[str], starts: Mapping[str, int]) -> list[str]:
    """ERROR lines of the nodes' logs, from byte ``starts`` on, that match none of the patterns ``expected``."""
    allowed = [re.compile(pattern) for pattern in expected]
    return [
        f"{state.node.name}: {line[:300]}"
        for state in states
        for line in _errors_in(state.log_path, starts.get(state.node.name, 0))
        if not any(pattern.search(line) for pattern in allowed)
    ]


def _ours(lines: Iterable[str]) -> Iterator[str]:
    """The lines that tell of an error, without gRPC's of callers that have gone, and the trace behind each."""
    before = ""
    for line in lines:
        if _ERROR.search(line) and not _OF_GRPC.search(line) and not (_OF_GRPC.search(before) and line[0] == "T"):
            yield line.rstrip()
        before = line


def _errors_in(path: Path, start: int) -> Iterator[str]:
    try:
        with open(path, errors="replace") as lines:
            lines.seek(start if path.stat().st_size >= start else 0)  # a log that was rotated begins anew
            yield from itertools.islice(_ours(lines), 100)
    except OSError:
        return
