"""A drill's history as it should be, made by hand, for tests to damage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.judge.conditions import (
    Conditions,
    Footprint,
    LogComparison,
    Stop,
    StoreFinding,
    Window,
)
from penstock.judge.history import EVENT, NO_KEY, Events, History, Op, Outcome

SHARDS = ("broker-a", "broker-b")
QUEUES = 2
MS = 1_000_000
FAULT_START, FAULT_END = 4_000 * MS, 6_000 * MS
KEYS = 5
STREAM = 7
READER, MEMBER, WATCHER, SENDER = 0, 1, 2, 3


def rows(count: int) -> Events:
    """``count`` rows in which nothing is known."""
    made = np.zeros(count, dtype=EVENT)
    made["key"], made["shard"], made["queue"], made["position"] = NO_KEY, -1, -1, -1
    return made


@dataclass
class Damaged:
    """Parts of a history that can be changed one by one, and the conditions around it."""

    invoked: Events
    sent: Events
    received: Events
    read: Events
    looks: Events
    conditions: Conditions
    extra: list[Events] = field(default_factory=list)

    @property
    def history(self) -> History:
        events = np.concatenate([self.invoked, self.sent, self.received, self.read, self.looks, *self.extra])
        return History(events, SHARDS, {READER: "reader", MEMBER: "consumer-0", WATCHER: "watcher", SENDER: "producer"})


def clean(count: int = 4000) -> Damaged:
    """``count`` messages over ten seconds to four queues, a fault between the fourth and the sixth, nothing wrong."""
    numbers = np.arange(count)
    times = numbers * 10_000 * MS // count
    sent = rows(count)
    sent["op"], sent["outcome"], sent["client"] = Op.SEND, Outcome.OK, SENDER
    sent["stream"], sent["sequence"] = STREAM, numbers
    sent["key"] = np.where(numbers % 3 == 0, (numbers // 3) % KEYS, NO_KEY)
    where = np.where(sent["key"] != NO_KEY, sent["key"] % (len(SHARDS) * QUEUES), numbers % (len(SHARDS) * QUEUES))
    sent["shard"], sent["queue"] = where // QUEUES, where % QUEUES
    for queue in np.unique(where):
        mine = where == queue
        sent["offset"][mine] = np.arange(mine.sum())
    sent["start_ns"], sent["end_ns"] = times, times + 2 * MS
    sent["crc"] = numbers * 2654435761 % (1 << 32)
    sent["epoch"] = np.where((sent["shard"] == 0) & (times >= FAULT_START), 2, 1)
    sent["position"] = numbers * 1100
    received = sent.copy()
    received["op"], received["client"], received["epoch"] = Op.RECEIVE, MEMBER, 0
    received["start_ns"], received["end_ns"] = times + 2 * MS, times + 5 * MS
    read = sent.copy()
    read["op"], read["client"], read["epoch"] = Op.READ, READER, 0
    read["start_ns"] = read["end_ns"] = 11_000 * MS
    invoked = rows(1)
    invoked["op"], invoked["stream"], invoked["sequence"], invoked["offset"] = Op.INVOKE, STREAM, 0, count
    looks = rows(20)
    looks["op"], looks["client"], looks["shard"], looks["queue"] = Op.POSITION, WATCHER, 0, 1
    looks["start_ns"] = looks["end_ns"] = np.arange(20) * 500 * MS
    looks["sequence"] = 0
    looks["position"] = np.arange(20) * 10 + 5
    looks["offset"] = np.arange(20) * 10
    conditions = Conditions(
        drill="master-kill",
        seed=1,
        mode="durable",
        shards=list(SHARDS),
        queues=QUEUES,
        command="penstock drill master-kill --seed 1",
        began_ns=0,
        ended_ns=12_000 * MS,
        windows=[Window("kill", "broker-a-0", FAULT_START, FAULT_END)],
        duplicates_allowed=10,
        recovery_limit_ms=3000,
        settled_s=1.5,
        logs=[LogComparison("broker-a", "broker-a-0", "broker-a-1", 0, 10_000)],
        stores=[StoreFinding("broker-a-0", "store", 1000)],
        footprints=[
            Footprint("broker-a-1", True, {"own_mib": 100, "files": 50, "threads": 20}, {"own_mib": 104, "files": 50})
        ],
        stops=[Stop("broker-a-0", 0.5, 0)],
    )
    return Damaged(invoked, sent, received, read, looks, conditions)


def given_back(damaged: Damaged) -> None:
    """Every 64th message was given back, came again, and every other one of these was given up."""
    failed = damaged.received[damaged.received["sequence"] % 64 == 0].copy()
    given_up = failed["sequence"] % 128 == 0
    tried, kept = failed.copy(), failed.copy()
    tried["op"], tried["outcome"] = Op.GIVE_BACK, Outcome.UNKNOWN
    kept["op"], kept["outcome"] = Op.GIVE_BACK, Outcome.OK
    again, returned = failed.copy(), failed.copy()
    again["op"], again["queue"], again["offset"] = Op.CAME_AGAIN, 0, np.arange(len(failed))
    returned["op"], returned["queue"], returned["offset"] = Op.RETURNED, 0, np.arange(len(failed))
    dead = failed[given_up].copy()
    dead["op"], dead["queue"], dead["offset"] = Op.DEAD, 0, np.arange(len(dead))
    damaged.extra = [tried, kept, tried[given_up], kept[given_up], again, again[:3], returned, dead]
