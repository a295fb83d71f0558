"""Reading the slices of a partition: whatever brokers answer, the planned rows in the planned order, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.record.layout import SysFlag, decode_record
from penstock.pipeline.topics.cluster import Cluster, Positions
from penstock.pipeline.topics.offsets import Queue, Range, Slice
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read import reading
from penstock.pipeline.topics.read.reading import SliceReader
from penstock.pipeline.topics.read.source import TopicReader
from penstock.proto import frames
from penstock.proto.errors import BrokerUnavailable, ConfigError, DamagedRecord, DataLoss, PenstockError, TopicNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply
from tests.support.broker.kit import Kit, WithKits
from tests.support.broker.requests import wanting
from tests.support.broker.stores import patch, split

SCHEMA = pa.schema([("queueId", pa.int32()), ("queueOffset", pa.int64()), ("body", pa.binary())])
MASTER, SLAVE = "master:1", "slave:1"

Row = tuple[int, int, bytes]


class Call:
    """A call that runs when its answer is wanted."""

    def __init__(self, result: Callable[[], bytes]) -> None:
        self.result = result

    def cancel(self) -> None:
        """Nobody wants it."""


class Group(WithKits):
    """One broker group as a reader sees it: the brokers' services, without sockets.

    ``steps``: the address of the master at each look, None without one; the last one stays. ``before``: runs before
    each fetch. ``after``: may change a reply's bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.members = {address: self._run(Kit) for address in (MASTER, SLAVE)}
        self._run(lambda: self.members[SLAVE].change_role(master=False))
        self.steps: list[str | None] = [MASTER]
        self.asked: list[tuple[str, FetchHeader]] = []
        self.before: Callable[[FetchHeader], None] = lambda header: None
        self.after: Callable[[FetchHeader, bytes], bytes] = lambda header, message: message
        self.calls = self.connections = self.directory = self
        self.put("orders", {})

    def put(self, topic: str, queues: dict[int, int], size: int = 10, *, at: Sequence[str] = (MASTER, SLAVE)) -> None:
        """Messages at the end of each queue."""
        for address in at:
            parts = self.members[address]
            self._run(lambda parts=parts: parts.change_role(master=True))
            if parts.tables.topics.get(topic) is None:
                self._run(lambda parts=parts: parts.add_topic(topic, queues=64))
            for queue_id, count in queues.items():
                low = parts.store.reader.queue_range(topic, queue_id)[1]
                made = [b"%d-%d-" % (queue_id, low + n) for n in range(count)]
                self._await(parts.append([body.ljust(size, b"x") for body in made], topic=topic, queue_id=queue_id))
                self._run(parts.dispatch)
            self._run(lambda parts=parts, address=address: parts.change_role(master=address == MASTER))

    def send(self, queue_id: int, *bodies: bytes, **settings: Any) -> None:
        """These at the end of a queue of the master's."""
        parts = self.members[MASTER]
        self._await(parts.append(bodies, queue_id=queue_id, **settings))
        self._run(parts.dispatch)

    def others_fetch(self, header: FetchHeader) -> None:
        """Another consumer has its turn."""
        self._await(self.members[MASTER].fetched(wanting((0, 0), (1, 0), (2, 0))))

    def address(self, broker: str, *, reading: bool = False, fresh: bool = False) -> str:
        master = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if master is None and not reading:
            raise BrokerUnavailable(f"broker group {broker} has no living master")
        return master or SLAVE

    def fetch(self, address: str, header: FetchHeader, timeout_s: float) -> Call:
        self.asked.append((address, header))

        def answer() -> bytes:
            self.before(header)
            return self.after(header, self._await(self.members[address].fetched_bytes(header)))

        return Call(answer)

    def read(self, *slices: tuple[int, int, int], **options: str) -> list[Row]:
        """The rows of (queue id, start, end), in the order in which the reader tells them."""
        return list(self.reading(*slices, **options)[1])

    def reading(
        self, *slices: tuple[int, int, int], topic: str = "orders", **options: str
    ) -> tuple[SliceReader, Iterator[Row]]:
        defaults = {"nameserver": "x:1", "subscribe": topic, "fetchtimeoutms": "300", "driverretrytimeoutms": "300"}
        reader = SliceReader(self, source_options(defaults | options, streaming=False), SCHEMA)  # type: ignore[arg-type]
        wanted = [Slice(Queue(topic, "broker-a", queue_id), start, end) for queue_id, start, end in slices]
        return reader, (tuple(row.values()) for batch in reader.read(wanted) for row in batch.to_pylist())

    def damage(self, queue_id: int, offset: int, *, at: str = MASTER) -> None:
        """Change a byte of a body in the log of a member."""
        store = self.members[at].store
        position = store.picker.locate("orders", queue_id, np.arange(offset, offset + 1)).positions[0]
        body = bytes(store.lookup.view(int(position))).index(b"%d-%d-" % (queue_id, offset))
        patch(self.members[at].root, int(position) + body, b"!", segment_bytes=1 << 20)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(reading, "WAIT_MS", 20)
    made = Group()
    yield made
    made.close()


