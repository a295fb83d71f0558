"""``epochFileCheckpoint``: whole at every moment, and never guessed."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from penstock.broker.broker import FEATURES
from penstock.broker.config import BrokerConfig
from penstock.broker.group.epoch_file import EpochFile
from penstock.broker.opening import open_store
from penstock.formats.epochs import Epoch, encode
from penstock.proto.errors import Corrupt, StorageError, WrongStore
from penstock.replication import EpochHistory
from tests.support.broker.running_broker import small_config
from tests.support.broker.stores import batch
from tests.support.crash.failing_disk import FailingDisk
from tests.support.crash.simulated_disk import PowerCut, SimulatedDisk

ONE = EpochHistory([Epoch(1, 0)])
TWO = EpochHistory([Epoch(1, 0), Epoch(4, 700)])


def test_a_new_store_begins_with_one_epoch_and_keeps_what_it_is_given(tmp_path: Path) -> None:
    file = EpochFile.open(tmp_path, is_new=True)
    assert not (tmp_path / "epochFileCheckpoint").exists()
    file.begin_first()
    file.begin(4, 700)
    assert EpochFile.open(tmp_path, is_new=False).history == TWO
    assert (tmp_path / "epochFileCheckpoint.bak").read_bytes() == encode(ONE.entries)
    with pytest.raises(ValueError, match="epoch 4 cannot begin after epoch 4"):
        file.begin(4, 800)


def test_epochs_that_wrote_nothing_leave_no_trace(tmp_path: Path) -> None:
    file = EpochFile.open(tmp_path, is_new=True)
    file.begin_first()
    for epoch in range(2, 2000):
        file.begin(epoch, 700)
    assert file.history == EpochHistory([Epoch(1, 0), Epoch(1999, 700)])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "fewer than two lines"),
        (encode(TWO.entries)[:-3], "crc"),
        (encode(TWO.entries).replace(b"4-700", b"4-701"), "crc"),
        (b"1\n0\nv2:{}\n", "crc"),
        (encode(ONE.entries).replace(b"1\n", b"2\n", 1), "line 1 says 2"),
        (b"\x00" * 64, "fewer than two lines"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_nothing_is_touched(tmp_path: Path, content: bytes, words: str) -> None:
    config = small_config(tmp_path)
    with open_store(config, FEATURES) as opened:
        opened.epochs.begin(4, 0)
        opened.store.close()
    path = config.store.root / "epochFileCheckpoint"
    path.write_bytes(content)
    before = _content(config)
    with pytest.raises(
        Corrupt, match=f"(?s)epochFileCheckpoint: not an epoch file: .*{words}.*epochFileCheckpoint.bak"
    ):
        open_store(config, FEATURES).__enter__()
    assert _content(config) == before


def test_a_file_that_is_missing_is_not_made_up(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with open_store(config, FEATURES) as opened:
        opened.store.close()
    (config.store.root / "epochFileCheckpoint").unlink()
    with pytest.raises(Corrupt, match="missing, although the store has been in use") as error:
        open_store(config, FEATURES).__enter__()
    advice = re.search(r"its content is '(.*)'$", str(error.value))
    assert advice is not None, "the message says how to go on"
    assert advice[1].encode().decode("unicode_escape").encode() == encode(ONE.entries)


def test_a_file_from_the_future_keeps_a_broker_from_being_master(tmp_path: Path) -> None:
    """An epoch that begins behind the log's end: the broker has not caught up with it, or its log lost bytes."""
    config = small_config(tmp_path)
    with open_store(config, FEATURES) as opened:
        opened.epochs.replace(TWO)
        opened.store.close()
    with pytest.raises(WrongStore, match=r"epoch 4 begins at 700, the log ends at 0: .* may follow a master"):
        open_store(config, FEATURES).__enter__()
    slave = small_config(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="127.0.0.1:1")
    with open_store(slave, FEATURES) as opened:
        assert opened.epochs.history == TWO
        opened.store.close()


def test_a_master_that_was_killed_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with open_store(config, FEATURES) as opened:
        end = opened.store.append("orders", batch("orders", [b"one"]), queues=1).end
        opened.store.abandon()
    for epoch in (2, 3):  # what was written in the second one may be lost here, and not at a slave
        with open_store(config, FEATURES) as opened:
            assert opened.epochs.history == EpochHistory([Epoch(1, 0), Epoch(epoch, end)])
            opened.store.abandon()


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_power_cut_leaves_the_old_history_or_the_new_one(nth: int) -> None:
    disk = SimulatedDisk(nth)
    disk.make_directories("/srv/store")
    disk.sync_directory("/srv")
    disk.sync_directory("/")
    root = Path("/srv/store")
    EpochFile(root, EpochHistory(), disk).replace(ONE)
    disk.cut_after = nth
    file = EpochFile.open(root, is_new=False, disk=disk)
    done = True
    try:
        file.replace(TWO)
    except PowerCut:
        done = False
    left = EpochFile.open(root, is_new=False, disk=disk.cut()).history
    assert left == TWO if done else left in (ONE, TWO)


@pytest.mark.parametrize("kind", ["open", "pwrite", "truncate", "sync", "sync_directory"])
def test_a_disk_that_fails_leaves_the_history_as_it_was(tmp_path: Path, kind: str) -> None:
    EpochFile(tmp_path, EpochHistory(), FailingDisk()).replace(ONE)
    disk = FailingDisk(kind, 3 if kind == "open" else 2, errno.EIO)
    file = EpochFile.open(tmp_path, is_new=False, disk=disk)
    with pytest.raises(StorageError, match="epochFileCheckpoint"):
        file.replace(TWO)
    assert disk.failed
    assert file.history == ONE
    assert EpochFile.open(tmp_path, is_new=False).history in (ONE, TWO)
    assert not list(tmp_path.glob("*.tmp*"))


def _content(config: BrokerConfig) -> dict[str, bytes]:
    root = config.store.root
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
