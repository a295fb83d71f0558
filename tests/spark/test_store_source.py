"""``format("penstock_store")`` in a real session."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.columns.schema import STORE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.proto.errors import ConfigError, Corrupt
from tests.support import golden


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("direct", tmp_path_factory.mktemp("golden") / "direct")


def load(spark: Any, store: Path, **options: str) -> Any:
    return spark.read.format("penstock_store").options(**options).load(str(store))


def test_the_rows_of_a_golden_store_arrive_in_spark(spark: Any, store: Path) -> None:
    rows = load(spark, store, splitBytes="4096").orderBy("physicalOffset").collect()
    wanted = golden.expected("direct")["messages"]
    assert [row["physicalOffset"] for row in rows] == [message["physicalOffset"] for message in wanted]
    assert [row["properties"] for row in rows] == [message["properties"] for message in wanted]
    assert {row["brokerName"] for row in rows} == {"direct"}


def test_a_table_of_sparks_catalog_is_read_with_options_of_the_query_which_the_error_says(
    spark: Any, store: Path, errors: Any
) -> None:
    spark.sql(f"CREATE TABLE stored USING penstock_store LOCATION '{store}'")
    try:
        wanted = len(golden.expected("direct")["messages"])
        assert spark.sql(f"SELECT count(*) FROM stored WITH (storePath='{store}')").first()[0] == wanted
        told = r"Spark gives the options of a table in its catalog to no Python source: CREATE TEMPORARY VIEW"
        errors(ConfigError, told, lambda: spark.sql("SELECT * FROM stored").collect())
    finally:
        spark.sql("DROP TABLE stored")
    spark.sql(f"CREATE TABLE stored USING penstock_store OPTIONS (storePath '{store}')")
    spark.sql(f"CREATE VIEW named AS SELECT * FROM stored WITH (storePath='{store}')")
    try:  # a view keeps the options for other sessions
        assert spark.newSession().sql("SELECT count(*) FROM named").first()[0] == wanted
    finally:
        spark.sql("DROP VIEW named")
        spark.sql("DROP TABLE stored")
    spark.sql(f"CREATE TEMPORARY VIEW seen USING penstock_store OPTIONS (storePath '{store}')")
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == wanted
    errors(ConfigError, told, lambda: spark.read.format("penstock").load().count())


def test_the_arrow_schema_of_unit_tests_is_the_one_that_spark_makes(spark: Any, store: Path) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    given = ", ".join(f"{name} {of}" for name, of in STORE_COLUMNS.items())
    frame = spark.read.schema(given).format("penstock_store").load(str(store))
    assert to_arrow_schema(frame.schema, timezone="UTC") == arrow_schema(STORE_COLUMNS)


@pytest.mark.parametrize("policy", ["fail", "skip", "emit"])
def test_spark_knows_which_columns_may_be_null(spark: Any, store: Path, policy: str) -> None:
    frame = load(spark, store, onCorrupt=policy)
    nullable = {field.name for field in frame.schema.fields if field.nullable}
    optional = {"tags", "keys", "body", "bornTimestamp", "storeTimestamp"}
    assert nullable == (set(frame.columns) if policy == "emit" else optional)
    types = {field.name: field.dataType for field in frame.schema.fields}
    assert not types["keys"].containsNull
    assert not types["properties"].valueContainsNull


def test_a_schema_may_not_say_that_a_column_is_never_null_where_it_may_be(spark: Any, store: Path) -> None:
    strict = load(spark, store).schema
    assert spark.read.schema(strict).format("penstock_store").load(str(store)).count()
    for options, schema in (({}, "tags string NOT NULL"), ({"onCorrupt": "emit"}, "topic string NOT NULL")):
        frame = spark.read.schema(schema).format("penstock_store").options(**options)
        with pytest.raises(Exception, match=f"column '{schema.split()[0]}' may be null: leave NOT NULL out"):
            frame.load(str(store)).collect()


def test_a_schema_selects_columns_in_any_order(spark: Any, store: Path) -> None:
    frame = spark.read.schema("size int, topic string").format("penstock_store").load(str(store))
    wanted = [(message["totalSize"], message["topic"]) for message in golden.expected("direct")["messages"]]
    assert sorted(tuple(row) for row in frame.collect()) == sorted(wanted)


def test_two_queries_on_one_dataframe_do_not_influence_each_other(spark: Any, store: Path) -> None:
    frame = load(spark, store)
    messages = golden.expected("direct")["messages"]
    few = frame.where("topic = 'Tags'").count()
    assert few == sum(message["topic"] == "Tags" for message in messages)
    assert frame.count() == len(messages)


def test_topics_and_a_view_work_in_sql(spark: Any, store: Path) -> None:
    load(spark, store, topics="Keys,Tags").createOrReplaceTempView("stored")
    counted = dict(spark.sql("select topic, count(*) from stored group by topic").collect())
    messages = golden.expected("direct")["messages"]
    assert counted == {name: sum(m["topic"] == name for m in messages) for name in ("Keys", "Tags")}


def test_queue_entries_are_those_that_rocketmq_reads(spark: Any, store: Path) -> None:
    found = {
        (row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"], row["size"], row["tagsCode"])
        for row in load(spark, store, view="queues").collect()
    }
    wanted = {
        (queue["topic"], queue["queueId"], *entry[:4])
        for queue in golden.expected("direct")["queues"]
        for entry in queue["entries"]
        if len(entry) == 4 and 0 < entry[2] < (1 << 31) - 1
    }
    assert found == wanted


def test_bad_input_is_refused_when_the_frame_is_loaded(spark: Any, store: Path, tmp_path: Path, errors: Any) -> None:
    errors(ConfigError, "no option 'topicz' .*'topics'", lambda: load(spark, store, topicz="a"))
    errors(ConfigError, "no such directory", lambda: load(spark, tmp_path / "absent"))
    errors(ConfigError, "queueIds is 'x': expected a number", lambda: load(spark, store, queueIds="x"))
    wrong = spark.read.schema("topik string").format("penstock_store")
    errors(ConfigError, "no column 'topik' .*'topic'", lambda: wrong.load(str(store)).collect())
    wrong = spark.read.schema("size string").format("penstock_store")
    errors(ConfigError, "'size' is of type int", lambda: wrong.load(str(store)).collect())


def test_a_topic_that_is_in_no_store_is_refused_before_a_task_runs(spark: Any, store: Path, errors: Any) -> None:
    errors(ConfigError, "there is no topic 'Tgas' in .*'Tags'", lambda: load(spark, store, topics="Keys,Tgas").count())
    errors(ConfigError, "there is no topic 'Tgas'", lambda: load(spark, store, topics="Tgas", view="queues").count())
    assert load(spark, store, topics="Tgas", useConsumeQueue="false").count() == 0


def test_a_topic_whose_queue_lost_its_end_is_read_whole(spark: Any, tmp_path: Path) -> None:
    store = golden.unpack("normal", tmp_path / "normal", only=("commitlog", "consumequeue"))
    path = store / "consumequeue" / "%DLQ%GoldRetryGroup" / "0" / f"{0:020d}"
    entries = path.read_bytes()
    path.write_bytes(entries[:20] + bytes(len(entries) - 20))
    assert load(spark, store, topics="%DLQ%GoldRetryGroup").count() == 2


def test_streams_and_writes_are_refused_with_what_to_use_instead(
    spark: Any, store: Path, tmp_path: Path, errors: Any
) -> None:
    def stream() -> None:
        frame = spark.readStream.format("penstock_store").load(str(store)).select("topic")
        query = frame.writeStream.format("memory").queryName("refused").option("checkpointLocation", str(tmp_path))
        query.start().awaitTermination()

    errors(ConfigError, r"not as a stream: use spark.read, or .*format\('penstock'\)", stream)
    rows = spark.range(1).selectExpr("'a' as topic", "cast('b' as binary) as body")
    written = rows.write.format("penstock_store").mode("append")
    errors(ConfigError, r"stores are only read, .*df.write.format\('penstock'\)", lambda: written.save(str(store)))

    def stream_out() -> None:
        rate = spark.readStream.format("rate").load().selectExpr("cast(value as string) as topic")
        query = rate.writeStream.format("penstock_store").option("checkpointLocation", str(tmp_path / "out"))
        query.start(str(store)).awaitTermination()

    errors(ConfigError, "stores are only read", stream_out)


def test_damage_fails_the_query_unless_told_otherwise(spark: Any, tmp_path: Path, errors: Any) -> None:
    store = golden.unpack("direct", tmp_path / "direct", only=("commitlog",))
    victim = golden.expected("direct")["messages"][20]
    place = victim["physicalOffset"]
    path = store / "commitlog" / f"{place // 16384 * 16384:020d}"
    content = bytearray(path.read_bytes())
    content[place % 16384 + 88] ^= 1  # a bit of the body
    path.write_bytes(content)
    errors(Corrupt, f"{place}: the body does not match", lambda: load(spark, store).collect())
    assert load(spark, store, onCorrupt="skip").count() == 197
    rows = load(spark, store, onCorrupt="emit").where("corrupt is not null").collect()
    assert [(row["physicalOffset"], row["size"]) for row in rows] == [(place, victim["totalSize"])]


def test_a_local_sessions_sockets_are_for_this_user_only(spark: Any, store: Path) -> None:
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load(spark, store).count() > 0
    assert any(path.is_socket() for path in folder.iterdir())
