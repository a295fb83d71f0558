"""The marks of an archive, by which brokers keep what is not archived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.topics.cluster import Positions
from penstock.pipeline.topics.offsets import Queue, Range
from penstock.proto.errors import ConfigError, StorageError
from tests.unit.pipeline.jobs.archive.test_archive import content, lose, run
from tests.unit.pipeline.jobs.conftest import SEGMENT_BYTES
from tests.unit.pipeline.jobs.test_jobs_without_spark import entry

pytestmark = pytest.mark.usefixtures("here")


def looked(monkeypatch: pytest.MonkeyPatch, **log_offsets: int) -> None:
    """Have brokers tell of topics without messages, in logs of such ends."""
    found = Positions()
    found.log_offsets = {("T", broker): offset for broker, offset in log_offsets.items()}
    monkeypatch.setattr(archive_topic, "require_topic", lambda *given: None)
    monkeypatch.setattr(archive_topic, "_positions", lambda *given: found)


def test_a_mark_of_another_archive_is_refused_before_anything_is_written(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked(monkeypatch, b=69)
    monkeypatch.setattr(archive_topic, "archive_marks", lambda *given: {"b": {"ours": 70}})
    config = archive_topic.Config(namesrv="there:1", topics=("T",), lake=lake.root, archive_name="ours")
    with pytest.raises(ConfigError, match=r"'ours' has the mark 70 at broker group b, and .* would reach 69"):
        archive_topic.run(None, config)


def test_each_lake_has_a_mark_of_its_own(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: dict[str, int] = {"lake": 5}
    monkeypatch.setattr(archive, "require_groups", lambda *given: None)
    monkeypatch.setattr(archive, "archive_marks", lambda namesrv, brokers: dict.fromkeys(brokers, marks))
    monkeypatch.setattr(archive, "set_watermarks", lambda namesrv, name, given: marks.update({name: given["b"]}))
    other = Lake(str(tmp_path / "other"))
    names = [run(store, one, namesrv="there").figures["archive_name"] for one in (lake, other)]
    assert names == [one.mark_name("archive") for one in (lake, other)]
    assert marks == {"lake": 5} | dict.fromkeys(names, 3 * SEGMENT_BYTES)
    assert len({*names, lake.mark_name("archive-topic")}) == 3
    assert names[0] == Lake(f"file://{lake.path}/").mark_name("archive")
    assert all(name.startswith("archive-") and len(name) == len("archive-") + 8 for name in names)
    assert run(store, lake, namesrv="there", archive_name="lake").figures["archive_name"] == "lake"
    assert marks["lake"] == 3 * SEGMENT_BYTES


def test_a_lake_of_topics_has_a_mark_of_its_own_too(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, int]]] = []
    looked(monkeypatch, c=7)
    monkeypatch.setattr(archive_topic, "archive_marks", lambda namesrv, brokers: {key: {} for key in brokers})
    monkeypatch.setattr(archive_topic, "set_watermarks", lambda namesrv, name, marks: told.append((name, marks)))
    lake.commit([replace(entry(0, 100), fileBytes=0)], {})
    config = archive_topic.Config(namesrv="there:1", topics=("T",), lake=lake.root)
    figures = archive_topic.run(None, config).figures
    assert told == [(lake.mark_name("archive-topic"), {"c": 7})]
    assert figures["archive_name"] == lake.mark_name("archive-topic")
    archive_topic.run(None, replace(config, archive_name="lake"))
    assert told[1:] == [("lake", {"c": 7})]


def test_a_lake_of_topics_does_not_go_on_behind_messages_that_a_failover_has_cut_off(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have come in their place, which the next run would pass over."""
    queue = Queue("T", "b", 0)
    asked: list[object] = []

    def positions(options: object, *, needs_all: bool, epochs: object) -> Positions:
        asked.append(epochs)
        found = Positions()
        found[queue], found.epochs, found.cut = Range(0, 400), {queue[:2]: 4}, {queue: 150}
        found.certain = {queue}
        return found

    monkeypatch.setattr(archive_topic, "require_topic", lambda *given: None)
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: SimpleNamespace(positions=positions))
    lake.commit([replace(entry(0, 100), fileBytes=0, epochs=((3, 0),), queues=(("T", 0, 200, 0, 199),))], {})
    config = archive_topic.Config(namesrv="127.0.0.1:1", topics=("T",), lake=lake.root)
    with pytest.raises(StorageError, match=r"messages of queue T/b/0 up to 200, .* cut the log at 150: .*restore"):
        archive_topic.run(None, config)
    assert asked == [{("T", "b"): 3}]


def test_a_mark_that_would_go_back_is_told_before_the_work(
    store: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 3 * SEGMENT_BYTES
    monkeypatch.setattr(archive, "require_groups", lambda *given: None)
    monkeypatch.setattr(archive, "set_watermarks", lambda *given: None)
    monkeypatch.setattr(archive, "archive_marks", lambda namesrv, brokers: {"b": {"x": held}})
    run(store, lake, namesrv="there", archive_name="x")
    held += 1
    lose(lake, lake.entries()[2])
    before = content(lake)
    with pytest.raises(
        ConfigError, match=rf"archive 'x' has the mark {held} at .* b, and .* would reach {held - 1}: set"
    ):
        run(store, lake, namesrv="there", archive_name="x")
    assert content(lake) == before
    run(store, lake, namesrv="there", archive_name="x", tail=True)
