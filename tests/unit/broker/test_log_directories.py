"""A log in several directories, as a broker's file names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.opening import open_store
from penstock.proto.errors import WrongStore
from tests.support.broker.running_broker import small_config


def test_each_directory_of_a_list_is_made_at_the_first_start(tmp_path: Path) -> None:
    config = small_config(tmp_path, storePathCommitLog=f"{tmp_path}/disk1, {tmp_path}/disk2")
    with open_store(config, ()) as opened:
        assert opened.store.end_offset == 0
        opened.store.close()
    assert (tmp_path / "disk1").is_dir()
    assert (tmp_path / "disk2").is_dir()


def test_a_directory_without_new_files_is_not_made_where_the_log_names_it_too(tmp_path: Path) -> None:
    """An empty one in its place would hide that a disk is not mounted, and the log began without its files."""
    paths = {"storePathCommitLog": f"{tmp_path}/new,{tmp_path}/old", "readOnlyCommitLogStorePaths": f"{tmp_path}/old"}
    with pytest.raises(WrongStore, match="old: this directory of readOnlyCommitLogStorePaths does not exist: mount it"):
        open_store(small_config(tmp_path, **paths), ()).__enter__()
    assert not (tmp_path / "old").exists()
