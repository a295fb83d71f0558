"""How the tests are shared among workers: a file stays on one, and so do all that need the Spark session."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group("spark" if "/tests/spark/" in file else file.rpartition("/tests/")[2]))
