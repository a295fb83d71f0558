"""Request-reply with real processes: the master dies between a request and its reply, and no reply is lost."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.client import MessageView, Producer, PushConsumer
from penstock.deploy import LocalCluster
from tests.support.cluster.failover import TOPIC, kill_master

STEPS = ("before the reply", "during the replies", "behind the replies")
REQUESTS = 20
WAIT_S = 120.0


@pytest.mark.timeout(400)
def test_every_reply_arrives_though_the_master_is_killed_before_during_and_behind_the_replies(
    shard: LocalCluster,
) -> None:
    nameservers = shard.plan.nameserver_addresses
    came: queue.Queue[MessageView] = queue.Queue()
    consumer = PushConsumer(nameservers, group="replying", listener=came.put, consume_from="first")
    consumer.subscribe(TOPIC)
    with (
        Producer(nameservers) as asking,
        Producer(nameservers) as replying,
        consumer,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        for step in STEPS:
            bodies = [f"{step} {number}".encode() for number in range(REQUESTS)]
            asked = [pool.submit(asking.request, TOPIC, body, timeout_s=WAIT_S) for body in bodies]
            seen: dict[bytes, MessageView] = {}
            while len(seen) < REQUESTS:  # some may come twice, over a failover
                message = came.get(timeout=WAIT_S)
                if message.body in bodies:
                    seen[message.body] = message
            killing = threading.Thread(target=kill_master, args=(shard,))
            if step == "before the reply":
                killing.start()
                killing.join()
            elif step == "during the replies":
                killing.start()
            for message in seen.values():
                replying.reply(message, b"re: " + message.body, timeout_s=WAIT_S)
            if step == "behind the replies":
                killing.start()
            replies = [each.result(WAIT_S) for each in asked]
            assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
            killing.join()
        assert len(asking._request_reply.requests) == 0
