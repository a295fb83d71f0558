"""Kernels for what is in flight of a queue: a table of five columns, whose rows ascend by offset.

The array has the columns one after the other, ``[column, row]``; only its first rows are in use.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, types

from penstock.formats.intrinsics.kernel import LONGS, OUT_LONGS, kernel
from penstock.proto.wire import pop_pb2

from .ops import Kind

PARKED = 0
"""The visible time of messages of the retry topic that nobody has asked for; their check point is the hash of
their own topic."""
GIVEN_BACK = -1
"""The check point of messages whose receivers have not begun with them: the next one gets them, until they are due."""
NEVER = 1 << 62

OFFSETS, VISIBLE, POINTS, TIMES, FINISHED = range(5)
OUT_TABLE = types.Array(int64, 2, "C")

_POP, _PARK, _DONE, _CHANGE, _AGAIN, _RENEW = (
    int(each) for each in (Kind.POP, Kind.PARK, Kind.DONE, Kind.CHANGE, Kind.AGAIN, Kind.RENEW)
)
_OK, _EXPIRED = int(pop_pb2.RECEIPT_OK), int(pop_pb2.RECEIPT_EXPIRED)
_UNKNOWN = int(pop_pb2.RECEIPT_UNKNOWN)


@kernel(types.void, OUT_TABLE, int64, int64, int64, int64)
def _change(table, row, kind, at_ms, point):
    if kind == _PARK:
        table[VISIBLE, row], table[POINTS, row] = at_ms, GIVEN_BACK
    elif kind == _DONE:
        table[FINISHED, row] = 1
    elif kind == _RENEW:
        table[VISIBLE, row] = at_ms
    elif kind != _POP:
        was_begun = table[VISIBLE, row] != PARKED and table[POINTS, row] != GIVEN_BACK
        if kind == _AGAIN and was_begun:
            table[TIMES, row] += 1
        table[VISIBLE, row], table[POINTS, row], table[FINISHED, row] = at_ms, point, 0


@kernel(int64, OUT_TABLE, int64, LONGS, int64, int64)
def _add(table, count, offsets, visible, point):
    """Parked ones may lie between those that are given out."""
    old, to = count - 1, count + len(offsets) - 1
    for new in range(len(offsets) - 1, -1, -1):
        while old >= 0 and table[OFFSETS, old] > offsets[new]:
            for column in range(5):
                table[column, to] = table[column, old]
            old, to = old - 1, to - 1
        table[OFFSETS, to], table[VISIBLE, to], table[POINTS, to] = offsets[new], visible, point
        table[TIMES, to], table[FINISHED, to] = 0, 0
        to -= 1
    return count + len(offsets)


@kernel((int64, int64, int64), OUT_TABLE, int64, int64, LONGS, int64, int64, int64, boolean)
def take(table, count, kind, offsets, at_ms, point, fresh_from, is_orderly):
    """Change the first ``count`` rows by an op; how many there are then, when the first is due, how many wait unbegun.

    ``offsets`` ascend, and there is room for all of them. Those from ``fresh_from`` on are in no row: a POP or a PARK
    adds them.
    """
    adds = kind in (_POP, _PARK)
    known = np.searchsorted(offsets, fresh_from) if adds else len(offsets)
    goes = not adds and kind not in (_CHANGE, _AGAIN, _RENEW) and not (kind == _DONE and is_orderly)
    row = np.searchsorted(table[OFFSETS, :count], offsets[0]) if known > 0 else count
    kept, i = row, 0
    while row < count and (i < known or kept < row):
        while i < known and offsets[i] < table[OFFSETS, row]:
            i += 1
        is_meant = i < known and offsets[i] == table[OFFSETS, row]
        if not (is_meant and goes):
            for column in range(5):
                table[column, kept] = table[column, row]
            if is_meant:
                _change(table, kept, kind, at_ms, point)
            kept += 1
        row += 1
    count = kept + count - row
    if adds and known < len(offsets):
        visible, said = (np.int64(PARKED), at_ms) if kind == _PARK else (at_ms, point)
        count = _add(table, count, offsets[known:], visible, said)
    if is_orderly:  # what is finished stays as long as one before it is not
        done = 0
        while done < count and table[FINISHED, done] != 0:
            done += 1
        if done:
            for column in range(5):
                for row in range(done, count):
                    table[column, row - done] = table[column, row]
            count -= done
    due, given_back = np.int64(NEVER), 0
    for row in range(count):
        if table[VISIBLE, row] != PARKED and table[FINISHED, row] == 0:
            due = min(due, table[VISIBLE, row])
        given_back += table[POINTS, row] == GIVEN_BACK
    return count, due, given_back


@kernel(int64, OUT_TABLE, int64, LONGS, int64, int64, int64, int64, int64, OUT_LONGS, OUT_LONGS)
def look(table, count, offsets, point, until_ms, now_ms, fresh_from, op_end, statuses, live):
    """Put what receipts are good for into ``statuses``; how many are of messages in flight, which ``live`` begins with.

    See :meth:`.queue.PopQueue.statuses`.
    """
    row = np.searchsorted(table[OFFSETS, :count], offsets[0]) if len(offsets) else 0
    found = 0
    for i in range(len(offsets)):
        while row < count and table[OFFSETS, row] < offsets[i]:
            row += 1
        is_here = row < count and table[OFFSETS, row] == offsets[i]
        if offsets[i] >= fresh_from or point >= op_end:
            statuses[i] = _UNKNOWN
        elif is_here and table[POINTS, row] == point and table[VISIBLE, row] > now_ms:
            statuses[i] = _OK
            if table[FINISHED, row] == 0:
                live[found] = offsets[i]
                found += 1
        else:
            statuses[i] = _OK if not is_here and until_ms > now_ms else _EXPIRED
    return found
