"""Options of ``format("penstock")``: what is wrong is named before anything runs."""

from __future__ import annotations

import pytest

from penstock.pipeline.topics.options import Queue, sink_options, source_options
from penstock.proto.errors import ConfigError
from penstock.runtime.security.credentials import SecurityFiles

GOOD = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "orders"}, "penstock: nameServer is missing: the nameservers, as"),
        ({"nameServer": "somewhere", "subscribe": "orders"}, "must be host:port"),
        ({"nameServer": "a:1"}, "which topics"),
        (GOOD | {"subscribe": "a b"}, "option subscribe: topic 'a b'"),
        (GOOD | {"assign": "{}"}, "options subscribe and assign: give only one"),
        (GOOD | {"startingOfsets": "latest"}, "no option 'startingOfsets' .did you mean 'startingOffsets'"),
        (GOOD | {"somethingElse": "1"}, "penstock: no option 'somethingElse'"),
        (GOOD | {"startingOffsets": "earlist"}, "did you mean 'earliest'"),
        (GOOD | {"startingOffsets": "{"}, "option startingOffsets: '{' is no JSON"),
        (GOOD | {"startingOffsets": "latest", "startingTimestamp": "1"}, "give only one of startingOffsets"),
        (GOOD | {"startingOffsets": "group"}, "the option group must name it"),
        (GOOD | {"startingTimestamp": "-1"}, "penstock: startingTimestamp is '-1'"),
        (GOOD | {"endingOffsets": "earliest"}, "option endingOffsets"),
        (GOOD | {"endingOffsets": '{"orders": {"a": {"0": -2}}}'}, "is no end"),
        (GOOD | {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for stream reads"),
        (GOOD | {"minPartitions": "5", "maxPartitions": "2"}, "minPartitions 5 is more than maxPartitions 2"),
        (GOOD | {"batchRows": "0"}, "penstock: batchRows is '0': expected a whole number of 1"),
        (GOOD | {"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe': expected true or false"),
        (GOOD | {"properties": "maps"}, "did you mean 'map'"),
        (GOOD | {"subExpression": "a", "filterSql": "b"}, "give only one"),
        ({"nameServer": "a:1", "subscribePattern": "("}, "no regular expression"),
        ({"nameServer": "a:1", "assign": '{"t": {"a": 0}}'}, "not of the form"),
        ({"nameServer": "a:1", "assign": '{"t": {"a": [true]}}'}, "not of the form"),
        ({"nameServer": "a:1", "assign": "[" * 100_000}, "not of the form"),
        (GOOD | {"fetchTimeoutMs": "15m"}, "fetchTimeoutMs is '15m': expected a whole number of 100..3,600,000"),
        (GOOD | {"batchRows": "9" * 5000}, "expected a whole number"),
        ({"nameServer": "a:1", "assign": '{"t": {"a": [1.5]}}'}, "not of the form"),
        ({"nameServer": "a:1", "assign": '{"t": {"a": [-1]}}'}, "not of the form"),
        (GOOD | {"group": "bad name"}, "group 'bad name'"),
        (GOOD | {"kafka.bootstrap.servers": "k:9092"}, "no option 'kafka.bootstrap.servers': give nameServer"),
        (GOOD | {"includeheaders": "true"}, "give nothing: the column properties has what Kafka's headers have"),
        (GOOD | {"maxRecordsPerPartition": "5"}, "give targetBytesPerPartition"),
        (GOOD | {"subExpression": "paid | sent"}, r"subExpression is 'paid \| sent': write \|\| between tags"),
        ({"nameServer": "a:1", "path": "orders"}, r"load\(\) takes no topics, say subscribe=orders"),
        ({"path": "file:/warehouse/t", "owner": "me"}, "Spark gives the options of a table in its catalog to no"),
        (GOOD | {"startingTimestamp": "2200-01-01"}, "startingTimestamp is '2200-01-01': .*, from 1970 to 2109"),
        (GOOD | {"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday': expected a time as 2030-01-31"),
        (
            GOOD | {"startingOffsetsByTimestamp": '{"orders": {"a": {"0": "noon"}}}'},
            "topic orders, broker a, queue 0: 'noon': expected a time as 2030-01-31",
        ),
        (GOOD | {"tlsKeyFile": "/own.key"}, "TLS: the file with the authorities' certificates is missing: tlsCaFile"),
        (GOOD | {"credentials": "PLANTED"}, "no option 'credentials' .did you mean 'credentialsFile'"),
    ],
)
def test_a_wrong_option_of_a_batch_read_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        source_options(options, streaming=False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (GOOD | {"endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        (GOOD | {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "give only one"),
        (GOOD | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "2"}, "is more than maxOffsetsPerTrigger"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        source_options(options, streaming=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topic": "orders"}, "penstock: nameServer is missing: the nameservers, as"),
        ({"owner": "me"}, r"nameServer is missing. Spark gives the options of a table .* INSERT INTO … WITH"),
        ({"nameServer": "a:1", "subscribe": "orders"}, "no option 'subscribe': give topic"),
        ({"nameServer": "a:1", "deliveryGuarantee": "exactly_once"}, "did you mean 'exactly-once'"),
        ({"nameServer": "a:1", "compression": "zip"}, "compression is 'zip': expected one of none, zstd"),
        ({"nameServer": "a:1", "topic": "a b"}, "option topic: topic 'a b'"),
        ({"nameServer": "a:1", "topic": "rmq_sys_PENSTOCK_STATE"}, "is internal"),
        ({"nameServer": "a:1", "topics": "orders"}, "no option 'topics': give subscribe, or topic to write"),
        ({"nameServer": "a:1", "producerId": "ä"}, "option producerId"),
        (
            {"nameServer": "a:1", "batchBytes": "1g"},
            "batchBytes is '1g': expected a whole number of 1,024..4,194,304, also with k",
        ),
        ({"nameServer": "a:1", "transactionTimeoutMs": "1000"}, "deliveryGuarantee=exactly-once: this is idempotent"),
        ({"nameServer": "a:1", "deliveryGuarantee": "at-least-once", "producerId": "p"}, "this is at-least-once"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        sink_options(options, streaming=False)


def test_a_stream_has_no_producer_id_of_its_users() -> None:
    with pytest.raises(ConfigError, match="producerId is for batch writes and foreachBatch"):
        sink_options({"nameServer": "a:1", "topic": "t", "producerId": "p"}, streaming=True)


def test_options_are_read_without_case_and_sizes_with_units() -> None:
    found = source_options(
        {"NAMESERVER": "a:1", "assign": '{"t": {"b": [0, 2]}}', "fetchmaxbytes": "2m", "path": "x"}, streaming=True
    )
    assert found.assigned == {Queue("t", "b", 0), Queue("t", "b", 2)}
    assert found.fetch_max_bytes == 2 << 20
    assert (found.starting.at, found.ending.at) == ("latest", "latest")
    loud = source_options(GOOD | {"startingOffsets": "EARLIEST", "endingOffsets": "Latest"}, streaming=False)
    assert (loud.starting.at, loud.ending.at) == ("earliest", "latest")
    assert sink_options({"nameServer": "a:1", "deliveryGuarantee": "Exactly-Once"}, streaming=True).guarantee == (
        "exactly-once"
    )
    assert source_options(GOOD, streaming=False).starting.at == "earliest"


def test_files_that_secure_connections_travel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"tlsCaFile": "/ca.pem", "tlscertfile": "/own.pem", "tlsKeyFile": "/own.key", "credentialsFile": "/keys"}
    wanted = SecurityFiles(
        tls_ca_file="/ca.pem", tls_cert_file="/own.pem", tls_key_file="/own.key", credentials_file="/keys"
    )
    assert source_options(GOOD | files, streaming=False).security == wanted
    assert sink_options({"nameServer": "a:1"} | files, streaming=False).security == wanted
    monkeypatch.setenv("PENSTOCK_TLS_CA_FILE", "/drivers.pem")
    assert source_options(GOOD, streaming=False).security == SecurityFiles(tls_ca_file="/drivers.pem")
    assert source_options(GOOD | files, streaming=False).security == wanted


def test_times_may_be_written_as_dates_in_every_option_that_has_one() -> None:
    noon = 1_893_498_600_000
    given = GOOD | {"startingTimestamp": "2030-01-01T12:30:00+01:00", "endingTimestamp": str(noon + 1)}
    read = source_options(given | {"endingTimestamp": "2030-01-01T11:30:00.001Z"}, streaming=False)
    assert (read.starting.timestamp_ms, read.ending.timestamp_ms) == (1_893_497_400_000, 1_893_497_400_001)
    times = '{"orders": {"a": {"0": "2030-01-01T11:50:00", "1": 5}}}'
    by_queue = source_options(GOOD | {"startingOffsetsByTimestamp": times}, streaming=True).starting.offsets
    assert by_queue == {Queue("orders", "a", 0): noon, Queue("orders", "a", 1): 5}


def test_what_spark_adds_to_a_table_is_no_option() -> None:
    assert source_options(GOOD | {"owner": "me", "provider": "penstock"}, streaming=False).topics == ("orders",)
