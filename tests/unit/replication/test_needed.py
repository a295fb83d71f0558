"""What of the log a master must keep for its slaves."""

from __future__ import annotations

from penstock.replication.config import ReplicationConfig
from penstock.replication.master.progress import Progress


def table() -> Progress:
    return Progress(ReplicationConfig(), end=1000, flushed=1000, confirm=1000)


def test_without_slaves_nothing_is_needed() -> None:
    assert table().needed_from(0.0, 60) is None


def test_a_slave_needs_what_it_has_not_synced() -> None:
    progress = table()
    first = progress.connect(1, "a:1", 300, now=0.0)
    assert progress.needed_from(1.0, 60) == 300
    first.sent = 900
    progress.on_ack(first, 800, 500, now=2.0)
    assert progress.needed_from(2.0, 60) == 500
    progress.connect(2, "a:2", 400, now=2.0)
    assert progress.needed_from(2.0, 60) == 400


def test_a_slave_that_left_counts_for_a_while() -> None:
    progress = table()
    first = progress.connect(1, "a:1", 300, now=0.0)
    progress.disconnect(first, "gone")
    assert progress.needed_from(60.0, 60) == 300
    assert progress.needed_from(60.1, 60) is None
