"""Clients in a process that was forked: each call says whose they are, and their own process goes on."""

from __future__ import annotations

import subprocess
import sys

from tests.support.client.running_cluster import RunningCluster

TOPIC = "orders"
PROGRAM = """
import asyncio, gc, os, sys
from penstock.client import Admin, ClientClosed, Producer, PullConsumer, SimpleConsumer
from penstock.client.aio import AsyncProducer

gc.disable()  # gRPC's objects are not to be collected in a child
NAMESRV, TOPIC = sys.argv[1:]


def in_child(work):
    '''What the call returns in a child, or its error, as text.'''
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = repr(work())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return told


def check_refused(kind, work):
    told = in_child(work)
    assert told.startswith(f"ClientClosed: the {kind} was made in process {os.getpid()}"), told


def sent_here():
    with Producer(NAMESRV) as own:
        return own.send(TOPIC, b"of a child").status.name


producer, twin, admin = Producer(NAMESRV), AsyncProducer(NAMESRV), Admin(NAMESRV)
producer.send(TOPIC, b"before")
check_refused("Producer", lambda: producer.send(TOPIC, b"x"))
check_refused("Producer", lambda: producer.produce(TOPIC, b"x"))
assert in_child(sent_here) == "'SEND_OK'"
check_refused("Producer", producer.close)  # a method that somebody has kept, as for atexit
check_refused("Producer", lambda: asyncio.run(twin.send(TOPIC, b"x")))
check_refused("Admin", lambda: admin.list_topics())
assert in_child(lambda: (producer.close(), producer.group)) == "(None, 'DEFAULT_PRODUCER')"
consumers = [kind(NAMESRV, group="billing") for kind in (PullConsumer, SimpleConsumer)]
for consumer in consumers:
    kind = type(consumer).__name__
    consumer.subscribe(TOPIC)
    check_refused(kind, lambda: (consumer.close(), consumer.subscribe(TOPIC)))
    consumer.unsubscribe(TOPIC)
producer.send(TOPIC, b"after")
for client in (producer, *consumers, admin):
    client.close()
asyncio.run(twin.close())
"""


def test_clients_in_a_child_refuse_and_those_of_its_parent_go_on() -> None:
    with RunningCluster(topics={TOPIC: 2}) as cluster:
        words = [sys.executable, "-c", PROGRAM, cluster.namesrv, TOPIC]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert sorted(cluster.brokers["broker-a"].bodies(TOPIC)) == [b"after", b"before", b"of a child"]
