"""Arrow columns as messages, and where they go: without Spark and without a broker."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.produce.keys import property_bytes
from penstock.formats.hashing import string_hash
from penstock.formats.record.compression import decompress
from penstock.formats.record.kernels.encoding import encoded_bytes
from penstock.formats.record.layout import SysFlag
from penstock.formats.record.properties import decode_properties
from penstock.pipeline.topics.write.chunks import cut
from penstock.pipeline.topics.write.content import Content
from penstock.pipeline.topics.write.encoding import Rows, check_sink_schema, compressed
from penstock.pipeline.topics.write.routing import Layout, Settings, by_topic, layout_of, rebatched
from penstock.proto.errors import ConfigError, InvalidArgument, MessageTooLarge
from penstock.proto.wire.common_pb2 import MASTER
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardMember, ShardView, TopicRoute

MAP = pa.map_(pa.string(), pa.string())


def column(of: Any) -> list[bytes]:
    starts = [0, *of.ends.tolist()]
    return [of.data[start:end].tobytes() for start, end in itertools.pairwise(starts)]


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02 "), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=20),
            st.none() | words,
            st.none() | st.lists(words, max_size=3),
            st.none() | st.dictionaries(words.map("p".__add__), words, max_size=3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_rows_are_encoded_as_a_producer_encodes_them(rows: list[Any]) -> None:
    bodies, tags, keys, properties = (list(part) for part in zip(*rows, strict=True))
    made = Rows(
        batch(
            body=pa.array(bodies, pa.binary()),
            tags=pa.array(tags, pa.string()),
            keys=pa.array(keys, pa.list_(pa.string())),
            properties=pa.array([None if each is None else list(each.items()) for each in properties], MAP),
        )
    )
    assert column(made.bodies) == bodies
    for encoded, tag, some, more in zip(column(made.properties), tags, keys, properties, strict=True):
        wanted = decode_properties(property_bytes(tag, some, more, None) or b"") if _plain(tag) else None
        found = decode_properties(encoded)
        assert wanted is None or found == wanted


def _plain(tag: str | None) -> bool:
    return tag is None or not (tag != tag.strip() or "||" in tag)


def test_what_a_column_gives_and_what_brokers_write_is_not_taken_from_the_map() -> None:
    pairs = [("__PSEQ", "1"), ("TAGS", "old"), ("KEYS", "kept"), ("UNIQ_KEY", "id"), ("__CRC32#", "9"), ("a", "")]
    made = Rows(batch(body=[b"x"], tags=["new"], properties=pa.array([pairs], MAP)))
    assert decode_properties(column(made.properties)[0]) == {"TAGS": "new", "KEYS": "kept", "UNIQ_KEY": "id"}


def test_a_sliced_map_column_keeps_its_rows() -> None:
    whole = pa.array([[("a", "1")], None, [("b", "2"), ("c", "3")], []], MAP)
    made = Rows(batch(body=[b"x"] * 4, properties=whole).slice(1, 2))
    assert [decode_properties(each) for each in column(made.properties)] == [{}, {"b": "2", "c": "3"}]


def test_columns_that_spark_declares_not_null_are_taken() -> None:
    strict = pa.list_(pa.field("element", pa.string(), nullable=False))
    strict_map = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    keys = pa.array([["a", "b"], ["c"], [], None], strict)
    maps = pa.array([[("p", "1")], [], [("q", "2")], None], strict_map)
    made = Rows(batch(body=[b"x"] * 4, keys=keys, properties=maps).slice(1, 3))
    assert [decode_properties(each) for each in column(made.properties)] == [{"KEYS": "c"}, {"q": "2"}, {}]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": pa.array([b"x", None], pa.binary())}, "row 1 of the batch: body is null"),
        ({"body": [b"x", b""]}, "row 1 of the batch: body is empty"),
        ({"body": [b"x" * (4 << 20), b"x" * ((4 << 20) + 1)]}, "row 1 of the batch: body of 4194305 bytes"),
        ({"body": [b"x", b"y"], "tags": ["a", "a\x01b"]}, "row 1 of the batch: column tags: the characters 0x00, 0x01"),
        ({"body": [b"x", b"y"], "keys": ["a", "a\0b"]}, "row 1 of the batch: column keys: the characters 0x00, 0x01"),
        ({"body": [b"x", b"y"], "keys": [None, "a\x02b"]}, "row 1 of the batch: column keys"),
        ({"body": [b"x", b"y"], "shardingKey": [None, "\x02"]}, "row 1 of the batch: column shardingKey"),
        ({"body": [b"x"] * 3, "properties": pa.array([[], None, [("a", "b\x02")]], MAP)}, "row 2 of the batch"),
        ({"body": [b"x"] * 2, "properties": pa.array([[("a", "b"), ("c", "d")], [("", "b")]], MAP)}, "row 1 of the"),
        (
            {"body": [b"x"] * 2, "queueId": pa.array([1, None], pa.int32())},
            "row 1 of the batch: column queueId is null",
        ),
        ({"body": [b"x"], "properties": pa.array([[("a", "b" * 40_000)]], MAP)}, "row 0 of the batch: its properties"),
        ({"body": [b"x"], "queueId": [-1]}, "row 0 of the batch: queueId -1 is not of 0..2147483647"),
        ({"body": [b"x"] * 2, "queueId": [0, (1 << 32) + 1]}, "row 1 of the batch: queueId 4294967297 is not of"),
        (
            {"body": [b"x"] * 3, "keys": [["a", "b"], None, ["New York", "b"]]},
            "row 2 of the batch: column keys: 'New York' has a blank",
        ),
    ],
)
def test_a_row_that_can_be_no_message_is_named(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises((InvalidArgument, MessageTooLarge), match=problem):
        Rows(batch(**columns))


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": [["a", "b"], None, ["c"], ["New York"]]},
        {"properties": pa.array([[("a", "b"), ("c", "d")], None, [("e", "f")], [("g", "\x01")]], MAP)},
    ],
)
def test_a_row_of_a_slice_is_named_by_its_place_in_it(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="row 2 of the batch"):
        Rows(batch(body=[b"x"] * 4, **columns).slice(1))


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_bodies_are_compressed_as_the_flag_says(algorithm: str) -> None:
    bodies, sys_flag = compressed(Rows(batch(body=[b"a" * 500, b"b"])).bodies, algorithm)
    assert [decompress(each, sys_flag) for each in column(bodies)] == [b"a" * 500, b"b"]


def test_the_schema_of_a_sink_is_checked_by_name() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    fields = {"s": types.StringType(), "i": types.IntegerType(), "b": types.BinaryType()}

    def check(option: str = "t", **columns: str) -> None:
        check_sink_schema(types.StructType([types.StructField(n, fields[k]) for n, k in columns.items()]), option)

    check(body="s")
    check("", body="b", topic="s")
    for columns, problem in (
        ({"boddy": "s"}, "did you mean 'body'"),
        ({"tags": "s"}, "there is no column body"),
        ({"body": "i"}, "column body is int"),
        ({"body": "s", "deliverAt": "i"}, "column deliverAt is int, it must be timestamp or bigint"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check(**columns)
    with pytest.raises(ConfigError, match="which topic"):
        check("", body="s")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(0, 40), max_size=8), st.integers(1, 17))
def test_chunks_are_the_same_however_spark_cuts_its_batches(one: list[int], other: list[int], rows: int) -> None:
    total = min(sum(one), sum(other))
    bodies = [b"%d:" % number + b"x" * (number % 7 * 100) for number in range(total)]
    bodies[3:4] = [b"3" * 2000] * len(bodies[3:4])  # more than a chunk takes

    def cuts(sizes: list[int]) -> list[list[int]]:
        start, found = 0, []
        for size in sizes:
            stop = min(start + size, total)
            found.append(batch(body=pa.array(bodies[start:stop], pa.binary())))
            start = stop
        return [part.column(0).to_pylist() for part in rebatched(found, rows, 1000)]

    assert cuts(one) == cuts(other)
    assert [row for part in cuts(one) for row in part] == bodies
    assert all(len(part) == 1 or (len(part) <= rows and sum(map(len, part)) <= 1000) for part in cuts(one))


@pytest.mark.parametrize("lanes", [1, 2, 3, 64])
def test_a_row_goes_where_a_producer_sends_it_and_a_queue_belongs_to_one_target(lanes: int) -> None:
    layout = Layout("t", "a:4;b:3", lanes)
    owners = [(target.broker, queue) for target in layout.targets for queue in target.queues]
    assert sorted(owners) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1), ("b", 2)]
    keys = [f"key-{number}" for number in range(200)]
    rows = Rows(batch(body=[b"x"] * 200, shardingKey=keys))
    for piece in layout.split(rows, 0):
        target = layout.targets[piece.target]
        for queue_id, encoded in zip(piece.queue_ids.tolist(), column(piece.properties), strict=True):
            key = decode_properties(encoded)["__SHARDINGKEY"]
            assert layout.queues.queue(layout.queues.index_of_hash(string_hash(key))) == (target.broker, queue_id)
            assert queue_id in target.queues
    assert sum(len(piece.queue_ids) for piece in layout.split(rows, 0)) == 200
    plain = Rows(batch(body=[b"x"] * 50))
    seen = {piece.target for turn in range(len(layout.targets)) for piece in layout.split(plain, turn)}
    assert seen == set(range(len(layout.targets)))


def test_rows_without_a_sharding_key_go_anywhere_and_the_others_where_their_keys_belong() -> None:
    layout = Layout("t", "a:4;b:3", 2)
    keys = pa.array(["one", None, "two", None], pa.string())
    seen = set()
    for turn in range(7):
        rows = Rows(batch(body=[b"0", b"1", b"2", b"3"], shardingKey=keys), turn)
        for piece in layout.split(rows, turn):
            for body, queue_id, encoded in zip(
                column(piece.bodies), piece.queue_ids.tolist(), column(piece.properties), strict=True
            ):
                place = layout.targets[piece.target].broker, queue_id
                key = decode_properties(encoded).get("__SHARDINGKEY")
                if key is None:
                    seen.add(place)
                else:
                    assert (key, place) == (
                        keys[int(body)].as_py(),
                        layout.queues.queue(layout.queues.index_of_hash(string_hash(key))),
                    )
    assert len(seen) == 7
    nobody = Rows(batch(body=[b"x"] * 50, shardingKey=pa.array([None] * 50, pa.string())))
    assert [len(piece.queue_ids) for piece in layout.split(nobody, 0)] == [50]


def test_a_routing_key_decides_the_queue_and_the_sharding_key_is_kept_as_it_was() -> None:
    layout = Layout("t", "a:4;b:3", 2)
    routes = pa.array(["r", "r", None], pa.string())
    own = pa.array([[("__SHARDINGKEY", "own")]] * 3, MAP)
    for more in ({"shardingKey": pa.array(["anna", None, "bob"], pa.string())}, {"properties": own}):
        rows = Rows(batch(body=[b"0", b"1", b"2"], routingKey=routes, **more))
        found = {}
        for piece in layout.split(rows, 0):
            bodies, said = column(piece.bodies), column(piece.properties)
            for body, queue_id, encoded in zip(bodies, piece.queue_ids.tolist(), said, strict=True):
                place = layout.targets[piece.target].broker, queue_id
                found[int(body)] = (place, decode_properties(encoded).get("__SHARDINGKEY"))
        routed = layout.queues.queue(layout.queues.index_of_hash(string_hash("r")))
        assert [found[number][0] for number in (0, 1)] == [routed] * 2
        kept = ["anna", None, "bob"] if "shardingKey" in more else ["own"] * 3
        assert [found[number][1] for number in range(3)] == kept
    assert layout.queues.queue(layout.queues.index_of_hash(string_hash("bob"))) != routed


def test_queue_ids_are_those_that_were_asked_for() -> None:
    layout = Layout("t", "a:4;b:3", 2)
    rows = Rows(batch(body=[b"x"] * 4, queueId=[0, 1, 3, 2]))
    found = {(layout.targets[p.target].broker, q) for p in layout.split(rows, 0) for q in p.queue_ids.tolist()}
    assert found == {("a", 0), ("b", 1), ("a", 2), ("a", 3)}
    with pytest.raises(InvalidArgument, match="row 0 of the batch: topic t has no queue 4: its last one is 3"):
        list(layout.split(Rows(batch(body=[b"x"], queueId=[4])), 0))


def test_topics_of_a_batch_are_taken_apart_in_order() -> None:
    parts = dict(by_topic(batch(topic=["a", "b", "a"], body=[b"1", b"2", b"3"]), ""))
    assert {name: part.column("body").to_pylist() for name, part in parts.items()} == {
        "a": [b"1", b"3"],
        "b": [b"2"],
    }
    with pytest.raises(InvalidArgument, match="row 1 of the batch: topic is null"):
        list(by_topic(batch(topic=["a", None], body=[b"1", b"2"]), ""))
    assert [name for name, _ in by_topic(batch(topic=["a", None], body=[b"1", b"2"]), "t")] == ["t"]


def test_a_large_piece_is_cut_by_bytes() -> None:
    layout = Layout("t", "a:1", 1)
    (piece,) = layout.split(Rows(batch(body=[bytes([65 + number]) * 1000 for number in range(10)])), 0)
    parts = cut(piece, 3500, 0)
    assert [len(part.queue_ids) for part in parts] == [3, 3, 3, 1]
    assert np.concatenate([part.bodies.data for part in parts]).tobytes() == piece.bodies.data.tobytes()


def test_content_is_the_same_in_any_order_and_division_and_no_other_is() -> None:
    def of(*parts: tuple[str, list[bytes]]) -> str:
        found = []
        for topic, bodies in parts:
            content = Content()
            content.add(topic, Rows(batch(body=bodies)).bodies)
            found.append(content)
        return str(Content.total(found))

    whole = of(("t", [b"a", b"b", b"c"]))
    assert whole.startswith("3;")
    assert of(("t", [b"c"]), ("t", [b"b", b"a"])) == whole
    for other in ([b"a", b"b", b"d"], [b"a", b"b"], [b"a", b"b", b"c", b"c"], [b"a", b"a", b"c"]):
        assert of(("t", other)) != whole
    assert of(("u", [b"a", b"b", b"c"])) != whole


def test_the_settings_that_brokers_keep_are_read_again() -> None:
    kept = Settings(1 << 20, 4, "lz4", 500)
    assert Settings.parse(str(kept)) == kept


def test_a_column_that_arrow_splits_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = batch(body=[b"a"]), batch(body=[b"b"])
    split = pa.Table.from_batches([one, other])
    stays_split = SimpleNamespace(combine_chunks=lambda: split)
    monkeypatch.setattr(pa, "Table", SimpleNamespace(from_batches=lambda parts: stays_split))
    assert [part.column(0).to_pylist() for part in rebatched([one, other], 10)] == [[b"a"], [b"b"]]


def test_a_chunk_with_a_long_topic_is_as_large_as_it_was_asked_to_be() -> None:
    made = Rows(batch(body=[b"x" * 10] * 1000))
    (piece,) = Layout("t" * 127, "broker-a:1", 1).split(made, 0)
    for part in cut(piece, 10_000, 127):
        rows = len(part.queue_ids)
        assert (
            encoded_bytes(rows, len(part.bodies.data), len(part.properties.data), 127, SysFlag.STORE_HOST_V6, 20)
            <= 10_000
        )


def test_large_types_of_spark_are_taken() -> None:
    large_map = pa.map_(pa.large_string(), pa.large_string())
    made = Rows(
        batch(
            body=pa.array([b"x"] * 3, pa.large_binary()),
            tags=pa.array(["a", None, "b"], pa.large_string()),
            shardingKey=pa.array(["k"] * 3, pa.large_string()),
            keys=pa.array([["c", "d"], None, ["e"]], pa.list_(pa.large_string())),
            properties=pa.array([[("p", "1")], None, [("q", "2")]], large_map),
        ).slice(1)
    )
    wanted = [{"__SHARDINGKEY": "k"}, {"TAGS": "b", "KEYS": "e", "__SHARDINGKEY": "k", "q": "2"}]
    assert [decode_properties(each) for each in column(made.properties)] == wanted
    keys = pa.array([["c", "d"], ["e"]], pa.large_list(pa.large_string()))
    assert [decode_properties(each) for each in column(Rows(batch(body=[b"x"] * 2, keys=keys)).properties)] == [
        {"KEYS": "c d"},
        {"KEYS": "e"},
    ]


def test_content_tells_a_topic_made_anew_from_a_broker_group_that_came_or_went() -> None:
    first = Content(10, 7)
    first.add_created([1000, 1005])
    assert str(first) == "10;0000000000000007;1005"

    def again(*created: int) -> Content:
        found = Content(10, 7)
        found.add_created(created)
        return Content.total([found, Content()])

    for created in ((1000, 1005), (1005,), (1000, 1005, 9000), ()):
        assert again(*created).is_same(str(first))
        assert not again(*created).is_anew(str(first))
    assert again(9000, 9001).is_anew(str(first))
    assert not Content(10, 8).is_same(str(first))


def test_the_layout_of_an_order_topic_has_the_shards_that_are_away_too() -> None:
    route = TopicRoute(
        topic="steps",
        exists=True,
        queues=[QueueData(broker_name="a", read_queues=2, write_queues=2, perm=6)],
        shards=[ShardView(broker_name="a", members=[ShardMember(role=MASTER, address="x:1")])],
        attributes={"order.conf": "a:2;b:2"},
    )
    assert layout_of(route) == "a:2;b:2"
    route.attributes.clear()
    assert layout_of(route) == "a:2"


def schema_of(**types: str) -> Any:
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in types.items()
    ]
    return SimpleNamespace(fields=fields)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("key", "column 'key' means nothing: give shardingKey, which keeps its rows in order in one queue; keys, if"),
        ("value", "column 'value' means nothing: give body"),
        ("brokerName", "column 'brokerName' means nothing: it tells of a message that was read; select the others"),
    ],
)
def test_columns_of_other_systems_and_of_the_source_are_told_what_they_are_here(column: str, told: str) -> None:
    schema = schema_of(body="binary", **{column: "string"})
    with pytest.raises(ConfigError, match=told):
        check_sink_schema(schema, "t")


def test_a_column_without_type_is_as_good_as_none() -> None:
    check_sink_schema(schema_of(body="binary", tags="void"), "t")
    with pytest.raises(ConfigError, match="there is no column body, but one that is null in every row"):
        check_sink_schema(schema_of(body="void"), "t")
    with pytest.raises(ConfigError, match="which topic"):
        check_sink_schema(schema_of(body="binary", topic="void"), "")
    (whole,) = rebatched([batch(body=[b"x"], tags=pa.array([None], pa.null()))], 10)
    assert whole.schema.names == ["body"]
