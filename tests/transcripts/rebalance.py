"""Who gets which queue, told as a strategy, brokers with their numbers of queues, and members."""

from __future__ import annotations

from penstock.client.consume.group.rebalance import (
    Configured,
    MachineRoom,
    Strategy,
    allocate,
    strategy_named,
)
from penstock.client.message import MessageQueue
from penstock.proto.errors import ConfigError


def decided(lines: list[str]) -> list[str]:
    """The queues of each member, or why there is no answer."""
    (line,) = lines
    name, *words = line.split()
    given = dict(word.split("=", 1) for word in words)
    queues = [each for part in given["queues"].split("+") for each in _queues(part)]
    try:
        strategy = _strategy(name, given)
        members = given["members"].split(",")
        shares = {
            who: sorted(allocate(strategy, who, queues, members))
            for who in given.get("asks", given["members"]).split(",")
        }
    except ConfigError as error:
        return [f"ConfigError: {error}"]
    is_one = len({(queue.topic, queue.broker_name) for queue in queues}) <= 1
    return [f"{who}: {' '.join(_shown(queue, is_one) for queue in mine) or '-'}" for who, mine in shares.items()]


def _strategy(name: str, given: dict[str, str]) -> Strategy:
    if name == "MACHINE_ROOM":
        return MachineRoom(given["rooms"].split(","))
    if name == "CONFIG":
        return Configured([MessageQueue("T", "b", int(each)) for each in given["fixed"].split(",")])
    return strategy_named(name)


def _queues(part: str) -> list[MessageQueue]:
    """``3``, ``3*broker`` or ``3*topic/broker``: queues 0, 1 and 2."""
    count, _, place = part.partition("*")
    topic, _, broker = place.rpartition("/")
    return [MessageQueue(topic or "T", broker or "b", number) for number in range(int(count))]


def _shown(queue: MessageQueue, is_one: bool) -> str:
    topic = "" if queue.topic == "T" else f"{queue.topic}/"
    return str(queue.queue_id) if is_one else f"{topic}{queue.broker_name}:{queue.queue_id}"
