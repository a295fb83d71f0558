"""Where topics live: a cache that the nameserver's watch stream keeps up to date."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc

from penstock.proto.errors import NameserverUnavailable, PenstockError, RouteNotFound, TopicNotFound, from_rpc_error
from penstock.proto.wire.common_pb2 import MASTER
from penstock.proto.wire.nameserver_pb2 import RouteUpdate, ShardMember, ShardView, TopicRoute, WatchRequest

from .connections import Connections

log = logging.getLogger(__name__)

ROUTE_TIMEOUT_S = 3.0
RECONNECT_MS_MIN = 50
RECONNECT_MS_MAX = 1000
SETTLE_S = 2.5
"""A nameserver that has just started hears of every broker within this time; of some of them later than of others."""

Listener = Callable[[TopicRoute], None]


def master_of(shard: ShardView) -> ShardMember | None:
    """The living master of a broker group."""
    return next((member for member in shard.members if member.role == MASTER), None)


def merge(known: TopicRoute | None, update: TopicRoute, told: TopicRoute | None = None) -> TopicRoute:
    """What to believe after ``update``; ``told``: what the same nameserver has said before.

    A nameserver that knows no living broker at all has just started or lost its network: it takes away nothing.
    Nameservers remember broker groups that are down. One that was started since does not: where it knows nothing of the
    topic, the queues of groups that it does not know stay known (without a living member), so that senders and
    consumers wait for the groups to return instead of calling the topic unknown. One that knew of the topic has been
    told that it is gone for good.
    """
    if update.exists or known is None or not known.exists:
        return update
    if not update.shards:
        return known
    if told is not None and told.exists:
        return update
    living = {shard.broker_name for shard in update.shards}
    waiting = [queues for queues in known.queues if queues.broker_name not in living]
    if not waiting:
        return update
    return TopicRoute(topic=update.topic, exists=True, queues=waiting, attributes=known.attributes)


def completed(known: TopicRoute | None, update: TopicRoute) -> TopicRoute:
    """``update`` with what a nameserver that has just started may not have heard of yet.

    That are whole broker groups, and the master of a group: the epoch of one never goes back, so a nameserver that
    tells of an older one, or of none, has not heard of its master. Without this, clients would run from living masters
    to slaves and back.
    """
    if known is None or not known.exists:
        return update
    told = {shard.broker_name: shard for shard in update.shards}
    kept = {
        shard.broker_name: shard
        for shard in known.shards
        if shard.broker_name not in told or told[shard.broker_name].epoch < shard.epoch
    }
    if not kept:
        return update
    whole = TopicRoute(topic=update.topic, exists=True, attributes=update.attributes or known.attributes)
    whole.shards.extend(kept.get(name) or told[name] for name in sorted({*told, *kept}))
    queues = {each.broker_name: each for each in update.queues}
    queues.update({each.broker_name: each for each in known.queues if each.broker_name in kept})
    whole.queues.extend(queues[name] for name in sorted(queues))
    return whole


class Routes:
    """The routes of the topics in use; one daemon thread reads the watch stream. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._changed = threading.Condition()
        self._routes: dict[str, TopicRoute] = {}
        self._shards: dict[str, ShardView] = {}
        self._wanted: dict[str, None] = {}
        self._listeners: list[Listener] = []
        self._requests: queue.SimpleQueue[WatchRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._failure = ""
        self._closed = threading.Event()
        self._telling = threading.Lock()  # one change after the other, listeners included
        self._told: dict[str, TopicRoute] = {}  # by the present stream, as it said it
        self._settles_at = 0.0
        self._settling: threading.Timer | None = None

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
            raise RouteNotFound(f"topic {topic!r}: the nameservers know no living broker")
        raise TopicNotFound(
            f"topic {topic!r} does not exist: create it with Admin.create_topic or penstock topic create"
        )

    def known(self, topic: str) -> TopicRoute | None:
        """What the cache holds for ``topic``, without asking or watching."""
        return self._routes.get(topic)

    def wait_for(self, topic: str, condition: Callable[[TopicRoute], bool], timeout_s: float) -> TopicRoute | None:
        """The route of ``topic`` once ``condition`` holds for it; ``None`` when it does not within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        self._watch(topic)
        with self._changed:
            while not self._closed.is_set():
                route = self._routes.get(topic)
                if route is not None and condition(route):
                    return route
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
        return None

    def add_listener(self, callback: Listener) -> None:
        """Call ``callback(route)`` from the watch thread after every change; it must not block."""
        self._listeners.append(callback)

    def remove_listener(self, callback: Listener) -> None:
        """No calls any more from the next change on."""
        if callback in self._listeners:
            self._listeners.remove(callback)

    def shard(self, broker_name: str) -> ShardView | None:
        """The living members of a broker group, as far as a watched topic lies on it."""
        return self._shards.get(broker_name)

    def master(self, broker_name: str) -> str | None:
        """The address of the living master of a broker group."""
        shard = self._shards.get(broker_name)
        member = master_of(shard) if shard else None
        return member.address if member else None

    def readable(self, broker_name: str, suggested_id: int | None = None) -> tuple[int, str] | None:
        """``(broker id, address)`` to read from: the suggested member if it lives, else the master, else a slave."""
        shard = self._shards.get(broker_name)
        if shard is None or not shard.members:
            return None
        chosen = next((member for member in shard.members if member.broker_id == suggested_id), None)
        chosen = chosen or master_of(shard) or min(shard.members, key=lambda member: member.broker_id)
        return chosen.broker_id, chosen.address

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

    def _first(self, topic: str, timeout_s: float) -> TopicRoute:
        route = self.wait_for(topic, lambda _: True, timeout_s)
        if route is not None:
            return route
        if self._failure:
            raise NameserverUnavailable(f"route of topic {topic!r}: no nameserver answers: {self._failure}")
        raise RouteNotFound(f"route of topic {topic!r}: no answer within {timeout_s:g} s")

    def _watch(self, topic: str) -> None:
        with self._changed:
            if topic in self._wanted or self._closed.is_set():
                return
            self._wanted[topic] = None
            self._requests.put(WatchRequest(add_topics=[topic]))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-routes", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        back_off_ms = RECONNECT_MS_MIN
        turn = 0
        addresses = self._connections.addresses
        while not self._closed.is_set():
            address = addresses[turn % len(addresses)]
            heard = self._follow(address)
            if heard:
                back_off_ms = RECONNECT_MS_MIN
            else:
                # Trying the next one costs nothing; after a whole round without an answer, wait.
                turn += 1
                if turn % len(addresses) == 0:
                    self._closed.wait(back_off_ms / 1000)
                    back_off_ms = min(back_off_ms * 2, RECONNECT_MS_MAX)

    def _follow(self, address: str) -> bool:
        """Read one watch stream until it breaks; whether it brought anything."""
        heard = False
        requests: queue.SimpleQueue[WatchRequest | None] = queue.SimpleQueue()
        with self._changed:
            requests.put(WatchRequest(add_topics=list(self._wanted)))
            self._requests = requests
        try:
            call = self._connections.nameserver(address).WatchRoutes(_drain(requests))
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
            self._on_failure(from_rpc_error(error, f"nameserver {address}"))
        except PenstockError as error:  # the connections were closed under us
            self._on_failure(error)
        finally:
            requests.put(None)
        return heard

    def _on_failure(self, error: PenstockError) -> None:
        if self._closed.is_set():
            return
        self._failure = error.message
        log.info("route watch broke error=%s", error.message)

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
        """What the nameserver has said is all that it knows."""
        with self._telling:
            self._take(list(self._told.values()), {})

    def _on_update(self, update: RouteUpdate) -> None:
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
        present = {shard.broker_name for shard in route.shards}
        for shard in known.shards if known else ():
            if shard.broker_name not in present:
                self._shards.pop(shard.broker_name, None)
        for shard in route.shards:
            self._shards[shard.broker_name] = shard


def _drain(requests: queue.SimpleQueue[WatchRequest | None]) -> Iterator[WatchRequest]:
    while (request := requests.get()) is not None:
        yield request