def rows(*slices: tuple[int, int, int], size: int = 10) -> list[Row]:
    return [(q, n, (b"%d-%d-" % (q, n)).ljust(size, b"x")) for q, start, end in slices for n in range(start, end)]


def lacking(group: Group, start: int, end: int) -> None:
    """Have the master's queue 0 lack the entries ``[start, end)``, so that those behind move up."""

    def before(header: FetchHeader) -> None:
        header.topics[0].ends[0] += end - start

    def after(header: FetchHeader, message: bytes) -> bytes:
        reply, data = frames.unpack(message, FetchReply)
        kept = [each for each in split(bytes(data)) if not start <= decode_record(each).queue_offset < end]
        for result in reply.results:
            result.count, result.bytes = len(kept), sum(map(len, kept))
            result.next_offset -= end - start
        return frames.pack(reply, *kept)

    group.before, group.after = before, after


SLICES = [(5, 3, 40), (0, 0, 40), (2, 10, 40), (1, 39, 40)]


def unordered(header: FetchHeader) -> None:
    """As a broker sees it that does not know of order and ends."""
    header.in_order = False
    for topic in header.topics:
        del topic.ends[:]


@pytest.mark.parametrize("fetch_bytes", ["1024", "8192", "65536"])
@pytest.mark.parametrize("knows_order", [True, False])
def test_rows_come_in_the_planned_order_whoever_else_fetches(group: Group, fetch_bytes: str, knows_order: bool) -> None:
    group.put("orders", dict.fromkeys((0, 1, 2, 5), 40), size=100)

    def before(header: FetchHeader) -> None:
        group.others_fetch(header)
        if not knows_order:
            unordered(header)

    group.before = before
    for _ in range(3):
        assert group.read(*SLICES, fetchmaxbytes=fetch_bytes) == rows(*SLICES, size=100)


def test_one_answer_holds_many_small_slices_and_nothing_behind_them(group: Group) -> None:
    group.put("orders", dict.fromkeys(range(40), 200), size=100)
    slices = [(queue_id, 10, 15) for queue_id in range(40)]
    assert group.read(*slices, fetchmaxbytes="65536") == rows(*slices, size=100)
    assert len(group.asked) == 1
    assert group.members[MASTER].core.counters.topic("orders").messages_out == 200


def test_what_a_slave_has_not_heard_of_is_waited_for(group: Group) -> None:
    """It has just started, or is behind, and there is no master."""
    group.put("news", {0: 5}, at=[MASTER])
    group.steps = [None]
    for loss in ("true", "false"):
        reader, found = group.reading((0, 0, 5), topic="news", failondataloss=loss)
        with pytest.raises(BrokerUnavailable, match=r"news/broker-a/0: messages 0\.\.5 were planned"):
            list(found)
        assert reader.lost == 0
    group.steps = [None, None, None, MASTER]
    assert list(group.reading((0, 0, 5), topic="news")[1]) == rows((0, 0, 5))


def told(status: int, **fields: Any) -> bytes:
    result = FetchReply.Result(topic_index=0, queue_id=0, status=FetchReply.Status.Name(status), **fields)
    return frames.pack(FetchReply(results=[result]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (told(FetchReply.OFFSET_TOO_SMALL, next_offset=3, min_offset=3, max_offset=5), "begins at 3"),
        (told(FetchReply.OFFSET_OVERFLOW, next_offset=0), "ends at 0"),
        (told(FetchReply.QUEUE_NOT_FOUND), "does not exist"),
        (told(FetchReply.DAMAGED, next_offset=3, problem="broken"), "message 0 of queue orders/broker-a/0 is damaged"),
    ],
    ids=["too small", "beyond", "not found", "damaged"],
)
def test_nothing_is_lost_because_a_slave_says_so(group: Group, answer: bytes, words: str) -> None:
    group.put("orders", {0: 5})

    def by_slave(header: FetchHeader, message: bytes) -> bytes:
        return answer if group.asked[-1][0] == SLAVE else message

    group.after = by_slave
    group.steps = [None, None, MASTER]
    reader, found = group.reading((0, 0, 5), failondataloss="false")
    assert (list(found), reader.lost) == (rows((0, 0, 5)), 0)
    assert [address for address, _ in group.asked] == [SLAVE, MASTER]
    group.steps = [None]
    with pytest.raises(BrokerUnavailable, match=f"no living master; the master is waited for, .*{SLAVE}.*{words}"):
        group.read((0, 0, 5), failondataloss="false")


