"""``make demo-spark``: the flights as a stream through Spark, a death in the middle, a lake, SQL, replay, audit.

Every flight is counted at five places: the data set, its topic, the topic of sums that the stream writes exactly once,
the lake, and a topic replayed from the lake. All of them must agree.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import console, print_table
from penstock.cli.signals import interrupts

from .stage import Stage, fresh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from penstock.client import Message, SendReceipt
    from penstock.drill.load.sending import Notes

    from .flights import Flight

SOURCE, SUMS, REPLAYED = "flights", "delays", "flights-replayed"
BATCHES = 6
SLICE = 1000
"""Flights that are sent in one call; each has its receipt."""
JOB = "penstock.demo.spark_job"
JOB_TIMEOUT_S = 900.0


@click.command()
@click.option("--dir", "directory", default=".demo-spark", show_default=True, type=click.Path(file_okay=False))
@click.option("--flights", default=336_776, show_default=True, type=click.IntRange(1_000, 336_776), help="The first N.")
def demo_spark(directory: str, flights: int) -> None:
    """Flights through a topic into a stream of sums, exactly once; a lake, SQL, a replay; the numbers agree.

    The streaming job is killed with SIGKILL once. Nothing is left running, everything is under DIR.
    """
    with interrupts(), contextlib.closing(Story(fresh(Path(directory).absolute()), flights)) as story:
        agrees = story.play()
    sys.exit(0 if agrees else 1)


def _message(flight: Flight) -> Message:
    from penstock.client import Message

    keys, sharding_key = [f"flight-{flight.number}"], flight.tail_number or None
    return Message(SOURCE, flight.body, tag=flight.carrier, keys=keys, sharding_key=sharding_key)


def _note(notes: Notes, number: int, start_ns: int, body: bytes, future: Future[SendReceipt]) -> None:
    notes(future.exception() or future.result(), 0, number, start_ns, body)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Processes that start meanwhile write there for good: Java and Spark's Python workers talk of themselves."""
    own = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


