"""SQL92 conditions, ready to be asked about records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats.sql92 import Op, Program, parse_condition

from ..disk import Bytes
from .condition_kernels import DAMAGED, STACK_COLUMNS, YES, judge_records, number_of

__all__ = ["DAMAGED", "YES", "Condition"]

WORK_MAX = 1 << 20
"""What one call may take, in units of about a nanosecond."""


class Condition:
    """A condition, for one thread at a time. Raises InvalidArgument: shows where, and what was expected."""

    def __init__(self, text: str) -> None:
        program = parse_condition(text)
        depth = _depth_of(program)
        numbers = [number_of(np.frombuffer(each, np.uint8)) for each in program.numbers]
        self._arguments = (
            np.array(program.steps, np.int64).reshape(-1, 3),
            np.array(program.longs, np.int64),
            np.array(numbers, np.float64),
            *_joined(program.texts),
            *_joined(program.names),
            np.zeros((len(program.names), 2), np.int64),
            np.zeros((depth, STACK_COLUMNS), np.int64),
            np.zeros(depth, np.float64),
        )

    def judge(self, log: Bytes, positions: Any, sizes: Any) -> npt.NDArray[np.int8]:
        """``YES``, ``NO`` or ``DAMAGED`` for the first ones of the records at ``positions`` of a log file.

        One at least; it ends behind a damaged one, and when it has taken about a millisecond.
        """
        verdicts = np.zeros(len(positions), np.int8)
        judged = judge_records(log, positions, sizes, *self._arguments, WORK_MAX, verdicts)
        return verdicts[:judged]


def _joined(parts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(each) for each in parts], dtype=np.int64)


_PUSHING = frozenset({Op.NULL, Op.BOOL, Op.LONG, Op.DOUBLE, Op.TEXT, Op.PROPERTY})
_REPLACING = frozenset({Op.NEGATE, Op.IS_NULL, Op.NOT, Op.IN, Op.TO_BOOL})


def _depth_of(program: Program) -> int:
    """How many values the program has on its stack at most."""
    height = deepest = 0
    for op, _, _ in program.steps:
        if op in _PUSHING:
            height += 1
            deepest = max(deepest, height)
        elif op not in _REPLACING:
            height -= 1
    assert height == 1, "a condition leaves one value"
    return deepest
