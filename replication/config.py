"""Settings of replication; the broker fills them from its configuration file."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.conf import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Who must have a byte before it counts as confirmed, and the pace and limits of the streams."""

    sync: bool = False  # SYNC_MASTER: replicas must have it too
    in_sync_replicas: int = 2  # brokers that must have it with ``sync``, the master included
    flush_acknowledged: bool = False  # SYNC_FLUSH: a broker has what it has synced, not what it has written
    learner: bool = False  # a slave that gets everything and never counts (asyncLearner)
    transfer_bytes_per_s_max: int = 0  # to each slave; 0: no limit (haFlowControlEnable, maxHaTransferByteInSecond)
    frame_bytes: int = 512 * 1024  # larger ones are no quicker, and hold up what comes behind them
    window_bytes: int = 16 * 1024 * 1024  # sent to a replica and not acknowledged; bounds what a stalled one holds
    heartbeat_interval_ms: int = 200  # several fit into every time-out below
    confirm_interval_ms: int = 5  # shortest distance of two frames that only carry a new confirm offset
    master_timeout_ms: int = 2000  # a replica that hears nothing for so long connects again
    replica_timeout_ms: int = 3000  # a replica that is behind without moving for so long is out of sync
    gap_bytes_max: int = 256 * 1024 * 1024  # further behind than this is out of sync (haMaxGapNotInSync)
    reconnect_min_ms: int = 50
    reconnect_max_ms: int = 1000

    def __post_init__(self) -> None:
        require(1 <= self.in_sync_replicas <= 16, "in_sync_replicas must be 1..16", self.in_sync_replicas)
        require(1 <= self.frame_bytes <= 16 << 20, "frame_bytes must be 1..16 MiB", self.frame_bytes)
        require(
            self.transfer_bytes_per_s_max >= 0,
            "transfer_bytes_per_s_max must be 0 or more",
            self.transfer_bytes_per_s_max,
        )
        require(self.window_bytes >= self.frame_bytes, "window_bytes must hold one frame", self.window_bytes)
        for name in ("heartbeat_interval_ms", "master_timeout_ms", "replica_timeout_ms"):
            require(1 <= getattr(self, name) <= 3_600_000, f"{name} must be 1..3600000", getattr(self, name))
        require(
            self.heartbeat_interval_ms < self.master_timeout_ms,
            "heartbeat_interval_ms must be less than master_timeout_ms",
            self.heartbeat_interval_ms,
        )
        require(self.confirm_interval_ms >= 0, "confirm_interval_ms must not be negative", self.confirm_interval_ms)
        require(self.gap_bytes_max > 0, "gap_bytes_max must be positive", self.gap_bytes_max)
        require(
            1 <= self.reconnect_min_ms <= self.reconnect_max_ms,
            "reconnect_min_ms must be 1..reconnect_max_ms",
            self.reconnect_min_ms,
        )

    @property
    def replicas_needed(self) -> int:
        """Slaves that must have a byte before it is confirmed."""
        return self.in_sync_replicas - 1 if self.sync else 0
