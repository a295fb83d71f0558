"""One task of the sink: from its partition's record batches to acknowledged chunks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from penstock.proto.wire.pipeline_pb2 import WriterState

from .chunks import Chunk, Mark, Sender, StageTo, cut
from .cluster import Cluster
from .encoding import Rows
from .options import SinkOptions, writable_topic
from .routing import SETTINGS, Layout, Piece, by_topic, layout_of, layouts, parse_settings, rebatched, settings_text
from .sink import LANES_PER_PARTITION, SEQUENCE_BATCH_BITS, Identity, Written
from .writers import WriterCalls, hash_64


class Task:
    """Writes one partition once."""

    def __init__(self, cluster: Cluster, options: SinkOptions, identity: Identity) -> None:
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self._calls = WriterCalls(
            cluster.calls,
            identity.writer,
            identity.run,
            timeout_s=(options.retry_timeout_ms + options.send_timeout_ms) / 1000,
        )
        self._layouts: dict[str, Layout] = {}
        self._chunk_numbers: dict[tuple[str, str, int], int] = {}
        self._producer_id = hash_64(f"{options.guarantee}:{identity.writer}")
        self._settings = settings_text(options.batch_bytes, options.in_flight)
        self._turn = identity.partition + identity.batch  # so that small batches reach every target in turn

    def run(self, batches: Iterable[Any]) -> Written:
        """Send, or stage, every row.

        Raises:
            PenstockError: a row that cannot be a message, or a broker that does not take it in time.
        """
        options, identity = self._options, self._identity
        told = Written(writer=identity.writer, run=identity.run)
        stage_to = None
        if options.guarantee != "at-least-once":
            state = self._open([options.topic] if options.topic else [])
            told.coordinator = state.coordinator
            if options.guarantee == "exactly-once":
                if state.decided_batch >= identity.batch:
                    for _ in batches:  # Spark wants its input taken
                        pass
                    return told
                told.key = uuid.uuid4().hex
                stage_to = StageTo(
                    identity.writer, identity.batch, told.key, state.coordinator, options.transaction_timeout_ms
                )
        sender = Sender(
            self._cluster.calls,
            send_timeout_ms=options.send_timeout_ms,
            retry_timeout_ms=options.retry_timeout_ms,
            stage_to=stage_to,
        )
        try:
            self._send_all(sender, batches)
            sender.finish()
        except BaseException:
            sender.cancel()
            raise
        told.chunks, told.records = sender.staged, sender.records
        return told

    def _send_all(self, sender: Sender, batches: Iterable[Any]) -> None:
        bytes_max, lanes, rows_max = parse_settings(self._settings)
        for batch in rebatched(batches, rows_max):
            for topic, part in by_topic(batch, self._options.topic):
                layout = self._layouts.get(topic) or self._new_layout(topic, lanes)
                rows = Rows(part, self._options.compression)
                for piece in layout.split(rows, self._turn):
                    for small in cut(piece, bytes_max):
                        self._send(sender, layout, small, rows.sys_flag)
                self._turn += 1

    def _send(self, sender: Sender, layout: Layout, piece: Piece, sys_flag: int) -> None:
        target = layout.targets[piece.target]
        key = (layout.topic, target.broker, target.lane)
        number = self._chunk_numbers.get(key, 0)
        self._chunk_numbers[key] = number + 1
        mark = None
        if self._options.guarantee != "at-least-once":
            lane = self._identity.partition * LANES_PER_PARTITION + target.lane
            mark = Mark(self._producer_id, lane, self._identity.batch << SEQUENCE_BATCH_BITS | number)
        chunk = Chunk(layout.topic, target.broker, piece.bodies, piece.properties, piece.queue_ids, sys_flag, mark)
        sender.send(key, chunk)

    def _new_layout(self, topic: str, lanes: int) -> Layout:
        writable_topic(topic, "column topic")
        if self._options.guarantee == "idempotent":
            self._open([topic])
        else:
            self._layouts[topic] = Layout(topic, layout_of(self._cluster.route(topic)), lanes)
        return self._layouts[topic]

    def _open(self, topics: list[str]) -> WriterState:
        """Open the writer. An idempotent one with the layouts of these topics; what the brokers keep of it counts.

        The others need none: they may go around a shard that is not there.
        """
        if self._options.guarantee == "exactly-once":
            return self._calls.open({})
        wanted = {SETTINGS: self._settings}
        for topic in topics:
            wanted[topic] = layout_of(self._cluster.route(topic))
        state = self._calls.open(wanted)
        self._settings = state.layout[SETTINGS]
        self._layouts = layouts(state.layout, parse_settings(self._settings)[1])
        return state