@pytest.mark.parametrize(
    ("answer", "error", "left"),
    [
        (told(FetchReply.OFFSET_TOO_SMALL, next_offset=3, min_offset=3, max_offset=5), DataLoss, (3, 5)),
        (told(FetchReply.OFFSET_OVERFLOW, next_offset=0), DataLoss, (5, 5)),
        (told(FetchReply.QUEUE_NOT_FOUND), TopicNotFound, (5, 5)),
        (told(FetchReply.DAMAGED, next_offset=3, problem="file 0 is broken: rebuild it"), DamagedRecord, (3, 5)),
    ],
    ids=["too small", "beyond", "not found", "damaged"],
)
def test_what_the_master_says_is_lost_is_an_error_or_left_out_and_counted(
    group: Group, answer: bytes, error: type[PenstockError], left: tuple[int, int]
) -> None:
    group.put("orders", {0: 5, 1: 2})
    group.after = lambda header, message: answer if len(group.asked) == 1 else message
    with pytest.raises(error, match="orders/broker-a/0") as raised:
        group.read((0, 0, 5), (1, 0, 2))
    assert len(group.asked) == 1
    if error is DamagedRecord:
        assert "file 0 is broken: rebuild it; failOnDataLoss=false" in raised.value.message
        assert raised.value.details["offset"] == 0
    group.asked.clear()
    reader, found = group.reading((0, 0, 5), (1, 0, 2), failondataloss="false")
    assert list(found) == rows((0, *left), (1, 0, 2))
    assert (reader.lost, len(group.asked)) == (left[0], 2)


def test_a_body_that_fails_its_checksum_is_a_damaged_record(group: Group) -> None:
    group.put("orders", {0: 6, 1: 2})
    group.damage(0, 3)
    _, found = group.reading((0, 0, 6), (1, 0, 2))
    with pytest.raises(DamagedRecord, match=r"queue orders/broker-a/0: message 3 is damaged: .* the record at"):
        list(found)
    assert [header.verify for _, header in group.asked] == [False, True]
    reader, found = group.reading((0, 0, 6), (1, 0, 2), failondataloss="false")
    assert (list(found), reader.lost) == (rows((0, 0, 3), (0, 4, 6), (1, 0, 2)), 1)


def test_a_body_that_cannot_be_decompressed_is_an_error_or_left_out_and_counted(group: Group) -> None:
    """So it was sent: its checksum is right."""
    group.put("orders", {0: 2, 1: 2})
    group.send(1, b"no zlib", sys_flag=SysFlag.COMPRESSED)
    group.put("orders", {1: 1})
    _, found = group.reading((0, 0, 2), (1, 0, 4))
    told = "orders/broker-a/1: message 2 is damaged: body is neither zlib .*decompress=false .*; failOnDataLoss=false"
    with pytest.raises(DamagedRecord, match=told) as raised:
        list(found)
    assert (raised.value.details["queue_id"], raised.value.details["next_offset"]) == (1, 3)
    reader, found = group.reading((0, 0, 2), (1, 0, 4), failondataloss="false")
    assert (list(found), reader.lost) == (rows((0, 0, 2), (1, 0, 2), (1, 3, 4)), 1)
    reader, found = group.reading((1, 2, 3), failondataloss="false")
    assert (list(found), reader.lost) == ([], 1)
    assert group.read((1, 1, 3), decompress="false") == [*rows((1, 1, 2)), (1, 2, b"no zlib")]


def test_a_record_that_is_good_at_its_broker_and_comes_damaged_twice_is_named(group: Group) -> None:
    group.put("orders", {0: 6})
    group.after = lambda header, message: message.replace(b"0-3-", b"!-3-")
    with pytest.raises(DamagedRecord, match="orders/broker-a/0: message 3 is damaged: broker master:1 proved it"):
        group.read((0, 0, 6))
    reader, found = group.reading((0, 0, 6), failondataloss="false")
    assert (list(found), reader.lost) == (rows((0, 0, 3), (0, 4, 6)), 1)


def test_a_record_that_comes_damaged_once_is_read_again(group: Group) -> None:
    group.put("orders", {0: 6})
    group.after = lambda header, message: message if header.verify else message[:-30] + b"?" * 30
    assert group.read((0, 0, 6)) == rows((0, 0, 6))


def test_messages_missing_between_others_are_an_error_or_counted(group: Group) -> None:
    group.put("orders", {0: 8})
    lacking(group, 3, 5)
    with pytest.raises(DataLoss, match="message 3 is missing, 5 follows"):
        group.read((0, 0, 4))
    reader, found = group.reading((0, 0, 6), failondataloss="false")
    assert (list(found), reader.lost) == (rows((0, 0, 3), (0, 5, 6)), 2)


def test_an_end_among_deleted_messages_is_told_without_an_option_that_nobody_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("orders", "broker-a", 0)
    positions = Positions()
    positions[queue] = Range(10, 20)
    monkeypatch.setattr(Cluster, "positions", lambda *_, **__: positions)
    given = {"nameserver": "127.0.0.1:1", "subscribe": "orders"}
    given["endingOffsets"] = '{"orders": {"broker-a": {"0": 5}}}'
    reader = TopicReader(source_options(given, streaming=False), SCHEMA)
    told = "orders/broker-a/0: endingOffsets asks for 5: the messages before 10 were deleted$"
    with pytest.raises(ConfigError, match=told):
        reader.partitions()
