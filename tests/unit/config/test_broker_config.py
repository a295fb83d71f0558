"""``broker.conf``: RocketMQ's keys and defaults, and what is refused before anything starts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.config import (
    BrokerConfig,
    BrokerRole,
    MetricsExporterType,
    load_broker_config,
)
from penstock.broker.opening import store_config
from penstock.broker.store import FlushMode
from penstock.broker.unsupported_keys import RELIED_ON, UNSUPPORTED_KEYS
from penstock.proto.errors import ConfigError
from penstock.runtime.conf import effective, keyed_fields
from penstock.runtime.security.credentials import Credentials

KEYS = [name for name, _ in keyed_fields(BrokerConfig)]


def load(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.conf"
    path.touch(mode=0o600)
    path.write_text(text)
    return load_broker_config(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path / "broker.conf"), "FILE")


def test_an_empty_file_gives_rocketmqs_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.identity.cluster == "DefaultCluster"
    assert (config.identity.broker_id, config.identity.listen_port) == (0, 10911)
    assert config.replication.role is BrokerRole.ASYNC_MASTER
    assert config.replication.in_sync_replicas == 1
    assert config.store.flush_mode is FlushMode.ASYNC_FLUSH
    assert config.store.root == Path.home() / "store"
    assert config.store.segment_bytes == 1 << 30
    assert config.store.consume_queue_bytes == 6_000_000
    assert config.store.body_bytes_max == 4 << 20
    assert config.metrics.exporter is MetricsExporterType.DISABLE
    assert config.topics.auto_create


def test_every_supported_key_is_read(tmp_path: Path) -> None:
    text = """
        brokerClusterName = c1
        brokerName = broker-a
        brokerId = 2
        brokerIP1 = 10.0.0.7
        listenPort = 20911
        dataPort = 20912
        gatewayPort = 20913
        bindAddress = 0.0.0.0
        namesrvAddr = ns-1:9876;10.0.0.2:9876;[::1]:9876
        brokerRole = SLAVE
        inSyncReplicas = 3
        slaveTimeout = 1000
        haMaxGapNotInSync = 1048576
        haMasterAddress = master:10911
        slaveReadEnable = true
        asyncLearner = true
        minInSyncReplicas = 2
        enableAutoInSyncReplicas = true
        haMaxTimeSlaveNotCatchup = 5000
        brokerElectionPriority = 1
        haTransferBatchSize = 32768
        haFlowControlEnable = true
        maxHaTransferByteInSecond = 1048576
        flushDiskType = SYNC_FLUSH
        flushIntervalCommitLog = 100
        flushCommitLogThoroughInterval = 2000
        syncFlushTimeout = 3000
        transientStorePoolEnable = true
        transientStorePoolSize = 2
        fastFailIfNoBufferInStorePool = true
        commitIntervalCommitLog = 100
        commitCommitLogLeastPages = 1
        commitCommitLogThoroughInterval = 300
        storePathRootDir = /data/store
        storePathCommitLog = /log
        readOnlyCommitLogStorePaths = /old
        enabledAppendPropCRC = true
        forceVerifyPropCRC = true
        mappedFileSizeCommitLog = 67108864
        mappedFileSizeConsumeQueue = 1001
        maxMessageSize = 1000000
        messageIndexEnable = false
        maxHashSlotNum = 100
        maxIndexNum = 400
        messageDelayLevel = 1s 1d
        warmMapedFileEnable = true
        mlockMappedFileEnable = true
        enableLmq = true
        enableMultiDispatch = true
        maxLmqConsumeQueueNum = 7
        osPageCacheBusyTimeOutMills = 500
        fileReservedTime = 48
        deleteWhen = 04;16
        diskMaxUsedSpaceRatio = 70
        diskSpaceCleanForciblyRatio = 80
        diskSpaceWarningLevelRatio = 88
        cleanFileForciblyEnable = false
        cleanResourceInterval = 5000
        deleteCommitLogFilesInterval = 50
        deleteFileBatchMax = 5
        destroyMapedFileIntervalForcibly = 60000
        protectUnreadMessages = true
        autoCreateTopicEnable = false
        maxTopicNum = 100
        maxSubscriptionGroupNum = 100
        maxAttributeBytes = 1000
        maxSubscriptionsPerClient = 10
        maxClientsPerGroup = 10
        maxConsumerSessions = 10
        maxProducerLanes = 2000
        maxLanesPerProducer = 100
        maxWaitingFetches = 10
        maxFetchesPerConnection = 10
        maxFetchBytesHeld = 67108864
        maxConcurrentCalls = 1000
        defaultTopicQueueNums = 4
        autoCreateSubscriptionGroup = false
        enablePropertyFilter = false
        timerMaxDelaySec = 3600
        timerMessagesMax = 1000
        msgTraceTopicName = my-traces
        metricsExporterType = PROM
        metricsPromExporterPort = 0
        metricsPromExporterHost = 127.0.0.1
        tls.server.mode = enforcing
        tls.server.certPath = /tls/broker.pem
        tls.server.keyPath = /tls/broker.key
        tls.server.trustCertPath = /tls/ca.pem
        tls.server.need.client.auth = require
        tls.client.certPath = /tls/client.pem
        tls.client.keyPath = /tls/client.key
        tls.client.trustCertPath = /tls/others.pem
        tls.client.serverName = broker.example
        authenticationEnabled = true
        authConfigPath = /users
        aclEnable = true
        ignoreUnsupported = aclEnable
        innerClientAuthenticationCredentials = {"accessKey":"cluster","secretKey":"PLANTED"}
        """
    unlike_a_slaves = {"enableControllerMode", "allAckInSyncStateSet"}
    before = effective(BrokerConfig())
    others = {name: value for name, value in before.items() if f" {name} =" not in text and name not in unlike_a_slaves}
    text += "".join(f"{name} = {_other(value)}\n" for name, value in others.items() if _other(value))
    config = load(tmp_path, text)
    assert config.advertised_address == "10.0.0.7:20911"
    assert config.nameservers.addresses == ("ns-1:9876", "10.0.0.2:9876", "[::1]:9876")
    assert config.store.consume_queue_bytes == 1020
    after = effective(config)
    same = {name for name in KEYS if before[name] == after[name]} - unlike_a_slaves - {"bindAddress"}
    assert same == {"innerClientAuthenticationCredentials"}  # shown as *** whatever it is
    assert config.security.authentication.credentials() == Credentials("cluster", "PLANTED")
    assert "PLANTED" not in repr(config) + str(after)


def _other(value: str) -> str:
    """Another value of a key that needs none in particular, as the keys of most features do; empty if there is none."""
    flipped = {"true": "false", "false": "true"}
    return str(int(value) + 1) if value.isdecimal() else flipped.get(value, "")


def test_the_sample_file_of_rocketmq_is_accepted_with_named_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(
            tmp_path,
            "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
            "fileReservedTime = 48\nregionId = here\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
        )
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        "regionId",
    ]


def test_no_key_is_both_read_and_unsupported() -> None:
    assert not UNSUPPORTED_KEYS & set(KEYS)
    assert not RELIED_ON.keys() & {*KEYS, *UNSUPPORTED_KEYS}
    assert len(KEYS) == len(set(KEYS))
    assert len(UNSUPPORTED_KEYS) > 400


@pytest.mark.parametrize(("role", "copies"), [("ASYNC_MASTER", 1), ("SYNC_MASTER", 2)])
def test_the_default_number_of_replicas_follows_the_role(tmp_path: Path, role: str, copies: int) -> None:
    assert load(tmp_path, f"brokerRole = {role}").replication.in_sync_replicas == copies


def test_a_broker_that_listens_on_one_address_advertises_it(tmp_path: Path) -> None:
    assert load(tmp_path, "bindAddress = 127.0.0.1\nlistenPort = 7").advertised_address == "127.0.0.1:7"
    assert load(tmp_path, "bindAddress = ::1\nlistenPort = 7").advertised_address == "[::1]:7"


def test_the_ports_chosen_by_the_system_can_be_filled_in(tmp_path: Path) -> None:
    config = load(tmp_path, "bindAddress = 127.0.0.1\nlistenPort = 0")
    assert config.with_ports(4711, 4712).advertised_address == "127.0.0.1:4711"
    assert config.with_ports(4711, 4712).wire_identity.data_port == 4712


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flushDiskType = SYNC", "FILE:1: flushDiskType must be one of ASYNC_FLUSH, SYNC_FLUSH, not 'SYNC'"),
        (
            "\nbrokerRole = SLAVE",
            "FILE:2: brokerId must be greater than 0 with brokerRole=SLAVE: 0 is the master's, not '0'",
        ),
        (
            "brokerId = 1",
            "FILE:1: brokerRole must be SLAVE for every brokerId but 0, or enableControllerMode=true, "
            "not 'ASYNC_MASTER with brokerId=1'",
        ),
        (
            "brokerId=1\nbrokerRole=SLAVE",
            "FILE:2: namesrvAddr or haMasterAddress must be given with brokerRole=SLAVE: how else does "
            "it find its master, not 'none'",
        ),
        ("listenPort = 65536", "FILE:1: listenPort must be 0..65535 (0: any free port), not '65536'"),
        ("brokerIP1 = some-host", "FILE:1: brokerIP1 must be an IPv4 or IPv6 address, not 'some-host'"),
        (
            "brokerIP1 = 0.0.0.0",
            "FILE:1: brokerIP1 must be an address that others can connect to, not '0.0.0.0'",
        ),
        ("namesrvAddr = a:1;b", "FILE:1: namesrvAddr must be host:port with a port of 1..65535, not 'b'"),
        ("namesrvAddr = a:1;a:1", "FILE:1: namesrvAddr must name each nameserver once, not 'a:1;a:1'"),
        (
            "namesrvAddr = a:99999",
            "FILE:1: namesrvAddr must be host:port with a port of 1..65535, not 'a:99999'",
        ),
        ("inSyncReplicas = 0", "FILE:1: inSyncReplicas must be 1..16, not '0'"),
        (
            "mappedFileSizeCommitLog = 1048576",
            "FILE:1: mappedFileSizeCommitLog must be at least maxMessageSize + 65536: one record never "
            "spans two files; raise it or lower maxMessageSize, not '1048576'",
        ),
        ("defaultTopicQueueNums = 0", "FILE:1: defaultTopicQueueNums must be 1..65536, not '0'"),
        (
            "metricsExporterType = OTLP_GRPC",
            "FILE:1: metricsExporterType must be one of DISABLE, PROM, not 'OTLP_GRPC'",
        ),
        (
            "messageDelayLevel = 1s 5x",
            "FILE:1: messageDelayLevel must be numbers with the unit s, m, h or d, not '5x'",
        ),
        ("syncFlushTimeout = 0", "FILE:1: syncFlushTimeout must be 1..600000 ms, not '0'"),
        ("transientStorePoolSize = 0", "FILE:1: transientStorePoolSize must be 1..1000, not '0'"),
        ("commitIntervalCommitLog = 0", "FILE:1: commitIntervalCommitLog must be 1..600000 ms, not '0'"),
        ("commitCommitLogLeastPages = -1", "FILE:1: commitCommitLogLeastPages must be 0..1048576, not '-1'"),
    ],
)
def test_a_bad_value_is_refused_with_line_key_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, text) == message


def test_an_illegal_broker_name_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "brokerName = a/b").startswith("FILE:1: brokerName must be a legal name")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.dictionaries(st.sampled_from(KEYS), st.text(max_size=12) | st.integers(-(1 << 64), 1 << 64).map(str), max_size=6)
)
def test_any_values_load_or_raise_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.conf"
    path.write_bytes("\n".join(f"{k}={v}" for k, v in values.items()).encode(errors="surrogatepass"))
    try:
        load_broker_config(path)
    except ConfigError as error:
        assert "fuzz.conf:" in str(error)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("flushDiskType = SYNC_FLUSH", "flushDiskType=SYNC_FLUSH"),
        ("brokerRole = SLAVE\nbrokerId = 1\nhaMasterAddress = m:1", "brokerRole=SLAVE"),
        ("brokerRole = SYNC_MASTER", ""),
        ("enableControllerMode = true\nnamesrvAddr = n:1", ""),
    ],
)
def test_a_store_pool_without_effect_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, because: str
) -> None:
    config = load(tmp_path, f"transientStorePoolEnable = true\ntransientStorePoolSize = 3\n{text}")
    assert config.uses_transient_store_pool == (not because)
    assert store_config(config).buffers == (0 if because else 3)
    assert (f"transientStorePoolEnable has no effect with {because} " in caplog.text) == bool(because)


def test_light_queues_need_both_of_their_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(tmp_path, "enableLmq = true\nenableMultiDispatch = true\nmaxLmqConsumeQueueNum = 7")
    assert store_config(config).has_light_queues
    assert store_config(config).light_queues_max == 7
    assert not caplog.messages
    assert not store_config(load(tmp_path, "enableLmq = true")).has_light_queues
    assert "light queues are off" in caplog.text


def test_extensions_of_consume_queues_are_a_warning_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, "enableConsumeQueueExt = true")
    assert "enableConsumeQueueExt" in caplog.text
