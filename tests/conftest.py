"""How the tests are shared among workers: a file stays on one, and those that need Spark share two sessions.

They are the longest pieces of work, and begin first; other long ones are spread over the short ones, which leave no
processor idle. Tests that start many processes fork them. What a worker has collected stays: the garbage collector
does not look through it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

SPARK_ON_STORES = tuple(
    f"tests/spark/test_{name}.py" for name in ("jobs", "jobs_archive", "jobs_audit", "jobs_verify", "store_source")
)
"""Half of the work in Spark; the other files' tests read and write topics."""
LONG, LONG_UNITS = "long units", ("tests/unit/test_packaging.py",)
LONG_UNTIL = 0.8
"""The last file that may be long begins when so many of the units have begun."""
hypothesis.settings.register_profile("penstock", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("penstock")

FORKING = ("tests/cluster/", "tests/crash/", "tests/spark/", "tests/unit/broker/produce/test_transient_store_pool.py")
"""Their tests start processes whose start is not what they test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the decisions of tests/transcripts as they are now")


@pytest.fixture(scope="module", autouse=True)
def _forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.nodeid.startswith(FORKING):
        yield
        return
    from penstock.bench.load import crew
    from penstock.cli.commands import kernels
    from penstock.deploy import processes
    from tests.support.broker import running_broker
    from tests.support.cluster import cluster
    from tests.support.cluster.nursery import start_from_nursery

    with start_from_nursery(crew, kernels, processes, cluster, running_broker):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """With ``NO_SKIPS`` what was asked for by name is done, or fails."""
    report = yield
    if os.environ.get("NO_SKIPS") and report.skipped:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped: {report.longrepr[2]}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not _needs_spark(nodeid):
                return str(super()._split_scope(nodeid))
            return "tests/spark: stores" if nodeid.startswith(SPARK_ON_STORES) else "tests/spark: brokers"

    return Scheduling(config, log)


def _needs_spark(nodeid: str) -> bool:
    return nodeid.startswith("tests/spark/")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Without garbage collection, which takes a fifth of the time; afterwards it knows only what tests make."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's files first, then each folder's spread over those of the units, which are short and seldom wait.

    So there is always something to compute while clusters wait, and at the end no long file is left to one worker.
    """
    folders: dict[str, list[str]] = {}
    for file in dict.fromkeys(_file(item) for item in items):
        folders.setdefault(LONG if file in LONG_UNITS else "/".join(file.split("/")[:2]), []).append(file)
    places = dict.fromkeys(folders.pop("tests/spark", []), -1.0)
    for folder, files in folders.items():
        end = 1.0 if folder == "tests/unit" else LONG_UNTIL
        places |= {file: end * number / len(files) for number, file in enumerate(files)}
    items.sort(key=lambda item: places[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
