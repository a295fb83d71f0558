"""The clients that a gateway knows: what each has said of itself, and its open Telemetry streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.gateway.v2.wire.service_pb2 import TelemetryCommand

from .callers import Caller
from .status import Refusal

CLIENTS_MAX: Final = 20_000
TOPICS_MAX: Final = 256
"""Topics of one producer for which it can be asked about transactions."""
STREAMS_MAX: Final = 4
"""Telemetry streams of one client; the oldest ends when there are more."""
COMMANDS_MAX: Final = 64
"""Commands that wait for a slow reader; with more its stream ends."""
REQUEST_S: Final = 3.0
"""The clients' own time-out for a call, where they do not say it."""
SETTINGS_S: Final = 60.0
"""A stream without settings, whose client has called nothing else meanwhile, ends: no client does so for so long.

Python's opens one again minutes before it sends settings on it, and calls all the time."""
LIVING_S: Final = 35.0
"""A client whose streams have ended lives so long after its last call: clients send a heartbeat every 10 s."""
SILENCE_S: Final = 120.0
"""A client without a stream that calls nothing for so long is forgotten; one that never had any lives till then."""


class Stream:
    """One Telemetry stream: what is to be sent to its client. Event loop only."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue()
        self._is_sending = False  # what was taken from _commands last
        self.is_over = False
        self.is_settled = False  # its client has sent settings
        self.opened_s = time.monotonic()

    def push(self, command: TelemetryCommand) -> bool:
        """Send it when the client takes it; False if the stream is over, or its client reads too slowly."""
        if self._commands.qsize() >= COMMANDS_MAX:
            self.end()
        if self.is_over:
            return False
        self._commands.put_nowait(command)
        return True

    def end(self) -> None:
        """Have it end, behind what waits. May be called again."""
        if not self.is_over:
            self.is_over = True
            self._commands.put_nowait(None)

    async def next(self) -> TelemetryCommand | None:
        """What is to be sent next; None: nothing any more. What came before has been sent."""
        if self._is_sending:
            self._commands.task_done()
        self._is_sending = True
        return await self._commands.get()

    async def sent(self) -> None:
        """Return when the client has taken all that it was to be sent."""
        await self._commands.join()


class Client:
    """One client object of a program, by its id. Event loop only."""

    __slots__ = (
        "client_id",
        "group",
        "had_stream",
        "heard_s",
        "language",
        "namespace",
        "request_s",
        "streams",
        "topics",
        "type",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.language = ""
        self.namespace = ""
        self.request_s = REQUEST_S  # its time-out for a call
        self.type = 0  # as its settings tell it
        self.group = ""  # of a consumer
        self.topics: dict[str, None] = {}  # that it publishes to
        self.streams: list[Stream] = []
        self.had_stream = False
        self.heard_s = time.monotonic()

    def push(self, command: TelemetryCommand) -> bool:
        """Send a command on its newest stream that takes it; False if none does."""
        return any(stream.push(command) for stream in reversed(self.streams))


class Clients:
    """All of them, by client id. Event loop only."""

    def __init__(self) -> None:
        self._known: dict[str, Client] = {}
        self._publishers: dict[str, dict[str, Client]] = {}  # by topic, then by client id

    def __iter__(self) -> Iterator[Client]:
        return iter(self._known.values())

    def get(self, client_id: str) -> Client | None:
        return self._known.get(client_id)

    def heard(self, caller: Caller) -> Client:
        """The client that has just called. Raises Refusal: TOO_MANY_REQUESTS, more clients than a gateway takes."""
        found = self._known.get(caller.client_id)
        if found is None:
            if len(self._known) >= CLIENTS_MAX:
                raise Refusal(Code.TOO_MANY_REQUESTS, f"flow limit: {CLIENTS_MAX} clients are here already")
            found = self._known[caller.client_id] = Client(caller.client_id)
        found.heard_s = time.monotonic()
        found.language = caller.language or found.language
        found.namespace = caller.namespace
        return found

    def publishes(self, client: Client, topic: str) -> None:
        """The client, unless it has ended, sends to that topic, and can be asked about its transactions."""
        is_known = self._known.get(client.client_id) is client  # else nothing would forget it again
        if is_known and topic not in client.topics and len(client.topics) < TOPICS_MAX:
            client.topics[topic] = None
            self._publishers.setdefault(topic, {})[client.client_id] = client

    def publishers(self, topic: str) -> list[Client]:
        """The clients that send to the topic and can be told something now."""
        return [each for each in self._publishers.get(topic, {}).values() if each.streams]

    def is_living(self, client_id: str) -> bool:
        """True while the client has a stream, or has called lately."""
        found = self._known.get(client_id)
        if found is None:
            return False
        silence_s = LIVING_S if found.had_stream else SILENCE_S
        return bool(found.streams) or time.monotonic() - found.heard_s < silence_s

    def open(self, client: Client) -> Stream:
        stream = Stream()
        client.streams.append(stream)
        client.had_stream = True
        if len(client.streams) > STREAMS_MAX:
            client.streams[0].end()
        return stream

    def closed(self, client: Client, stream: Stream) -> None:
        stream.end()
        client.streams.remove(stream)
        client.heard_s = time.monotonic()

    def forget(self, client_id: str) -> Client | None:
        """The client has said that it ends; what was known of it, if it was."""
        found = self._known.pop(client_id, None)
        if found is not None:
            for stream in found.streams:
                stream.end()
            for topic in found.topics:
                publishers = self._publishers.get(topic, {})
                publishers.pop(client_id, None)
                if not publishers:
                    self._publishers.pop(topic, None)
        return found

    def sweep(self) -> None:
        """Forget those that were silent for too long, and end streams without settings."""
        now = time.monotonic()
        for client in self:
            for stream in client.streams:
                has_called = client.heard_s > stream.opened_s
                if not stream.is_settled and not has_called and now - stream.opened_s >= SETTINGS_S:
                    stream.end()
        before = now - SILENCE_S
        for client_id in [each.client_id for each in self if not each.streams and each.heard_s < before]:
            self.forget(client_id)
