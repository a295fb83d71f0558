"""Who is asked about halves that nobody has decided, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.broker.core import data_calls
from penstock.broker.features.transactions import producers
from penstock.broker.features.transactions.decisions import Decisions
from penstock.broker.features.transactions.table import TransactionTable
from penstock.formats.record.kernels.pairs import name_hash
from penstock.formats.record.properties import decode_properties
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    InvalidArgument,
    InvalidName,
    LimitReached,
    NotEnoughReplicas,
    TransactionEnded,
)
from penstock.proto.wire.transactions_pb2 import (
    COMMIT,
    COMMITTED,
    OPEN,
    PARKED,
    ROLLBACK,
    ROLLED_BACK,
)
from tests.support.broker.kit import in_loop
from tests.support.broker.transacting import Node, opened
from tests.support.waiting import eventually


@in_loop
async def test_an_undecided_half_is_asked_about_after_its_time_and_again_after_the_interval() -> None:
    node = opened()
    node.join()
    await node.halves([b"a"], properties={"UNIQ_KEY": "k"})
    await node.pass_s(5.9)
    assert node.asked == []
    await node.pass_s(0.2)
    (check,) = node.asked
    assert (list(check.offsets), list(check.times)) == ([0], [1])
    await node.pass_s(29)
    assert len(node.asked) == 1
    await node.pass_s(1.1)
    assert [(list(check.offsets), list(check.times)) for check in node.asked] == [([0], [1]), ([0], [2])]
    newest = decode_properties(node.records(names.HALF_TOPIC)[-1].properties)
    assert (newest["TRANSACTION_CHECK_TIMES"], newest["TRAN_PREPARED_QUEUE_OFFSET"]) == ("2", "0")
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]
    await node.pass_s(100)
    assert len(node.asked) == 2


@in_loop
async def test_a_half_that_was_stored_anew_just_now_is_known_by_its_first_offset() -> None:
    node = opened()
    node.join()
    await node.halves([b"a"])
    for _ in range(2):
        await node.pass_s(31)
    node.manual.advance(31)
    await node.transactions.turn()
    assert await node.states((0, 1)) == [(OPEN, 1)]
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]


@in_loop
async def test_halves_that_were_stored_anew_end_at_once_together_with_younger_ones() -> None:
    node = opened()
    node.join()
    await node.halves([b"a"])
    await node.pass_s(5)
    await node.halves([b"b"])
    await node.pass_s(2)
    assert [list(check.offsets) for check in node.asked] == [[0]]
    states = node.transactions.decisions.resolve_at_once(node.journal, "payments", np.array([0, 1]), COMMIT)
    assert states is not None, "nothing is to be waited for"
    assert states.tolist() == [OPEN, OPEN]
    assert node.bodies() == [b"b", b"a"]
    assert await node.states((0, 2)) == [(COMMITTED, 2)]


@in_loop
async def test_a_half_keeps_its_count_and_its_offset_through_failovers() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    for turn in range(3):
        node.join()
        await node.pass_s(31)
        (check,) = node.asked
        assert (list(check.offsets), list(check.times)) == ([0, 1], [turn + 1] * 2)
        node = Node.after(node)
    await node.end(ROLLBACK, (1, 1))
    await node.end(COMMIT, (0, 1))
    node = Node.after(node)
    assert await node.states((0, 2)) == [(COMMITTED, 1), (ROLLED_BACK, 1)]
    assert node.bodies() == [b"a"]


@in_loop
async def test_the_immunity_of_a_half_replaces_the_brokers_time() -> None:
    node = opened()
    node.join()
    await node.halves([b"a"], properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    await node.pass_s(59)
    assert node.asked == []
    await node.pass_s(1.1)
    assert len(node.asked) == 1


@in_loop
async def test_nobody_is_asked_and_nothing_counted_while_no_producer_of_the_group_can_answer() -> None:
    node = opened(transactionCheckMax=1)
    node.join("others")
    node.join(client_id="mute", answers=False)
    deaf = node.join(client_id="deaf")
    deaf.has_room = False
    await node.halves([b"a"])
    await node.pass_s(1000)
    assert (node.asked, len(node.records(names.HALF_TOPIC))) == ([], 1)
    node.join()
    await node.pass_s(0)
    assert len(node.asked) == 1


@in_loop
async def test_halves_that_cannot_be_parked_keep_no_others_from_being_asked_about() -> None:
    node = opened(transactionCheckMax=1, maxTopicNum=1)
    node.join()
    await node.halves([b"a"])
    await node.pass_s(31)
    await node.halves([b"b"])
    ops = node.core.tables[TransactionTable].ops
    for _ in range(2):  # it is looked at for the first time, and then asked about
        with pytest.raises(LimitReached, match="maxTopicNum"):
            await node.pass_s(31)
    await asyncio.sleep(0)
    assert [list(check.offsets) for check in node.asked] == [[0], [2]]
    assert node.core.tables[TransactionTable].ops > ops, "nor the next master from beginning where this one is"


@in_loop
async def test_a_half_that_was_asked_about_too_often_is_parked() -> None:
    node = opened(transactionCheckMax=2)
    node.join()
    await node.halves([b"a", b"b"])
    for _ in range(4):
        await node.pass_s(31)
    assert [list(check.times) for check in node.asked] == [[1, 1], [2, 2]]
    parked = node.records(names.PARKED_TOPIC)
    assert [record.body for record in parked] == [b"a", b"b"]
    assert decode_properties(parked[1].properties)["REAL_TOPIC"] == "orders"
    assert await node.states((0, 2)) == [(PARKED, 2)]
    with pytest.raises(TransactionEnded, match="asked about too often: it lies in topic TRANS_CHECK_MAX_TIME_TOPIC"):
        await node.end(COMMIT, (0, 2))
    assert await Node.after(node).states((0, 2)) == [(PARKED, 2)]


@in_loop
async def test_members_of_a_group_are_asked_in_turn_and_one_that_joins_again_replaces_itself() -> None:
    node = opened()
    one, two = node.join(client_id="one"), node.join(client_id="two")
    again = node.join(client_id="two")
    assert isinstance(two.error, BrokerUnavailable)
    two.left()
    assert [each.client_id for each in node.transactions.producers.members("payments")] == ["one", "two"]
    await node.halves([b"a"])
    await node.pass_s(7)
    await node.pass_s(31)
    assert len(node.asked) == 2
    one.left()
    again.left()
    assert node.transactions.producers.members("payments") == []


@in_loop
async def test_one_client_is_asked_for_all_of_its_groups_until_it_leaves_them() -> None:
    node = opened()
    member = node.join("bills", "payments")
    await node.halves([b"p"])
    await node.halves([b"b"], group="bills")
    await node.halves([b"o"], group="others")
    await node.pass_s(7)
    asked = [(check.group, list(check.offsets)) for check in node.asked]
    assert sorted(asked) == [("bills", [1]), ("payments", [0])]
    member.join("payments", "others")
    assert (member.joined, member.error) == (2, None)
    await node.pass_s(31)
    asked = [(check.group, list(check.offsets)) for check in node.asked[2:]]
    assert sorted(asked) == [("others", [2]), ("payments", [0])]
    member.join()
    await node.pass_s(31)
    assert len(node.asked) == 4
    assert node.transactions.producers.members("payments") == []
    assert len(node.transactions.producers) == 1, "it is there, and in no group"


def test_names_of_groups_have_the_hashes_that_their_halves_have() -> None:
    groups = ["a", "payments", "%RETRY%x|y_z-0", "g" * names.GROUP_LENGTH_MAX]
    assert producers._hashes_of(groups) == [name_hash(group) for group in groups]
    assert producers._hashes_of([]) == []


@in_loop
async def test_groups_of_a_client_have_bounds_and_what_stood_goes_on() -> None:
    node = opened(maxConsumerSessions=2)
    member = node.join("payments")
    member.join(*(f"g{number}" for number in range(names.PRODUCER_GROUPS_MAX + 1)))
    assert isinstance(member.error, InvalidArgument)
    assert "10001 groups of producer c: at most 10000" in member.error.message
    member.join("payments", "not a group")
    assert isinstance(member.error, InvalidName)
    assert "only letters, digits" in member.error.message
    for name in ("", "g" * (names.GROUP_LENGTH_MAX + 1)):
        member.join("payments", name)
        assert isinstance(member.error, InvalidName)
    member.join("payments", client_id="another")
    assert isinstance(member.error, InvalidArgument)
    assert [each.client_id for each in node.transactions.producers.members("payments")] == ["c"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "MEMBERS_MAX", 3)
        member.join("a", "b", "c", "d")
        assert isinstance(member.error, LimitReached)
        member.join("a", "b", "c", "c")
        assert member.error is None
        assert isinstance(node.join(client_id="other").error, LimitReached)
        member.join()
    node.join(client_id="other")
    node.join(client_id="another").left()
    third = node.join(client_id="third")
    assert isinstance(third.error, LimitReached)
    assert "maxConsumerSessions" in third.error.message


@in_loop
async def test_a_client_that_is_silent_is_told_and_gone() -> None:
    node = opened()
    member = node.join()
    member.silent_s = data_calls.SILENCE_S
    await eventually(lambda: not len(node.transactions.producers))
    assert isinstance(member.error, BrokerUnavailable)
    node.transactions.producers.close()
    member.join()
    assert isinstance(member.error, BrokerUnavailable)
    assert "shutting down" in member.error.message


@in_loop
async def test_retention_keeps_the_log_from_the_first_open_half_on() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    (hold,) = node.transactions.holds()
    assert hold.offset == node.records(names.HALF_TOPIC)[0].physical_offset
    await node.end(COMMIT, (0, 1))
    (hold,) = node.transactions.holds()
    assert hold.offset == node.records(names.HALF_TOPIC)[1].physical_offset
    await node.end(COMMIT, (1, 1))
    assert list(node.transactions.holds()) == []


@in_loop
async def test_retention_keeps_open_halves_also_when_the_first_one_went_with_a_full_disk() -> None:
    node = opened(sizes={"segment_bytes": 1 << 14})
    for _ in range(4):
        await node.halves([bytes(9000)])
    node.flush()
    node.store.checkpoint()
    first, second = node.store._log.files[:2]
    assert node.store.removal.take_out(first.end) == 1
    held = node.transactions.loading.first_open()
    assert held is not None
    assert second.base <= held < second.end


@in_loop
async def test_halves_in_the_way_of_a_deletion_are_stored_anew_and_stay_known() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    await node.end(ROLLBACK, (1, 1))
    await node.pass_s(1)
    node.transactions.checks.make_way(node.store.end_offset)
    await node.pass_s(1)
    first, _, newest = node.records(names.HALF_TOPIC)
    assert decode_properties(newest.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in decode_properties(newest.properties)
    (hold,) = node.transactions.holds()
    assert hold.offset == newest.physical_offset > first.physical_offset
    node = Node.after(node)
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]


@pytest.mark.parametrize("becomes", ["asked about", "in the way", "parked", "committed"])
@in_loop
async def test_a_damaged_half_costs_itself_alone(
    tmp_path: Path, becomes: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = opened(root=tmp_path, transactionCheckMax=1)
    await node.halves([b"first", b"second", b"third"])
    if becomes == "parked":
        node.join()
        await node.pass_s(31)
    log_file = min((tmp_path / "commitlog").iterdir())
    place = log_file.read_bytes().rindex(b"second")
    with log_file.open("r+b") as file:
        file.seek(place)
        file.write(b"SECOND")  # which its checksum tells, when the record is stored anew
    if becomes == "asked about":
        node.join()
    elif becomes == "in the way":
        await node.pass_s(1)
        node.transactions.checks.make_way(node.store.end_offset)
    if becomes != "committed":
        await node.pass_s(30)
    assert ("half cannot be posted" in caplog.text) == (becomes != "committed")
    if becomes == "parked":
        assert [record.body for record in node.records(names.PARKED_TOPIC)] == [b"first", b"third"]
    else:
        await node.end(COMMIT, (0, 1), (2, 1) if becomes != "committed" else (1, 2))
        assert node.bodies() == [b"first", b"third"]


@pytest.mark.parametrize("after", [lambda node: node, Node.after], ids=["the same broker", "the next one"])
@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_a_half_whose_copy_is_missing_behind_a_question_is_decided_all_the_same(
    monkeypatch: pytest.MonkeyPatch, after: Callable[[Node], Node], resolution: int
) -> None:
    def cut(*_: Any) -> None:
        raise NotEnoughReplicas("a slave went between the question's op and the half's copy")

    @in_loop
    async def run() -> None:
        node = opened()
        node.join()
        await node.halves([b"one"])
        with monkeypatch.context() as patched:
            patched.setattr(Decisions, "_post", cut)
            with pytest.raises(NotEnoughReplicas):
                await node.pass_s(7)
        node = after(node)
        node.settle()
        with pytest.raises(BrokerUnavailable, match="not confirmed yet"):
            await node.end(resolution, (0, 1))
        node.settle()
        assert await node.end(resolution, (0, 1)) == [(OPEN, 1)]
        assert node.bodies() == ([b"one"] if resolution == COMMIT else [])

    run()
