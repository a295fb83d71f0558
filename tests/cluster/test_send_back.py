"""Failed messages with real processes: each comes again once and is a dead letter once, masters killed meanwhile."""

from __future__ import annotations

import threading
from collections import Counter

from penstock.client import Admin, ConsumeResult, MessageView, Producer, PullConsumer, PushConsumer
from penstock.deploy import LocalCluster
from tests.support.cluster.failover import TOPIC, kill_master
from tests.support.waiting import wait_until

COUNT = 600
TIMES = 2


class Failing:
    """A listener that takes no message the first time, and every tenth never."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failed: Counter[tuple[bytes, int]] = Counter()
        self.taken: Counter[bytes] = Counter()

    def __call__(self, message: MessageView) -> ConsumeResult:
        fails = message.reconsume_times == 0 or int(message.body) % 10 == 0
        with self.lock:
            if fails:
                self.failed[message.body, message.reconsume_times] += 1
            else:
                self.taken[message.body] += 1
        return ConsumeResult.RETRY_LATER if fails else ConsumeResult.SUCCESS

    def failed_last(self) -> set[bytes]:
        """Bodies that failed at their last try."""
        with self.lock:
            return {body for body, times in self.failed if times == TIMES}


def copies(nameservers: str, topic: str) -> Counter[tuple[bytes, int]]:
    """What lies in a topic: body, and how often it was given back."""
    found: Counter[tuple[bytes, int]] = Counter()
    with Admin(nameservers) as admin, PullConsumer(nameservers, group="look", consume_from="first") as puller:
        end = sum(queue.max_offset for queue in admin.topic_stats(topic).queues)
        puller.assign(puller.queues(topic))
        while found.total() < end:
            found.update((message.body, message.reconsume_times) for message in puller.poll(1))
    return found


def test_no_failed_message_is_lost_or_doubled_though_masters_are_killed(shard: LocalCluster) -> None:
    nameservers = shard.plan.nameserver_addresses
    listener = Failing()
    with Admin(nameservers) as admin:
        admin.create_group("g", retry_max_times=TIMES, retry_policy=[0.5])
    consumer = PushConsumer(nameservers, group="g", listener=listener, consume_from="first")
    consumer.subscribe(TOPIC)
    with Producer(nameservers) as producer, consumer:
        for start in range(0, COUNT, 50):
            for number in range(start, start + 50):
                producer.produce(TOPIC, b"%d" % number)
            producer.flush()
            if start in (100, 350):  # with failed messages on their way back, and others waiting for their time
                kill_master(shard)
        never = {b"%d" % number for number in range(0, COUNT, 10)}
        wait_until(lambda: len(listener.taken) == COUNT - len(never), 90, "everything that can be taken")
        wait_until(lambda: listener.failed_last() == never, 90, "the last tries")
        with Admin(nameservers) as admin:
            wait_until(lambda: admin.topic_stats("%DLQ%g").queues[0].max_offset == len(never), 60, "the dead letters")
    again = Counter({(body, times + 1): count for (body, times), count in listener.failed.items()})
    dead = Counter({key: count for key, count in again.items() if key[1] > TIMES})
    assert copies(nameservers, "%RETRY%g") == again - dead
    assert copies(nameservers, "%DLQ%g") == dead
    assert set(dead.values()) == {1}
