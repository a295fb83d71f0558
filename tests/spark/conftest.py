"""One small Spark session for all tests below; they are skipped, with the reason, where Spark cannot run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Admin
from penstock.pipeline.requirements import java_version
from penstock.proto.errors import PenstockError
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.spark.spark import SETTINGS


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on ``local[2]``, in which a failing task is tried three times."""
    version = java_version()
    if version is None or version < 17:
        pytest.skip(f"Spark needs Java 17, there is {version or 'none'}")
    from penstock.pipeline import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # py4j leaves sockets to the garbage collector
        made = session("penstock-tests", master="local[2,3]", conf=SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    large = {"mappedFileSizeCommitLog": 16 << 20, "maxMessageSize": 4 << 20}
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1, **large) as made:
        made.start()
        yield made


@pytest.fixture
def topic(brokers: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test: two shards of two queues."""
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)[:80]
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def errors(spark: Any) -> Any:
    """Whether a call fails with the error of the given class and text: ``errors(kind, text, call)``."""

    def check(kind: type[PenstockError], text: str, call: Any) -> None:
        with pytest.raises(kind, match=text) as caught:  # Spark's error is one of ours, too
            call()
        assert "\n" not in str(caught.value)
        assert kind.__name__ in str(caught.value)

    return check


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Java, and for Python workers that load their kernels."""
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(900))
