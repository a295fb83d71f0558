"""Exactly-once writers against a model: any order of attempts, decisions, aborts, time-outs and restarts.

Two shards, the first the coordinator, and a job that may stop between any two of its steps. What consumers see is, at
every moment, a beginning of each decided batch at each shard, once; and in the end every decided batch, whole and once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.features.exactly_once import exactly_once
from penstock.broker.features.exactly_once.staging_table import StagedId, StagingTable
from penstock.proto.errors import DiskFull, InvalidArgument, StagedDataGone, StaleProducer
from tests.support.broker.kit import Kit, close_all

SHARDS = ("broker-a", "broker-b")
PARTITIONS = 2
CHUNKS = 2
FAR_FUTURE_MS = 1 << 50


class Job:
    """One run of the writing job: where it is in its batch."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.batch = -1
        self.keys: dict[str, dict[str, int]] = {}
        self.is_open = False


class ExactlyOnce(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.runs = (f"run-{number}" for number in itertools.count())
        self.names = (f"key-{number}" for number in itertools.count())
        self.shards = {name: self.loop.run_until_complete(self._start(name)) for name in SHARDS}
        self.job, self.zombie = Job(next(self.runs)), None
        self.following = 0  # the batch that a job begins with, as Spark's commit log has it
        self.decided: dict[int, dict[str, dict[str, int]]] = {}
        self.rows: dict[str, list[tuple[str, bytes]]] = {}  # key -> (shard, row)
        self._introduce()

    async def _start(self, name: str) -> Kit:
        parts = Kit(brokerName=name)
        parts.add_topic()
        return parts

    def _introduce(self) -> None:
        for name, parts in self.shards.items():
            parts.know_coordinators({other: self.shards[other] for other in SHARDS if other != name})

    def do(self, call: object) -> object:
        return self.loop.run_until_complete(call)  # type: ignore[arg-type]

    def teardown(self) -> None:
        """Whatever happened, in the end the brokers, or a new run, bring every decided batch out."""
        for _ in range(2):
            for name in SHARDS:
                self.shards[name][exactly_once.ExactlyOnce].staging._not_before.clear()
                self.do(self.shards[name][exactly_once.ExactlyOnce].staging.settle_expired(FAR_FUTURE_MS))
        self.seen_is_allowed()
        expected = Counter(row for keys in self.decided.values() for key in keys for _, row in self.rows[key])
        found = Counter(row for parts in self.shards.values() for row in parts.bodies())
        assert found == expected
        assert not any(parts.tables[StagingTable].staged for parts in self.shards.values())
        self.loop.close()
        close_all()

    @rule()
    def kill_the_job(self) -> None:
        self.zombie, self.job = self.job, Job(next(self.runs))

    @rule(partitions=st.integers(0, PARTITIONS), repeated=st.booleans())
    def write_the_batch(self, partitions: int, repeated: bool) -> None:
        """Tasks stage; ``partitions`` fewer than all: a task died, or the job did."""
        job = self.job
        if not job.is_open:
            self.do(self.shards["broker-a"][exactly_once.ExactlyOnce].writers.open_writer("w", job.run))
            job.is_open = True
        job.batch, job.keys = self.following, {}
        state = self.do(self.shards["broker-a"][exactly_once.ExactlyOnce].writers.query_writer("w"))
        if state is not None and state.decided >= job.batch:  # type: ignore[attr-defined]
            return  # already decided: the tasks drain their input
        for partition in range(partitions):
            for attempt in range(2 if repeated else 1):
                key = next(self.names)
                self.rows[key] = []
                for shard, chunk in itertools.product(SHARDS, range(CHUNKS)):
                    row = b"%d/%d/%s/%d" % (job.batch, partition, shard.encode(), chunk)
                    mark = (7, partition, job.batch << 24 | chunk)
                    self.do(
                        self.shards[shard].stage([row], batch=job.batch, key=key, chunk=chunk, mark=mark, queue_id=0)
                    )
                    self.rows[key].append((shard, row))
                if attempt == 0:
                    job.keys[key] = dict.fromkeys(SHARDS, CHUNKS)

    @rule()
    def decide(self) -> None:
        self._decide(self.job)

    @rule()
    def a_zombie_decides(self) -> None:
        if self.zombie is not None:
            self._decide(self.zombie)

    def _decide(self, job: Job) -> None:
        if job.batch < 0 or not job.is_open:
            return
        try:
            state = self.do(
                self.shards["broker-a"][exactly_once.ExactlyOnce].writers.decide("w", job.run, job.batch, job.keys)
            )
        except (StaleProducer, StagedDataGone, InvalidArgument):
            return
        if state.decided == job.batch and job.batch not in self.decided:  # type: ignore[attr-defined]
            assert state.keys == job.keys  # type: ignore[attr-defined]
            self.decided[job.batch] = job.keys

    @rule(shard=st.sampled_from(SHARDS), fails_after=st.none() | st.integers(0, 3))
    def publish(self, shard: str, fails_after: int | None) -> None:
        """The job publishes at one shard; the broker may die in the middle."""
        number = self.job.batch
        keys = self.decided.get(number)
        if not keys or number != self.following:
            return
        parts = self.shards[shard]
        if fails_after is not None:
            parts.fail_appends(fails_after)
        try:
            self.do(
                parts[exactly_once.ExactlyOnce].staging.publish(
                    "w", number, {key: chunks[shard] for key, chunks in keys.items()}
                )
            )
        except DiskFull:
            self.restart(shard)
        finally:
            parts.store.__dict__.pop("append", None)

    @rule()
    def finish(self) -> None:
        keys = self.decided.get(self.following)
        if keys is None or not self.job.is_open:
            return
        if keys and any(
            parts.tables[StagingTable].published_batch("w") < self.following for parts in self.shards.values()
        ):
            return
        self.do(self.shards["broker-a"][exactly_once.ExactlyOnce].writers.finish("w", self.following))
        self.following += 1

    @rule(asks=st.booleans())
    def abort(self, asks: bool) -> None:
        """The job asks what is decided and drops the rest, or drops all, and the shards ask."""
        job = self.job
        if job.batch < 0:
            return
        keys = list(job.keys)
        if asks:
            decided = self.do(self.shards["broker-a"][exactly_once.ExactlyOnce].writers.give_up("w", job.batch, keys))
            keys = [key for key in keys if key not in decided]  # type: ignore[operator]
        for parts in self.shards.values():
            self.do(parts[exactly_once.ExactlyOnce].staging.drop("w", job.batch, keys))

    @rule(shard=st.sampled_from(SHARDS))
    def time_passes(self, shard: str) -> None:
        self.shards[shard][exactly_once.ExactlyOnce].staging._not_before.clear()
        self.do(self.shards[shard][exactly_once.ExactlyOnce].staging.settle_expired(FAR_FUTURE_MS))

    @rule(shard=st.sampled_from(SHARDS))
    def restart(self, shard: str) -> None:
        async def again() -> Kit:
            return Kit.restarted(self.shards[shard])

        self.shards[shard].store.__dict__.pop("append", None)
        self.shards[shard] = self.do(again())  # type: ignore[assignment]
        self._introduce()

    @invariant()
    def seen_is_allowed(self) -> None:
        for name, parts in self.shards.items():
            seen = Counter(parts.bodies())
            allowed = Counter(
                row for keys in self.decided.values() for key in keys for s, row in self.rows[key] if s == name
            )
            assert seen <= allowed, f"{name}: {seen - allowed} is seen though nobody decided it, or twice"
            for each in parts.tables[StagingTable].staged:
                assert isinstance(each, StagedId)


ExactlyOnce.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestExactlyOnce = ExactlyOnce.TestCase
