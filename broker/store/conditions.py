"""SQL92 conditions, ready to be asked about records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .condition_kernels import STACK_COLUMNS, select_records
from .disk import Bytes
from .sql92 import Op, Program, parse_condition


class Condition:
    """One condition. For one thread at a time.

    Raises:
        InvalidArgument: the text is none; the error shows where, and what was expected.
    """

    def __init__(self, text: str) -> None:
        program: Program = parse_condition(text)
        depth = _depth_of(program)
        self._arguments = (
            np.array(program.steps, np.int64).reshape(-1, 3),
            np.array(program.longs, np.int64),
            np.array(program.doubles, np.float64),
            np.frombuffer(b"".join(program.texts), np.uint8),
            np.cumsum([len(each) for each in program.texts], dtype=np.int64),
            np.zeros((depth, STACK_COLUMNS), np.int64),
            np.zeros(depth, np.float64),
        )

    def holds(self, log: Bytes, positions: Any, sizes: Any) -> npt.NDArray[np.bool_]:
        """Whether it holds for each of the records at ``positions`` of a log file."""
        chosen = np.zeros(len(positions), np.bool_)
        select_records(log, positions, sizes, *self._arguments, chosen)
        return chosen


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
