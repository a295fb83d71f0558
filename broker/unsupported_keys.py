"""Keys of RocketMQ's ``broker.conf`` that Penstock has nothing for: a warning by name, or the end of the start.

A file that serves a RocketMQ broker shall start a Penstock broker too, and the operator shall read which of its
lines have no effect here. Keys of a feature move out of this list when the feature comes.
Source: the setters of BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig, AuthConfig and the
tiered store's MessageStoreConfig of RocketMQ 5.3.
"""

from __future__ import annotations

from penstock.runtime.conf import Relied

UNSUPPORTED_KEYS: frozenset[str] = frozenset(
    """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable accountStatsPrintZeroValues
    ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable appendAckAsync
    appendCkAsync asyncSendEnable authenticationMetadataProvider authenticationStrategy authenticationWhitelist
    authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
    autoDeleteUnusedStats autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerConfigPath brokerContainerIP brokerFastFailureEnable brokerHeartbeatInterval brokerIP2
    brokerNotActiveTimeoutMillis brokerTopicEnable cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval
    checkCRCOnRecover checkSyncStateSetPeriod cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
    clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
    clientSocketSndBufSize clientWorkerThreads clusterName clusterTopicEnable coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf
    combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType commercialBaseCount
    commercialSizePerMsg commitLogForceSwapMapInterval commitLogRollingInterval commitLogRollingMinimumSize
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv compressedRegister configBlackList
    configManagerVersion configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums consumerOffsetUpdateVersionStep controllerAddr
    controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
    dataReadAheadEnable debugLockEnable defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum
    delayOffsetUpdateVersionStep deleteConsumeQueueFilesInterval disableCallbackExecutor disableNettyWorkerGroup
    disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread dLegerGroup
    dLegerPeers dLegerSelfId duplicationEnable enableAcceleratedRecovery enableAsyncReput enableBatchPush
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableConnectionMetrics enableConsumeQueueExt enableCreateSysGroup enableDetailStat enableFastChannelEventProcess
    enableLagAndDlqMetrics enableLmqStats enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics
    enableMixedMessageType enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
    enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold
    enablePopMetrics enableReconnectForGoAway enableRegisterProducer enableRemotingMetrics enableRequestMetrics
    enableRetryTopicV2 enableRocksDBLog enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck enableSplitMetadata
    enableSplitRegistration enableStatsMetrics enableTransactionMetrics endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter fetchControllerAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval filterDataCleanTimeSpan
    filterSupportRetry flushCommitLogLeastPages flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval
    flushDelayOffsetInterval flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister forwardTimeout
    globalColdReadThreshold haHousekeepingInterval haListenPort haSendHeartbeatInterval heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode initAuthenticationUser initPopOffsetByCheckMsgInMem isolateLogEnable
    isScanAvailableNameSrv litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    lockInStrictMode logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum longPollingEnable mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
    mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxConsumeQueueScan maxErrorRateOfBloomFilter maxFilterMessageSize maxMsgsNumBatch maxOffsetMapSize
    maxPopPollingSize maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxSlaveResendLength
    maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageIndexSafe
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    notifyConsumerIdsChangedEnable objectStoreAccessKey objectStoreBucket objectStoreEndpoint
    objectStoreSecretKey offsetCheckInSlave popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
    popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
    popConsumerKVServiceLog popFromRetryProbability popLongPollingForceNotifyInterval
    popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize popResponseReturnActualRetryTopic
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead preferredLeaderId printChannelGroups printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity readAheadCacheEnable
    readAheadCacheExpireDuration readAheadCacheSizeThresholdRate readAheadMessageCountThreshold
    readAheadMessageSizeThreshold readUnCommitted realTimeNotifyConsumerChange realTimePersistRocksDBConfig
    recallMessageEnable recheckReputOffsetFromCq recordGetMessageResult recoverConcurrently recoverThreadPoolNums
    redeleteHangedFileInterval regionId registerBrokerTimeoutMills registerNameServerPeriod
    replicasPerDiskPartition replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
    reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome rocksdbCompressionType
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scanAvailableNameSrv
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
    sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shortPollingTimeMills shutdownWaitTimeSeconds
    skipPreOnline skipWhenCKRePutReachMaxTimes socksProxyConfig spinLockCollisionRetreatOptimalDegree splitMetadataSize
    splitRegistrationSize startAcceptSendRequestTimeStamp statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    statRocksDBCQIntervalSec storePathBrokerIdentity storePathDLedgerCommitLog storeReplyMessageEnable
    subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
    syncFromLastFile syncMasterFlushOffsetWhenStartup tieredBackendServiceProvider tieredMetadataServiceProvider
    tieredStorageLevel tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable
    tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval tieredStoreFilePath tieredStoreFileReservedTime
    tieredStoreGroupCommit tieredStoreGroupCommitCount tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout
    tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount
    tieredStoreMaxPendingLimit timerCheckMetricsWhen timerColdDataCheckIntervalMs timerCongestNumEachSlot
    timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs
    timerGetMessageThreadNum timerInterceptDelayLevel timerMetricSmallThreshold timerPrecisionMs
    timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot timerSkipUnknownError timerStopDequeue
    timerStopEnqueue timerWarmEnable timerWheelEnable topicQueueLockNum totalReplicas traceOn
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize transferMsgByHeap
    travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock useEpollNativeSelector usePIDColdCtrStrategy
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond useReentrantLockWhenPutMessage
    useServerSideResetOffset useStaticSubscription validateSystemTopicWhenUpdateTopic value waitTimeMillsInAckQueue
    waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage
    writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
    """.split()  # noqa: SIM905  five hundred names read better without quotes
)

