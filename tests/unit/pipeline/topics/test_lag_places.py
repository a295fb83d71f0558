"""Which groups, topics and broker groups a lag job knows from its earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from penstock.pipeline.jobs.lag.files import PLACES_FILE, keep_places, read_places
from penstock.proto.errors import ConfigError


def test_places_that_were_seen_stay_known_and_damage_is_named(tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    assert read_places(checkpoint) == set()
    places = {("readers", "orders", "broker-b"), ("readers", "orders", "broker-a")}
    keep_places(checkpoint, places)
    assert read_places(checkpoint) == places
    keep_places(checkpoint, {("readers", "orders", "broker-a")})
    assert read_places(checkpoint) == {("readers", "orders", "broker-a")}
    assert [path.name for path in tmp_path.iterdir()] == [PLACES_FILE]
    (tmp_path / PLACES_FILE).write_text("[1")
    with pytest.raises(ConfigError, match=rf"{PLACES_FILE} is damaged .*: delete it"):
        read_places(checkpoint)


def test_a_checkpoint_that_only_spark_can_open_keeps_none() -> None:
    checkpoint = "unheard-of://only/spark/knows"
    keep_places(checkpoint, [("readers", "orders", "broker-a")])
    assert read_places(checkpoint) == set()
