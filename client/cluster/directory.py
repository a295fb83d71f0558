"""Where topics live and who serves them: watched for topics in use, asked of a nameserver for everything else."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from penstock.proto import errors, names
from penstock.proto.errors import PenstockError
from penstock.proto.wire import nameserver_pb2 as wire
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView, TopicRoute
from penstock.runtime.nearest import hint

from .connections import Connections
from .retry import back_off_s, require_timeout
from .routes import completed, master_of, merge

log = logging.getLogger(__name__)

ROUTE_TIMEOUT_S = 3.0
VIEW_AGE_S = 1.0
ROUTE_POLL_S = 0.02
SETTLE_S = 2.5
"""A nameserver that has just started hears of every broker within this time; of some of them later than of others."""

Listener = Callable[[TopicRoute], None]


class Directory:
    """Which broker to turn to. Thread-safe.

    *Watched*: :meth:`topic` puts a topic under watch. From then on one daemon thread reads a nameserver's stream, and
    :meth:`known`, :meth:`master` and :meth:`readable` answer from memory.
    *Asked*: :meth:`cluster`, :meth:`route` and :meth:`topics` are one call at a nameserver each; :meth:`address` takes
    what such a call has said at most a second ago.
    """

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        # Guards what the watch knows; the watch thread and the settling timer write it, everybody reads.
        self._changed = threading.Condition()
        self._routes: dict[str, TopicRoute] = {}  # by topic, as believed; values are replaced, never changed
        self._shards: dict[str, ShardView] = {}  # by broker name, out of the routes above
        self._masters: dict[str, str | None] = {}  # the addresses of their masters
        self._mentions: Counter[str] = Counter()  # of broker names, in the routes above
        self._wanted: dict[str, None] = {}  # topics under watch, in the order in which they came; only grows
        self._requests: queue.SimpleQueue[wire.WatchRequest | None] = queue.SimpleQueue()  # of the present stream
        self._thread: threading.Thread | None = None  # begins with the first topic
        self._call: Any = None  # the present stream
        self._failure = ""  # why the last stream broke, "" while one brings something; the watch thread's
        self._closed = threading.Event()
        self._listeners: list[Listener] = []
        self._telling = threading.Lock()  # one change after the other, listeners included; taken before _changed
        self._told: dict[str, TopicRoute] = {}  # by the present stream, as it said it; guarded by _telling
        self._settles_at = 0.0  # until then the present nameserver may have just started
        self._settling: threading.Timer | None = None
        # What was asked for last; guarded by its own lock, which is held while a nameserver is asked.
        self._asking = threading.Lock()
        self._view = wire.ClusterView()
        self._seen_at = float("-inf")

    # Watched

    def topic(self, topic: str, timeout_s: float = ROUTE_TIMEOUT_S) -> TopicRoute:
        """The route of ``topic``, watched from now on.

        Raises:
            TopicNotFound: the nameserver knows living brokers, and none has the topic.
            RouteNotFound: no living broker is known.
            NameserverUnavailable: no nameserver answered within ``timeout_s``.
        """
        route = self._routes.get(topic)
        if route is None:
            route = self._first(topic, timeout_s)
        if route.exists:
            return route
        if not route.shards:
            raise errors.RouteNotFound(f"topic {topic!r}: the nameservers know no living broker")
        raise errors.TopicNotFound(
            f"topic {topic!r} does not exist: create it with Admin.create_topic or penstock topic create"
        )

    def known(self, topic: str) -> TopicRoute | None:
        """The route that is known of ``topic``, without asking or watching, or None."""
        return self._routes.get(topic)

    def wait_for(self, topic: str, condition: Callable[[TopicRoute], bool], timeout_s: float) -> TopicRoute | None:
        """The route of ``topic`` once ``condition`` holds for it, or None where it does not within ``timeout_s``."""
        self._watch(topic)

        def look() -> TopicRoute | bool:
            route = self._routes.get(topic)
            return self._closed.is_set() or (route is not None and condition(route) and route)

        with self._changed:
            found = self._changed.wait_for(look, timeout_s)
        return found if isinstance(found, TopicRoute) else None

    def add_listener(self, callback: Listener) -> None:
        """Call ``callback(route)`` from the watch thread after every change; it must not block."""
        self._listeners.append(callback)

    def remove_listener(self, callback: Listener) -> None:
        """No calls any more from the next change on."""
        if callback in self._listeners:
            self._listeners.remove(callback)

    def master(self, broker_name: str) -> str | None:
        """The address of the living master of a broker group, or None."""
        return self._masters.get(broker_name)

    def readable(self, broker_name: str, suggested_id: int | None = None) -> tuple[int, str] | None:
        """``(broker id, address)`` to read from: the suggested member if it lives, else the master, else a slave."""
        chosen = _reader_of(self._shards.get(broker_name), suggested_id)
        return (chosen.broker_id, chosen.address) if chosen is not None else None

    def read_address(self, broker_name: str) -> str | None:
        """The address to read from, the living master's or else a slave's; None when nobody lives."""
        found = self.readable(broker_name)
        return found[1] if found is not None else None

    # Asked

    def cluster(self, timeout_s: float = ROUTE_TIMEOUT_S, *, age_s: float = 0.0) -> wire.ClusterView:
        """The broker groups that live, and those that are down; at most ``age_s`` old.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        timeout_s = require_timeout(timeout_s)
        with self._asking:
            if time.monotonic() - self._seen_at >= age_s:
                self._view = self.connections.query_nameserver("QueryCluster", Empty(), timeout_s)
                self._seen_at = time.monotonic()
            return self._view

    def shards(self, timeout_s: float = ROUTE_TIMEOUT_S, *, age_s: float = 0.0) -> dict[str, ShardView]:
        """Every living broker group by name; as :meth:`cluster`."""
        return {shard.broker_name: shard for shard in self.cluster(timeout_s, age_s=age_s).shards}

    def masters(self, timeout_s: float = ROUTE_TIMEOUT_S) -> tuple[list[str], list[str]]:
        """The names of broker groups with a living master, and of those without, which take no changes now.

        Raises:
            RouteNotFound: no group has one.
        """
        view = self.cluster(timeout_s)
        found = sorted(shard.broker_name for shard in view.shards if master_of(shard))
        if not found:
            raise errors.RouteNotFound("the nameservers know no living master: is a broker running?")
        return found, sorted({shard.broker_name for shard in (*view.shards, *view.absent)} - set(found))

    def address(
        self, broker_name: str, timeout_s: float = ROUTE_TIMEOUT_S, *, reading: bool = False, fresh: bool = False
    ) -> str:
        """The master's address, or with ``reading`` a slave's while there is no master; ``fresh``: asked for now.

        The master of a group whose topics are watched is known without asking.

        Raises:
            BrokerUnavailable: nobody of the group lives. NameserverUnavailable.
        """
        if not reading and not fresh and (known := self.master(broker_name)) is not None:
            return known
        shard = self.shards(timeout_s, age_s=0.0 if fresh else VIEW_AGE_S).get(broker_name)
        member = _reader_of(shard) if reading else master_of(shard)
        if member is None:
            raise errors.BrokerUnavailable(
                f"broker group {broker_name} has no living {'member' if reading else 'master'}"
            )
        return member.address

    def route(self, topic: str, timeout_s: float = ROUTE_TIMEOUT_S) -> TopicRoute:
        """Where ``topic`` lives; ``exists`` is false where no living broker group has it."""
        timeout_s = require_timeout(timeout_s)
        update: wire.RouteUpdate = self.connections.query_nameserver(
            "QueryRoute", wire.RouteQuery(topics=[topic]), timeout_s
        )
        return update.routes[0]

    def existing_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """The same of a topic that exists. Raises TopicNotFound, with the nearest topic there is."""
        route = self.route(topic, timeout_s)
        if not route.exists:
            raise self.topic_not_found(topic, timeout_s)
        return route

    def settled_route(self, topic: str, condition: Callable[[TopicRoute], bool], timeout_s: float) -> TopicRoute:
        """The route once ``condition`` holds for it, or as it is after ``timeout_s``: routes follow brokers shortly."""
        deadline = time.monotonic() + timeout_s
        while True:
            route = self.route(topic, timeout_s)
            if condition(route) or time.monotonic() >= deadline:
                return route
            time.sleep(ROUTE_POLL_S)

    def topics(self, timeout_s: float = ROUTE_TIMEOUT_S) -> list[str]:
        """The names of all topics, also of broker groups that are down, with internal ones; sorted."""
        timeout_s = require_timeout(timeout_s)
        return sorted(self.connections.query_nameserver("ListTopics", Empty(), timeout_s).topics)

    def topic_not_found(self, topic: str, timeout_s: float) -> errors.TopicNotFound:
        """The error that says so, with the nearest topic there is."""
        near = hint(topic, (each for each in self.topics(timeout_s) if not names.is_system_topic(each)))
        return errors.TopicNotFound(f"topic {topic!r} does not exist at any living broker{near}", topic=topic)

    def close(self) -> None:
        """End the watch. Cached routes stay readable. May be called again."""
        self._closed.set()
        self._requests.put(None)
        with self._changed:
            call, thread = self._call, self._thread
            if self._settling is not None:
                self._settling.cancel()
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # The watch

    def _first(self, topic: str, timeout_s: float) -> TopicRoute:
        route = self.wait_for(topic, lambda _: True, timeout_s)
        if route is not None:
            return route
        if self._failure:
            raise errors.NameserverUnavailable(f"route of topic {topic!r}: no nameserver answers: {self._failure}")
        raise errors.RouteNotFound(f"route of topic {topic!r}: no answer within {timeout_s:g} s")

    def _watch(self, topic: str) -> None:
        with self._changed:
            if topic in self._wanted or self._closed.is_set():
                return
            self._wanted[topic] = None
            self._requests.put(wire.WatchRequest(add_topics=[topic]))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-routes", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        turn = 0
        addresses = self.connections.addresses
        while not self._closed.is_set():
            if self._follow(addresses[turn % len(addresses)]):
                turn = turn % len(addresses)
                continue
            # Trying the next one costs nothing; after a whole round without an answer, wait.
            turn += 1
            if turn % len(addresses) == 0:
                self._closed.wait(back_off_s(turn // len(addresses)))

    def _follow(self, address: str) -> bool:
        """Read one watch stream until it breaks. Returns True if it brought anything."""
        heard = False
        requests: queue.SimpleQueue[wire.WatchRequest | None] = queue.SimpleQueue()
        with self._changed:
            requests.put(wire.WatchRequest(add_topics=list(self._wanted)))
            self._requests = requests
        try:
            call = self.connections.nameserver(address).WatchRoutes(iter(requests.get, None))
            with self._changed:
                self._call = call
            if self._closed.is_set():
                call.cancel()
            for update in call:
                if not heard:
                    self._begin_stream()
                heard = True
                self._failure = ""
                self._on_update(update)
        except grpc.RpcError as error:
            self._on_failure(errors.from_rpc_error(error, f"nameserver {address}"))
        except PenstockError as error:  # the connections were closed under us
            self._on_failure(error)
        finally:
            requests.put(None)
        return heard

    def _on_failure(self, error: PenstockError) -> None:
        if self._closed.is_set():
            return
        if error.message != self._failure:  # told once, however often it is tried
            log.info("route watch broke error=%s", error.message)
        self._failure = error.message

    def _begin_stream(self) -> None:
        """Another nameserver answers, perhaps one that has just started: for a while it takes nothing away."""
        with self._changed:
            if not self._told:
                return  # the first of all
            self._told.clear()
            self._settles_at = time.monotonic() + SETTLE_S
            if self._settling is not None:
                self._settling.cancel()
            self._settling = threading.Timer(SETTLE_S, self._settle)
            self._settling.daemon = True
            if not self._closed.is_set():
                self._settling.start()

    def _settle(self) -> None:
        """Believe the nameserver: by now it has said all that it knows."""
        with self._telling:
            self._take(list(self._told.values()), {})

    def _on_update(self, update: wire.RouteUpdate) -> None:
        with self._telling:
            before = {route.topic: self._told[route.topic] for route in update.routes if route.topic in self._told}
            self._told.update({route.topic: route for route in update.routes})
            self._take(update.routes, before)

    def _take(self, routes: Iterable[TopicRoute], before: Mapping[str, TopicRoute]) -> None:
        """Believe ``routes``, and tell the listeners what is new of it; ``_telling`` is held.

        ``before``: what the same nameserver has said of them until now.
        """
        fresh: list[TopicRoute] = []
        with self._changed:
            for incoming in routes:
                known = self._routes.get(incoming.topic)
                is_settled = time.monotonic() >= self._settles_at
                believed = incoming if is_settled else completed(known, incoming)
                route = merge(known, believed, before.get(incoming.topic))
                if route is known or route == known:
                    continue
                self._keep_shards(known, route)
                self._routes[incoming.topic] = route
                fresh.append(route)
            self._changed.notify_all()
        for route in fresh:
            for listener in tuple(self._listeners):
                try:
                    listener(route)
                except Exception:  # the watch serves every listener: one that fails is logged, the others go on
                    log.exception("route listener failed topic=%s", route.topic)

    def _keep_shards(self, known: TopicRoute | None, route: TopicRoute) -> None:
        """Take the groups of ``route`` in place of those of ``known``; one that other routes name stays known."""
        self._mentions.update(shard.broker_name for shard in route.shards)
        for shard in route.shards:
            master = master_of(shard)
            self._shards[shard.broker_name] = shard
            self._masters[shard.broker_name] = master.address if master else None
        for shard in known.shards if known else ():
            self._mentions[shard.broker_name] -= 1
            if not self._mentions[shard.broker_name]:
                del self._mentions[shard.broker_name], self._shards[shard.broker_name]
                del self._masters[shard.broker_name]


def _reader_of(shard: ShardView | None, suggested_id: int | None = None) -> ShardMember | None:
    """The member to read from: the suggested one if it lives, else the master, else a slave."""
    if shard is None:
        return None
    chosen = next((member for member in shard.members if member.broker_id == suggested_id), None)
    return chosen or master_of(shard) or min(shard.members, key=lambda member: member.broker_id, default=None)
