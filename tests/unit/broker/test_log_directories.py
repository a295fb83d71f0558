"""A log in several directories, as a broker's file names them."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.opening import open_store
from tests.support.broker.running_broker import small_config


def test_each_directory_of_a_list_is_made_at_the_first_start(tmp_path: Path) -> None:
    config = small_config(tmp_path, storePathCommitLog=f"{tmp_path}/disk1, {tmp_path}/disk2")
    with open_store(config, ()) as opened:
        assert opened.store.end_offset == 0
        opened.store.close()
    assert (tmp_path / "disk1").is_dir()
    assert (tmp_path / "disk2").is_dir()
