"""How fast an empty slave catches up with a master of a filled log, as two processes on this machine.

``python -m tests.cluster.failover.catch_up_speed [GiB] [message bytes]`` prints MB/s of log until the slave is
level, until it has dispatched everything, and the processor time of both, their start included. For a quiet machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil

from penstock.broker.broker import FEATURES
from penstock.broker.config import load_broker_config
from penstock.broker.opening import open_store
from penstock.proto.errors import PenstockError
from penstock.proto.wire import broker_pb2
from tests.support.broker.stores import batch
from tests.support.cluster.cluster import BrokerNode, cluster
from tests.support.waiting import wait_until

SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 28,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxMessageSize": 4 << 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
BATCH_BYTES = 512 << 10
POLL_S = 0.05


def fill(config: Path, log_bytes: int, message_bytes: int) -> int:
    """A store with so much of log, all dispatched; where its log ends."""
    records = batch("orders", [b"x" * message_bytes] * max(1, BATCH_BYTES // message_bytes), 0)
    with open_store(load_broker_config(config), FEATURES) as opened:
        store = opened.store
        while store.end_offset < log_bytes:
            store.append("orders", records, queues=1)
            store.set_confirm(store.end_offset)
            store.dispatch()
        end = store.end_offset
        store.close()
    return end


def seconds_of_processor(node: BrokerNode) -> float:
    """What the node's process has used so far."""
    assert node.process is not None
    times = psutil.Process(node.process.pid).cpu_times()
    return float(times.user + times.system)


def main(log_gib: float = 1.0, message_bytes: int = 1024) -> None:
    """Fill, start, wait, and print."""
    with (
        tempfile.TemporaryDirectory() as directory,
        cluster(Path(directory), **SETTINGS) as made,
    ):
        master, slave = made.broker("a", 0), made.broker("a", 1)
        master.config_path.write_text("".join(f"{key} = {value}\n" for key, value in master.settings.items()))
        end = fill(master.config_path, int(log_gib * (1 << 30)), message_bytes)
        slave.settings["haMasterAddress"] = master.address
        for node in (master, slave):  # nobody starts the nameserver: the slave knows its master
            del node.settings["namesrvAddr"]
        master.start()
        master.wait_ready()
        slave.start()

        def status() -> broker_pb2.BrokerStatus | None:
            try:
                return slave.status_or_none()
            except PenstockError:
                return None

        first = wait_until(lambda: (found := status()) is not None and found.max_offset > 0 and found, 120)
        assert first
        began, start = time.monotonic(), first.max_offset
        level = 0.0
        while (now := status()) is None or now.dispatched_offset < end:
            if not level and now is not None and now.max_offset >= end:
                level = time.monotonic() - began
            time.sleep(POLL_S)
        done = time.monotonic() - began
        megabytes = (end - start) / 1e6
        print(f"level: {megabytes / (level or done):.0f} MB/s, dispatched: {megabytes / done:.0f} MB/s")
        print(f"processor: slave {seconds_of_processor(slave):.1f} s, master {seconds_of_processor(master):.1f} s")


if __name__ == "__main__":
    main(*(float(sys.argv[1]),) if len(sys.argv) > 1 else (), *(int(sys.argv[2]),) if len(sys.argv) > 2 else ())
