"""SIGKILL of whole Spark jobs, driver, Java and workers at once: a lake and a stream's files stay true, and complete.

``SINK_KILLS=n`` (``make test-spark-full`` sets it) kills each n times. Not beside other tests: starting Java again and
again leaves clusters on two cores without the time to keep their leases.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.bench.spark.generate import generate
from penstock.client import Admin, Producer
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.requirements import java_version
from tests.support.cluster.cluster import cluster
from tests.support.spark.spark import SETTINGS
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
parquet = pytest.importorskip("pyarrow.parquet")
DeltaTable = pytest.importorskip("deltalake").DeltaTable
KILLS = int(os.environ.get("SINK_KILLS", "0"))
PER_RUN_MAX = 3
"""A run is killed behind at most so many parts of its work."""
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif((java_version() or 0) < 17, reason="Spark needs Java 17"),
    pytest.mark.skipif(not KILLS, reason="SINK_KILLS is not set: make test-spark-full sets it"),
]


def randomly() -> random.Random:
    seed = int(os.environ.get("SINK_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"SINK_SEED={seed}")
    return random.Random(seed)


class Job:
    """A process that starts Java and workers; what it says goes to a file."""

    def __init__(self, says: Path, *command: str) -> None:
        self._says = says
        with open(says, "wb") as out:
            self._process = subprocess.Popen([sys.executable, "-m", *command], stdout=out, stderr=out)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """The process and everything that it started."""
        known: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            job = psutil.Process(self._process.pid)
            job.suspend()  # it starts nothing more
            known = [job, *job.children(recursive=True)]
        for process in known:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(60)
        psutil.wait_procs(known, 60)

    def killed_after(self, is_there: Callable[[], bool], chosen: random.Random) -> bool:
        """Kill it a moment after that. True if it was still running."""
        try:
            wait_until(lambda: is_there() or not self.is_running(), 120, "the job's progress")
            time.sleep(chosen.random() * 0.4)
            return self.is_running()
        finally:
            self.kill()

    def finish(self) -> None:
        try:
            assert self._process.wait(300) == 0, self._says.read_text()[-2000:]
        finally:
            self.kill()


def in_lake(lake: Lake) -> list[int]:
    """Positions of all messages that readers see, those of other programs too; commits must say what files hold."""
    found: list[int] = []
    for entry in lake.entries():
        paths = [f"{lake.path}/messages/{file.name}" for file in entry.files]
        held = [parquet.read_table(path, columns=["physicalOffset"]) for path in paths]
        positions = [position for table in held for position in table["physicalOffset"].to_pylist()]
        assert len(positions) == entry.rows
        found += positions
    if found:
        table = DeltaTable(f"{lake.path}/messages").to_pyarrow_table(columns=["physicalOffset"])
        assert sorted(table["physicalOffset"].to_pylist()) == sorted(found)
    return found


def test_an_archive_killed_at_any_moment_shows_whole_files_and_is_completed(tmp_path: Path) -> None:
    chosen = randomly()
    store, lake = tmp_path / "store", Lake(str(tmp_path / "lake"))
    records = ((PER_RUN_MAX + 1) * KILLS + 2) * 3700  # of which a log file holds about so many
    size = generate(store, records=records, body_bytes=100, segment_bytes=1 << 20)
    arguments = ["--store", str(store), "--lake", lake.root, "--segments-per-commit", "1", "--tail"]
    command = ["penstock.cli", "pipeline", "archive", *arguments]
    for name in ("spark.driver.memory", "spark.ui.enabled", "spark.driver.extraJavaOptions"):
        command += ["--conf", f"{name}={SETTINGS[name]}"]

    def done() -> int:
        return len(lake.entries())

    count = 0
    for _ in range(2 * KILLS):
        wanted = done() + 1 + chosen.randrange(PER_RUN_MAX)
        job = Job(tmp_path / "said", *command)
        count += job.killed_after(lambda wanted=wanted: done() >= wanted, chosen)  # type: ignore[misc]
        positions = in_lake(lake)
        assert len(positions) == len(set(positions))
        if count == KILLS:
            break
    assert count == KILLS
    Job(tmp_path / "said", *command).finish()
    positions = in_lake(lake)
    assert len(positions) == len(set(positions)) == records
    assert max(positions) < size


def test_a_stream_into_files_killed_at_any_moment_has_every_message_once(tmp_path: Path) -> None:
    chosen = randomly()
    rows = (KILLS + 5) * PER_RUN_MAX * 200  # of which a batch has 200
    with cluster(tmp_path / "brokers", shards=1, replicas=1) as brokers:
        brokers.start()
        with Admin(brokers.nameservers) as admin:
            admin.create_topic("numbers", queues=3)
        with Producer(brokers.nameservers) as producer:
            for number in range(rows):
                producer.produce("numbers", b"%d" % number)
            producer.flush(60)
        command = ["tests.support.spark.stream_job", brokers.nameservers, "numbers", str(tmp_path)]
        commits = tmp_path / "checkpoint" / "commits"

        def done() -> int:
            """Batches; Spark keeps the notes of the last hundred."""
            return max((int(path.name) + 1 for path in commits.glob("*") if path.name.isdecimal()), default=0)

        count = 0
        for _ in range(2 * KILLS):
            wanted = done() + 1 + chosen.randrange(PER_RUN_MAX)
            job = Job(tmp_path / "said", *command)
            count += job.killed_after(lambda wanted=wanted: done() >= wanted, chosen)  # type: ignore[misc]
            if count == KILLS:
                break
        assert count == KILLS
        Job(tmp_path / "said", *command).finish()
    assert sorted(int(body) for body in bodies_of(tmp_path / "rows")) == list(range(rows))


def bodies_of(folder: Path) -> list[bytes]:
    """What readers of Spark's log of the written files see: other files are a killed batch's."""
    lines = [
        json.loads(line)
        for path in (folder / "_spark_metadata").iterdir()
        if path.name[0].isdigit()
        for line in path.read_text().splitlines()[1:]
    ]
    files = {line["path"].removeprefix("file://") for line in lines}  # a later log of the log repeats them
    tables = [parquet.read_table(path, columns=["body"]) for path in sorted(files)]
    return [body for table in tables for body in table["body"].to_pylist()]
