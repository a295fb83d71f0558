"""The store source beside a running broker, and the watermark by which retention waits for an archive."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.client import Admin, Producer
from penstock.client.cluster import Calls
from penstock.pipeline.jobs.archive import marks as archive_marks
from penstock.pipeline.stores.directory import list_store
from penstock.proto.errors import ConfigError, WrongStore
from tests.support.cluster.cluster import cluster
from tests.support.waiting import wait_until
from tests.unit.pipeline.stores.test_store_splits import rows


def test_a_store_is_read_beside_its_broker_which_hears_how_far_it_is_archived(tmp_path: Path) -> None:
    with cluster(tmp_path, shards=1, replicas=1) as brokers:
        brokers.start()
        with Admin(brokers.nameservers) as admin:
            admin.create_topic("orders", queues=2)
        with Producer(brokers.nameservers) as producer:
            for number in range(500):
                producer.produce("orders", b"%d" % number)
            producer.flush(60)
            (root,) = (path.parent for path in tmp_path.rglob("commitlog"))
            found = rows(root, topics="orders", upTo="end")
            assert sorted(int(row["body"]) for row in found) == list(range(500))
            everything = list_store(str(root), up_to="end")
            wait_until(lambda: _confirmed_end(root) == everything.end, what="the confirm offset in the checkpoint")
            assert list_store(str(root)).is_open
            assert sorted(int(row["body"]) for row in rows(root, topics="orders")) == list(range(500))
            producer.send("orders", b"later")
            assert len(rows(root, topics="orders", upTo="end")) == 501

        (name,) = _watermarked(brokers.nameservers)
        with pytest.raises(ConfigError, match=f"has the broker groups {name}, and no 'else'"):
            archive_marks.require_groups(brokers.nameservers, ["else"])
        archive_marks.require_groups(brokers.nameservers, [name])
        archive_marks.set_watermarks(brokers.nameservers, "lake", {name: everything.end})
        assert _watermarked(brokers.nameservers) == {name: {"lake": everything.end}}


def _confirmed_end(root: Path) -> int:
    try:
        return list_store(str(root)).end
    except WrongStore as error:
        assert "nothing of its log is confirmed yet" in str(error)
        return 0


def _watermarked(nameservers: str) -> dict[str, dict[str, int]]:
    with contextlib.closing(Calls.to(nameservers)) as calls:
        names = list(calls.directory.shards())
    return {name: dict(marks) for name, marks in archive_marks.archive_marks(nameservers, names).items()}
