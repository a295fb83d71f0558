"""The checker: from a history and the conditions of its drill to one verdict per invariant.

Plain functions over arrays: no sockets, processes, clocks or files. A million messages take seconds.
"""

from __future__ import annotations

from . import messages, offsets, order, remains
from .conditions import Conditions
from .history import History
from .verdict import TITLES, Verdict

__all__ = ["TITLES", "Verdict", "judge"]


def judge(history: History, conditions: Conditions) -> list[Verdict]:
    """Every invariant, in the order of :data:`TITLES`."""
    return [
        messages.lost(history, conditions),
        messages.phantoms(history),
        messages.one_value(history),
        order.order(history),
        offsets.offsets(history, conditions),
        offsets.progress(history, conditions),
        messages.duplicates(history, conditions),
        offsets.recovery(history, conditions),
        order.one_writer(history),
        remains.replicas(conditions),
        remains.stores(conditions),
        messages.wrong_bytes(history),
        remains.footprints(conditions),
        remains.stops(conditions),
        remains.log_lines(conditions),
        remains.leftovers(conditions),
    ]
