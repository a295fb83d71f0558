"""A node with messages for later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker.kit import close_all
from tests.support.broker.timing import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    async def made() -> Node:
        return Node(tmp_path / "store")

    yield asyncio.run(made())
    close_all()
