"""The orderly consumers of a drill: a row when work on a message begins, and one when it has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.bench.load.ledger import header_of
from penstock.client import ConsumerConfig, PushConsumer
from penstock.judge.history import Op, Outcome, Recorder

if TYPE_CHECKING:
    from penstock.client import MessageView

WORK_S = 0.002
TIME_FOR_WORK_MS = 2000
"""How long what a member held stays its own when it was killed: more than any work takes."""


class Working:
    """A member of an orderly group. That work has begun is in the file before it does anything."""

    def __init__(
        self, nameservers: str, group: str, topic: str, run: int, shards: Sequence[str], recorder: Recorder
    ) -> None:
        self._run = run
        self._shards = {name: index for index, name in enumerate(shards)}
        self._recorder = recorder
        self._consumer = PushConsumer(
            nameservers,
            group=group,
            listener=self._work,
            orderly=True,
            consume_threads=8,
            consume_from="first",
            config=ConsumerConfig(revoke_timeout_ms=TIME_FOR_WORK_MS),
        )
        self._consumer.subscribe(topic)

    def start(self) -> None:
        self._consumer.start()

    def close(self) -> None:
        """Return when work has ended."""
        self._consumer.close()

    def _work(self, message: MessageView) -> None:
        start_ns = time.monotonic_ns()
        self._note(message, Outcome.UNKNOWN, start_ns, start_ns)
        time.sleep(WORK_S)
        self._note(message, Outcome.OK, start_ns, time.monotonic_ns())

    def _note(self, message: MessageView, outcome: Outcome, start_ns: int, end_ns: int) -> None:
        run, stream, sequence = header_of(message.body)
        place = {"shard": self._shards.get(message.broker_name, -1), "queue": message.queue_id}
        if run == self._run:
            named = {"stream": stream, "sequence": sequence, "offset": message.queue_offset}
            self._recorder.add(Op.WORK, outcome, start_ns, end_ns, **named, **place)
            self._recorder.flush()
