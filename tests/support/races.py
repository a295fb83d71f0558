"""A pytest plugin that widens races: short sleeps in front of statements of the product, which a seed has chosen.

``RACES=7 python -m pytest -p tests.support.races tests/unit/store``. What comes between the change of a state and the
call, the line of the log, or the wake-up behind it is seldom seen where the two are a microsecond apart. A test that
fails tells where was slept. Other processes, and tests without threads, are as they are.
"""

from __future__ import annotations

import ast
import builtins
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest

SEED: Final = os.environ.get("RACES", "0")
ROOT: Final = Path(__file__).resolve().parents[2]
COMPONENTS: Final = ("broker", "client", "gateway", "nameserver", "replication", "runtime.data")
SHARE, SHARE_BEHIND_WITH = 0.05, 0.6
"""Of the statements, and of those behind a ``with``, so many are chosen: where a lock is given back, others go on."""
SLEEP_S_MAX, TEST_S_MAX = 0.03, 0.3
"""Of one sleep, and of all of a test."""
TIMES_MAX: Final = 6
"""A statement sleeps in a third of the first times that a test comes to it: what comes later has its share."""
ALONE: Final = threading.active_count()
"""So few threads: there are none of the product's."""
_NAME: Final = "__sleep_here__"


class _Sleeps:
    """Those of one test. Threads may sleep a little more, and more often, than they are to."""

    def __init__(self) -> None:
        self.left_s = TEST_S_MAX
        self.times: Counter[str] = Counter()
        self.slept: list[str] = []

    def here(self, place: str) -> None:
        if self.left_s <= 0 or self.times[place] >= TIMES_MAX or threading.active_count() <= ALONE:
            return
        self.times[place] += 1
        seconds = random.Random(f"{SEED} {place} {self.times[place]}").uniform(-2 * SLEEP_S_MAX, SLEEP_S_MAX)
        if seconds <= 0:
            return
        self.left_s -= seconds
        self.slept.append(f"{place} {threading.current_thread().name} {seconds * 1000:.0f} ms")
        time.sleep(seconds)


def _widened(content: bytes, file: str) -> ast.Module:
    """The module with sleeps in front of the chosen statements."""
    module = ast.parse(content)
    for node in list(ast.walk(module)):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                pairs = zip([None, *statements], statements, strict=False)
                setattr(node, name, [each for before, one in pairs for each in _with_sleep(before, one, file)])
    return module


def _with_sleep(before: ast.stmt | None, statement: ast.stmt, file: str) -> list[ast.stmt]:
    place = f"{file}:{statement.lineno}"
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_first = is_text or isinstance(statement, ast.ImportFrom)  # a docstring, an import of the future
    share = SHARE_BEHIND_WITH if isinstance(before, (ast.With, ast.AsyncWith)) else SHARE
    if is_first or random.Random(f"{SEED} {place}").random() >= share:
        return [statement]
    sleep = ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), [ast.Constant(place)], []))
    return [ast.fix_missing_locations(ast.copy_location(sleep, statement)), statement]


def _code(loader: SourceFileLoader, module: str) -> CodeType | None:
    if not module.startswith(tuple(f"penstock.{each}" for each in COMPONENTS)):
        return _get_code(loader, module)
    content = loader.get_data(loader.path)
    if b"numba" in content:  # kernels, which only their compiler calls
        return _get_code(loader, module)
    file = str(Path(loader.path).resolve().relative_to(ROOT))
    return compile(_widened(content, file), loader.path, "exec", dont_inherit=True)


_sleeps = _Sleeps()
setattr(builtins, _NAME, lambda place: _sleeps.here(place))
_get_code = SourceFileLoader.get_code
SourceFileLoader.get_code = _code  # type: ignore[assignment, method-assign]


def pytest_report_header() -> str:
    return f"races: RACES={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _sleeps
    _sleeps = _Sleeps()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    report.sections += [(f"slept, RACES={SEED}", "\n".join(_sleeps.slept))] if report.failed else []
    return report
