"""What a store that was RocketMQ's holds and nobody delivers any more."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from penstock.broker.broker import FEATURES
from penstock.broker.opening import open_store, store_config
from penstock.broker.store import Store
from penstock.formats.checkpoint import Positions, Standard, encode_slot
from penstock.formats.record.properties import encode_properties
from penstock.formats.rocketmq_config import leftovers
from penstock.inspection.directory import list_store
from penstock.inspection.summary import summarize
from tests.support import golden
from tests.support.broker.running_broker import small_config
from tests.support.broker.stores import batch, dispatch_all


def told(ranges: dict[tuple[str, int], tuple[int, int]], config: Path) -> dict[str, int]:
    return {",".join(each.topics): each.messages for each in leftovers(ranges, config, lambda *place: ())}


def test_what_waits_is_what_lies_behind_the_progress_that_rocketmq_noted(tmp_path: Path) -> None:
    (tmp_path / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"read":{}}}')
    offsets = {
        "%RETRY%g@g": {"0": 5},
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 35},
        "RMQ_SYS_TRANS_HALF_TOPIC@somebody": {"0": 99},
        "rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {"0": 10, "1": 4},
        "orders@g": {"0": 1},
    }
    (tmp_path / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    found = told(
        {
            ("RMQ_SYS_TRANS_HALF_TOPIC", 0): (0, 40),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0): (0, 40),
            ("rmq_sys_REVIVE_LOG_c", 0): (0, 12),
            ("rmq_sys_REVIVE_LOG_c", 1): (0, 4),
            ("%RETRY%g", 0): (0, 8),
            ("%RETRY%other", 0): (0, 1),
            ("%RETRY%read", 0): (0, 7),  # by its members
            ("SCHEDULE_TOPIC_XXXX", 2): (0, 4),  # goes on here
            ("orders", 0): (0, 100),
            ("rmq_sys_wheel_timer", 0): (0, 9),  # goes on here, as the halves do, without POP's
        },
        tmp_path,
    )
    assert found == {
        "rmq_sys_REVIVE_LOG_c": 2,
        "%RETRY%g,%RETRY%other": 3 + 1,
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"other": 1}', '{"offsetTable": 3}'])
def test_progress_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "consumerOffset.json").write_text(text)
    assert told({("rmq_sys_REVIVE_LOG_c", 0): (2, 5)}, tmp_path) == {"rmq_sys_REVIVE_LOG_c": 3}


def test_offsets_of_a_rocketmq_with_light_queues_count_too(tmp_path: Path) -> None:
    text = '{"lmqOffsetTable":{},"offsetTable":{"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP":{0:4\n}}}'
    (tmp_path / "lmqConsumerOffset.json").write_text(text)
    assert told({("rmq_sys_REVIVE_LOG_c", 0): (2, 5)}, tmp_path) == {"rmq_sys_REVIVE_LOG_c": 1}


CHECK_POINTS = [  # as RocketMQ stores them: real topic, tag, time
    ("rmq_sys_REVIVE_LOG_c", "ck", 1000),  # came to the revive log
    ("orders", "ck", 2000),  # a user's
    ("rmq_sys_REVIVE_LOG_c", "ck", 2000),
    ("rmq_sys_REVIVE_LOG_c", "ack", 2000),
    ("rmq_sys_REVIVE_LOG_c", "ck", 1000),  # not read by the wheel yet
]
LEFT_BY_POP = "what was received by POP and not acknowledged is not delivered again"


def test_check_points_whose_time_has_not_come_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They lie in the topic of messages for later until then, so the revive log does not tell of them."""
    config = small_config(tmp_path)
    theirs = Store.open(store_config(config))
    strings = [
        encode_properties({"TIMER_OUT_MS": str(due), "REAL_QID": "0", "REAL_TOPIC": topic, "TAGS": tag})
        for topic, tag, due in CHECK_POINTS
    ]
    bodies = [b"{}"] * len(strings)
    theirs.append("rmq_sys_wheel_timer", batch("rmq_sys_wheel_timer", bodies, properties=strings), queues=1)
    dispatch_all(theirs)
    theirs.close()
    root = config.store.root
    (root / "penstockCheckpoint").unlink()
    (root / "config" / "timercheck").write_bytes(struct.pack(">4q", 1500, 0, 4, 4))
    notes = [note["problem"] for note in summarize(list_store(root))["notes"]]
    assert notes == [f"3 left by RocketMQ: {LEFT_BY_POP}"]
    with open_store(config, FEATURES) as opened:
        opened.store.close()
    told = [message for message in caplog.messages if "taken over" in message]
    assert told == [f"taken over from RocketMQ topics=rmq_sys_REVIVE_LOG_c count=3: {LEFT_BY_POP}"]
    (root / "penstockCheckpoint").unlink()
    (root / "config" / "timercheck").write_bytes(b"short")
    notes = [note["problem"] for note in summarize(list_store(root))["notes"]]
    assert notes == [f"4 left by RocketMQ: {LEFT_BY_POP}"], "progress that cannot be read counts as none"


def test_the_summary_of_a_store_notes_it(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store")
    notes = [note["problem"] for note in summarize(list_store(root))["notes"]]
    assert [note for note in notes if "RocketMQ" in note] == [
        "1 left by RocketMQ: what was received by POP and not acknowledged is not delivered again",
        "1 left by RocketMQ: messages that are due again go only to who subscribes to these topics",
    ]
    standard = Standard.decode((root / "checkpoint").read_bytes())
    (root / "penstockCheckpoint").write_bytes(encode_slot(1, Positions(), standard))
    assert not [note for note in summarize(list_store(root))["notes"] if "RocketMQ" in note["problem"]]
    since = standard._replace(physic_msg_timestamp=standard.physic_msg_timestamp + 1)
    (root / "checkpoint").write_bytes(since.encode())
    assert notes == [note["problem"] for note in summarize(list_store(root))["notes"]], "RocketMQ has had it again"


def test_the_first_start_on_a_store_warns_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = small_config(tmp_path)
    theirs = Store.open(store_config(config))
    for topic, count in (("rmq_sys_REVIVE_LOG_c", 3), ("%RETRY%g", 2), ("orders", 4)):
        theirs.append(topic, batch(topic, [b"x"] * count), queues=1)
    dispatch_all(theirs)
    theirs.close()
    expected = [
        "taken over from RocketMQ topics=rmq_sys_REVIVE_LOG_c count=3: what was received by POP and not acknowledged "
        "is not delivered again",
        "taken over from RocketMQ topics=%RETRY%g count=2: messages that are due again go only to who "
        "subscribes to these topics",
    ]
    for warned in (expected, []):
        caplog.clear()
        with open_store(config, FEATURES) as opened:
            opened.store.close()
        assert [message for message in caplog.messages if "taken over" in message] == warned


def test_the_first_start_warns_of_each_topic_that_rocketmq_compacts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path)
    Store.open(store_config(config)).close()
    (config.store.root / "config").mkdir(exist_ok=True)
    shape = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    policies = {"prices": "COMPACTION", "rates": "COMPACTION", "orders": "DELETE"}
    table = {
        name: {"topicName": name, "attributes": {"cleanup.policy": policy}, **shape}
        for name, policy in policies.items()
    }
    (config.store.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    with open_store(config, FEATURES) as opened:
        assert opened.tables.topics.get("prices") is not None
        opened.store.close()
    warned = [message for message in caplog.messages if "COMPACTION" in message]
    assert [message.split()[4] for message in warned] == ["topic=prices", "topic=rates"]
    assert all("every message is kept until retention deletes it" in message for message in warned)