_FALSE = "false"

RELIED_ON: dict[str, Relied] = {
    "aclEnable": Relied(
        _FALSE,
        "ACL files are not read: list users in authConfigPath and set authenticationEnabled = true; rights of users do "
        "not exist yet",
    ),
    "authorizationEnabled": Relied(
        _FALSE, "rights of users do not exist yet: whoever is authenticated may do everything, so let in no others"
    ),
    "authenticationProvider": Relied(
        r"(org\.apache\.rocketmq\.auth\.authentication\.provider\.DefaultAuthenticationProvider)?",
        "classes of Java cannot be loaded: users are those of authConfigPath",
    ),
    "migrateAuthFromV1Enabled": Relied(_FALSE, "users of plain_acl.yml are not taken: list them in authConfigPath"),
    "useTLS": Relied(_FALSE, "this key secures nothing here: set tls.server.mode = enforcing and the certificates"),
    "brokerPermission": Relied(
        "6", "a broker always takes messages and gives them: set the permissions of its topics (penstock topic update)"
    ),
    "rejectPullConsumerEnable": Relied(_FALSE, "consumers that pull are never refused: leave it out"),
    "disableConsumeIfConsumerReadSlowly": Relied(_FALSE, "consumers far behind are never stopped: leave it out"),
    "enableDLegerCommitLog": Relied(
        _FALSE,
        "there is no DLedger, and its log is another: set enableControllerMode = true and brokerRole = SYNC_MASTER, "
        "and enableControllerInNamesrv = true at the nameserver, and begin with an empty store",
    ),
    "enableSlaveActingMaster": Relied(
        _FALSE,
        "a slave never acts for its master: set enableControllerMode = true, with which one is elected in its place",
    ),
    "enableRemoteEscape": Relied(_FALSE, "messages are never handed to another broker group: leave it out"),
    "inBrokerContainer": Relied(_FALSE, "a process is one broker: start one with each broker's file"),
    "brokerConfigPaths": Relied(
        "", "this file is a container's, and a process is one broker: start one with each file that is named there"
    ),
    "storeType": Relied(
        "default", "consume queues are files, those in RocksDB are not read: begin with an empty store, or stay there"
    ),
    "rocksdbCQDoubleWriteEnable": Relied(_FALSE, "consume queues are never written to RocksDB: leave it out"),
    "enableCompaction": Relied(
        _FALSE, "topics with cleanup.policy=COMPACTION keep every message until retention deletes it"
    ),
    "messageStorePlugIn": Relied(
        "", "plug-ins of Java, as tiered storage, cannot be loaded: archive with penstock pipeline archive"
    ),
    "storePathEpochFile": Relied("", "the epochs lie in storePathRootDir: move the file there and leave the key out"),
}
"""Keys whose users rely on what they do: they end the start unless the value asks for what Penstock does anyway."""
