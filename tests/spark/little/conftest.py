"""The shared session as one that was started for little work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.pipeline.spark.sessions import SHORT, SHORT_MARK


@pytest.fixture
def spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its settings for queries; a test fails when a Python worker would be started."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a Python worker is wanted in a short session")

    settings = {name: value for name, value in SHORT.items() if name.startswith(("spark.sql.", SHORT_MARK))}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.mapInArrow", refuse)
    monkeypatch.setattr("penstock.pipeline.jobs.framework.reading.register", refuse)
    yield spark
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
