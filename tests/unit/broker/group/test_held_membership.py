"""``penstockMembership.json``: a member's store is used in its place of its group, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.broker import FEATURES
from penstock.broker.group.held_membership import FILE_NAME, MembershipFile
from penstock.broker.opening import open_store
from penstock.proto.errors import WrongStore
from tests.support.broker.running_broker import small_config

ELECTED = {"enableControllerMode": "true", "namesrvAddr": "127.0.0.1:1"}


def _member(folder: Path, broker_id: int) -> None:
    """A store that has been that member's."""
    with open_store(small_config(folder, brokerId=broker_id, **ELECTED), FEATURES) as opened:
        opened.store.close()
    MembershipFile(small_config(folder).store.root).hold("5f0c", broker_id)


def test_a_members_store_is_refused_outside_elections(tmp_path: Path) -> None:
    _member(tmp_path, 0)
    config = small_config(tmp_path)
    with pytest.raises(WrongStore, match="set enableControllerMode = true"):
        open_store(config, FEATURES).__enter__()
    (config.store.root / FILE_NAME).unlink()
    with open_store(config, FEATURES) as opened:
        opened.store.close()


def test_a_members_store_is_refused_to_another_id(tmp_path: Path) -> None:
    _member(tmp_path, 1)
    other = small_config(tmp_path, brokerId=2, **ELECTED)
    with pytest.raises(WrongStore, match="the store is broker 1's, this one has brokerId=2"):
        open_store(other, FEATURES).__enter__()
    with open_store(small_config(tmp_path, brokerId=1, **ELECTED), FEATURES) as opened:
        opened.store.close()