class Story(Stage):
    def __init__(self, folder: Path, flights: int) -> None:
        super().__init__(folder)
        self._flights = flights
        self._job: subprocess.Popen[bytes] | None = None
        self._checkpoint = folder / "checkpoint"
        self._history = folder / "history"
        self._stores: dict[str, str] = {}
        self._totals: dict[str, tuple[int, int]] = {}

    def play(self) -> bool:
        """Run all of it. True if every place agrees."""
        self._start_cluster()
        self._produce()
        self._start_stream()
        spark = self._start_spark()  # Java starts while the stream goes on
        try:
            self._end_stream()
            self._count_topic(spark, SOURCE)
            self._count_sums(spark)
            self._archive(spark)
            self._replay(spark)
        finally:
            spark.stop()
        return self._judge()

    def close(self) -> None:
        if self._job is not None:
            self._kill_job(self._job)
        super().close()

    def _start_cluster(self) -> None:
        from penstock.client import Admin

        settings = {"mappedFileSizeCommitLog": str(32 << 20)}  # small files: the archive takes sealed ones
        self._cluster.up(shards=2, replicas=1, nameservers=1, mode="flush", base_port=0, settings=settings)
        self._namesrv = self._cluster.plan.nameserver_addresses
        self._stores = {
            node.name.rsplit("-", 1)[0]: str(self._cluster.directory / node.name / "store")
            for node in self._cluster.plan.nodes
            if node.is_broker
        }
        with Admin(self._namesrv) as admin:
            for topic in (SOURCE, SUMS, REPLAYED):
                admin.create_topic(topic, queues=4)
        self._say("cluster up: 2 shards, log files of 32 MiB")

    def _produce(self) -> None:
        from penstock.client import Producer
        from penstock.drill.load.sending import Notes
        from penstock.judge.history import Recorder

        from .flights import NO_DELAY, read_flights
        from .spark_job import END

        self._history.mkdir()
        shards = sorted(self._stores)
        recorder = Recorder(self._history / "producer.history", 1, "demo-spark", shards)
        notes = Notes(recorder, shards, keys=0)
        # As they left: the stream's watermark passes over flights that come months behind others.
        flights = sorted(itertools.islice(read_flights(), self._flights), key=operator.attrgetter("left"))
        gc.disable()  # nothing here is a circle, and the collector would look at whatever is on its way
        with Producer(self._namesrv, group="demo-spark") as producer:
            for first in range(0, len(flights), SLICE):
                together = flights[first : first + SLICE]
                began_ns = time.monotonic_ns()
                futures = producer.send_batch_async([_message(flight) for flight in together], timeout_s=60)
                for number, (flight, future) in enumerate(zip(together, futures, strict=True), first):
                    future.add_done_callback(functools.partial(_note, notes, number, began_ns, flight.body))
            producer.flush(timeout_s=120)
            began_ns = time.monotonic_ns()
            notes(producer.send(SOURCE, END), 0, len(flights), began_ns, END)
        gc.enable()
        recorder.close()
        count, delay = len(flights), sum(flight.delay for flight in flights if flight.delay != NO_DELAY)
        self._totals["data set"] = count, delay
        self._say(f"{count:,} flights produced and acknowledged, key = tail number, tag = carrier")

    def _start_stream(self) -> None:
        """The job is killed in the middle, and started again."""
        job = self._start_job()
        self._await(job, lambda: self._committed() >= BATCHES // 2 - 1, "the job's first half")
        self._kill_job(job)
        self._say(f"stream: {self._committed() + 1} of about {BATCHES} batches done, job killed with SIGKILL")
        self._start_job()

    def _end_stream(self) -> None:
        assert self._job is not None
        self._await(self._job, lambda: False, "the job's end")
        self._say(f"stream: started again from its checkpoint, {self._committed() + 1} batches in all")

    def _start_job(self) -> subprocess.Popen[bytes]:
        batch = str(max(1, self._flights // BATCHES))
        with (self._folder / "job.log").open("ab") as log:
            self._job = subprocess.Popen(
                [sys.executable, "-m", JOB, self._namesrv, SOURCE, SUMS, str(self._checkpoint), batch],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._job

    def _await(self, job: subprocess.Popen[bytes], condition: Any, what: str) -> None:
        """Return when the condition holds, or the job has ended. Raises ClickException: it failed, or takes long."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while (code := job.poll()) is None and not condition():
            if time.monotonic() >= deadline:
                raise click.ClickException(f"{what} did not come within {JOB_TIMEOUT_S:.0f} s")
            self._progress.show(f"waiting for {what}")
            time.sleep(0.1)
        if code:
            raise click.ClickException(f"the streaming job failed, see {self._folder / 'job.log'}")

    @staticmethod
    def _kill_job(job: subprocess.Popen[bytes]) -> None:
        """Python, the JVM and its workers: one process group, which this process made."""
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(30)

    def _committed(self) -> int:
        """The last batch that Spark has noted as done, -1 without one."""
        folder = self._checkpoint / "commits"
        if not folder.exists():
            return -1
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)

    def _start_spark(self) -> Any:
        from penstock.pipeline import session

        from .spark_job import CONF

        log = self._folder / "spark.log"
        try:
            with _stderr_into(log):
                spark = session("penstock-demo-audit", master="local[2,4]", conf=CONF)
        except RuntimeError as error:  # pyspark's, which names no reason: Java has written it down
            raise click.ClickException(f"Spark did not start, see {log}: {error}") from error
        spark.sparkContext.setLogLevel("OFF")
        return spark

    def _read(self, spark: Any, topic: str) -> Any:
        from penstock.pipeline import topic as read

        return read(spark, self._namesrv, topic, columns=["body"])

    def _count_topic(self, spark: Any, topic: str) -> None:
        from .spark_job import count_flights

        self._totals[f"topic {topic}"] = count_flights(self._read(spark, topic))
        self._say(f"topic {topic} read as a table")

    def _count_sums(self, spark: Any) -> None:
        from .spark_job import count_sums

        flights, delay, sums = count_sums(self._read(spark, SUMS))
        self._totals[f"topic {SUMS}"] = flights, delay
        self._say(f"{sums:,} sums, of each carrier and hour, as the stream left them")

    def _archive(self, spark: Any) -> None:
        from penstock.pipeline.jobs.archive import job as archive
        from penstock.pipeline.lake.lake import Lake

        from .spark_job import count_flights

        lake = str(self._folder / "lake")
        stores, names = tuple(self._stores.values()), tuple(self._stores)
        # The newest log file of a running broker still grows: the archive has it when the broker has stopped.
        self._cluster.down()
        self._require(archive.run(spark, archive.Config(store=stores, broker_name=names, lake=lake, tail=True)))
        self._audit(spark)
        self._cluster.up()
        opened = Lake(lake)
        frame = spark.read.parquet(*opened.paths_of(file for entry in opened.readable() for file in entry.files))
        frame.createOrReplaceTempView("lake")
        self._totals["lake"] = count_flights(spark.sql(f"select body from lake where topic = '{SOURCE}'"))  # noqa: S608
        self._say(f"archived into a Delta table under {lake}; in SQL, the carriers that are late most:")
        delay = "round(avg(cast(get_json_object(cast(body as string), '$.arr_delay') as int)), 1)"
        worst = spark.sql(
            f"select tags as carrier, count(*) as flights, {delay} as delay from lake "  # noqa: S608
            f"where topic = '{SOURCE}' and tags is not null group by tags order by delay desc limit 3"
        )
        print_table(["carrier", "flights", "mean delay, min"], [[str(cell) for cell in row] for row in worst.collect()])

    def _audit(self, spark: Any) -> None:
        """Every acknowledged flight is in the stores, once, where its receipt says, and in order."""
        from penstock.pipeline.jobs import audit

        stores, names = tuple(self._stores.values()), tuple(self._stores)
        config = audit.Config(history=str(self._history), store=stores, broker_name=names, topic=SOURCE)
        report = audit.run(spark, config)
        report.write(self._folder / "audit.html")
        self._require(report)
        self._say(f"audited: {report.figures['events']:,} receipts against the stores, {self._folder / 'audit.html'}")

    def _replay(self, spark: Any) -> None:
        from penstock.pipeline.jobs import replay

        lake = str(self._folder / "lake")
        config = replay.Config(lake=lake, namesrv=self._namesrv, topic=SOURCE, to_topic=REPLAYED)
        self._require(replay.run(spark, config))
        self._count_topic(spark, REPLAYED)

    @staticmethod
    def _require(report: Any) -> None:
        if not report.ok:
            raise click.ClickException(f"the job {report.job} failed: {report.problems}")

    def _judge(self) -> bool:
        self._progress.clear()
        print_table(
            ["place", "flights", "minutes of delay"],
            [[place, f"{count:,}", f"{delay:,}"] for place, (count, delay) in self._totals.items()],
        )
        agrees = len(set(self._totals.values())) == 1
        taken = time.monotonic() - self._began
        console().print("the numbers agree" if agrees else "THE NUMBERS DO NOT AGREE", f"({taken:.0f} s)")
        (self._folder / "totals.json").write_text(json.dumps(self._totals, indent=1))
        return agrees


if __name__ == "__main__":
    demo_spark()
