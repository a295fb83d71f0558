"""A clean history passes; one that was damaged by hand is flagged by the invariant that it breaks, and by name."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from penstock.judge import TITLES, Verdict, judge
from penstock.judge.conditions import Conditions, LogComparison, Stop, StoreFinding, Window
from penstock.judge.history import NO_KEY, Op, Outcome
from penstock.judge.queues import went_back
from tests.support.cluster.drill_history import FAULT_END, FAULT_START, MS, Damaged, clean, given_back, rows


def verdicts(damaged: Damaged) -> dict[str, Verdict]:
    return {each.invariant: each for each in judge(damaged.history, damaged.conditions)}


def violated(damaged: Damaged) -> dict[str, Verdict]:
    return {name: each for name, each in verdicts(damaged).items() if each.holds is False}


def test_what_a_master_took_while_it_was_cut_off_may_be_lost() -> None:
    damaged = clean()
    committed_goes_back_further_than_a_commit_interval(damaged)
    assert "I5" in violated(damaged)
    damaged.conditions.windows = [Window("partition", "broker-a-0", FAULT_START, FAULT_END)]
    assert "I5" not in violated(damaged)


def test_a_clean_history_passes_every_invariant() -> None:
    found = verdicts(clean())
    assert list(found) == list(TITLES)
    assert [each for each in found.values() if not each.holds] == []
    assert all(found[name].checked for name in ("I1", "I2", "I3", "I4", "I5", "I7", "I9", "I12"))


def drop_read(damaged: Damaged) -> None:
    damaged.read = np.delete(damaged.read, len(damaged.read) - 1)


def lose_at_another_place(damaged: Damaged) -> None:
    damaged.read["offset"][-1] += 1  # a gap, too


def read_refused(damaged: Damaged) -> None:
    damaged.sent["outcome"][10] = Outcome.REFUSED


def read_never_sent(damaged: Damaged) -> None:
    stranger = damaged.read[:1].copy()
    stranger["stream"], stranger["offset"] = 99, damaged.read["offset"].max() + 1
    stranger["shard"], stranger["queue"] = 0, 0
    damaged.extra.append(stranger)


def two_values_at_one_place(damaged: Damaged) -> None:
    damaged.received["sequence"][5] = damaged.received["sequence"][25]


def acknowledged_behind_a_later_one(damaged: Damaged) -> None:
    unkeyed = np.flatnonzero((damaged.sent["key"] == NO_KEY) & (damaged.sent["shard"] == 1))
    first, later = unkeyed[0], unkeyed[200]
    assert damaged.sent["queue"][first] == damaged.sent["queue"][later]
    for part in (damaged.sent, damaged.received, damaged.read):
        part["offset"][[first, later]] = part["offset"][[later, first]]


def key_out_of_order(damaged: Damaged) -> None:
    keyed = np.flatnonzero(damaged.sent["key"] == 1)
    for part in (damaged.sent, damaged.received, damaged.read):
        part["sequence"][keyed[[0, 1]]] = part["sequence"][keyed[[1, 0]]]
        part["crc"][keyed[[0, 1]]] = part["crc"][keyed[[1, 0]]]


def key_out_of_order_that_nobody_acknowledged(damaged: Damaged) -> None:
    key_out_of_order(damaged)
    damaged.sent["outcome"] = Outcome.UNKNOWN


def produced_and_nowhere(damaged: Damaged) -> None:
    damaged.sent["queue"][-1] = damaged.sent["offset"][-1] = -1
    drop_read(damaged)


def produced_into_another_shard(damaged: Damaged) -> None:
    damaged.sent["queue"][-1] = damaged.sent["offset"][-1] = -1
    damaged.sent["shard"][-1] ^= 1


def produced_and_never_delivered(damaged: Damaged) -> None:
    damaged.sent["queue"][-1] = damaged.sent["offset"][-1] = -1
    damaged.received = damaged.received[:-1]


def delivered_out_of_order(damaged: Damaged) -> None:
    mine = np.flatnonzero((damaged.received["shard"] == 0) & (damaged.received["queue"] == 0))
    times = damaged.received["end_ns"]
    times[mine[[3, 4]]] = times[mine[[4, 3]]]


def gap(damaged: Damaged) -> None:
    chosen = (damaged.sent["shard"] == 1) & (damaged.sent["queue"] == 1) & (damaged.sent["offset"] >= 50)
    for part in (damaged.sent, damaged.received, damaged.read):
        part["offset"][chosen] += 1


def committed_goes_back_to_the_beginning(damaged: Damaged) -> None:
    damaged.looks["offset"][12:] = 0


def committed_goes_back_further_than_a_commit_interval(damaged: Damaged) -> None:
    damaged.looks["offset"][12:] -= 60


def committed_goes_back_further_than_before_a_partition(damaged: Damaged) -> None:
    damaged.conditions.windows = [Window("partition", "broker-a-0", FAULT_START, FAULT_END)]
    damaged.looks["offset"][12:] -= 90


def max_goes_back(damaged: Damaged) -> None:
    damaged.looks["position"][17] -= 30


def max_goes_back_for_good(damaged: Damaged) -> None:
    damaged.looks["position"][10:] = 40


def never_delivered(damaged: Damaged) -> None:
    damaged.received = damaged.received[:-3]


def not_settled(damaged: Damaged) -> None:
    damaged.conditions.settled_s = None
    damaged.conditions.unsettled = ["broker-a queue 0: 12 messages left"]


def stored_twice(damaged: Damaged) -> None:
    again = damaged.read[100:101].copy()
    mine = (damaged.read["shard"] == 0) & (damaged.read["queue"] == 0)
    again["shard"], again["queue"], again["offset"] = 0, 0, damaged.read["offset"][mine].max() + 1
    damaged.extra.append(again)


def delivered_again_too_often(damaged: Damaged) -> None:
    again = damaged.received[:11].copy()
    again["end_ns"] += 9_000 * MS
    damaged.extra.append(again)


def silent_for_too_long(damaged: Damaged) -> None:
    silent = (damaged.sent["shard"] == 0) & (damaged.sent["start_ns"] >= FAULT_START)
    silent &= damaged.sent["start_ns"] < FAULT_START + 1_900 * MS
    damaged.sent["outcome"][silent] = Outcome.UNKNOWN
    damaged.conditions.recovery_limit_ms = 1_000


def silent_while_it_could_acknowledge(damaged: Damaged) -> None:
    silent_for_too_long(damaged)
    damaged.conditions.able = [Window("able", "broker-a", 0, 10_000 * MS)]
    damaged.conditions.able_limit_ms = 1_000


def delivered_again_from_far_back(damaged: Damaged) -> None:
    again = damaged.received[100:101].copy()
    again["end_ns"] = damaged.received["end_ns"][100] + 2_500 * MS
    damaged.extra.append(again)
    damaged.conditions.far_ms = 2_000


def old_epoch_acknowledged(damaged: Damaged) -> None:
    mine = np.flatnonzero((damaged.sent["shard"] == 0) & (damaged.sent["start_ns"] > FAULT_END))
    damaged.sent["epoch"][mine[5]] = 1


def other_bytes_in_a_replica(damaged: Damaged) -> None:
    damaged.conditions.logs.append(LogComparison("broker-b", "broker-b-0", "broker-b-1", 0, 9_000, difference=4711))


def other_committed_offsets(damaged: Damaged) -> None:
    damaged.conditions.logs.append(LogComparison("b", "b-0", "b-1", 0, 9_000, offsets_differ="queue 1: 5 and 7"))


def queue_does_not_fit_the_log(damaged: Damaged) -> None:
    damaged.conditions.stores.append(StoreFinding("broker-b-1", "store", 5, ["queue 3: entry 7 is wrong"]))


def other_bytes_arrive(damaged: Damaged) -> None:
    damaged.received["crc"][17] ^= 1


def memory_grows(damaged: Damaged) -> None:
    (each,) = damaged.conditions.footprints
    damaged.conditions.footprints = [replace(each, after={"own_mib": 200.0, "files": 50, "threads": 20})]


def slow_stop(damaged: Damaged) -> None:
    damaged.conditions.stops.append(Stop("broker-b-0", 6.5, 0))


def abort_marker(damaged: Damaged) -> None:
    damaged.conditions.stops.append(Stop("broker-b-0", 1.0, 0, abort_marker=True))


def scan_after_a_clean_stop(damaged: Damaged) -> None:
    damaged.conditions.stops.append(Stop("broker-b-0", 1.0, 0, scanned=True))


def bad_exit_code(damaged: Damaged) -> None:
    damaged.conditions.stops.append(Stop("broker-b-0", 1.0, 1))


def error_line(damaged: Damaged) -> None:
    damaged.conditions.error_lines.append("broker-a-0: ERROR sync failed")


def rule_left(damaged: Damaged) -> None:
    damaged.conditions.leftovers.append("namespace pd-1 is still there")


def give_back_and_forget(damaged: Damaged) -> None:
    given_back(damaged)
    damaged.extra[7] = damaged.extra[7][1:]


DAMAGES: list[tuple[str, Callable[[Damaged], None], str]] = [
    ("I1", drop_read, "was acknowledged and is not there"),
    ("I1", lose_at_another_place, "it lies elsewhere"),
    ("I1", produced_and_nowhere, "was acknowledged and is not there"),
    ("I1", produced_into_another_shard, "it lies elsewhere"),
    ("I2", read_refused, "message 7.10 at broker-b queue 0 offset 2 was read and had been refused"),
    ("I2", read_never_sent, "message 99.0"),
    ("I3", two_values_at_one_place, "message 7.25 at broker-a queue 1 offset 2 shares its place with 7.5"),
    ("I4", acknowledged_behind_a_later_one, "was sent after one behind it was acknowledged"),
    ("I4", key_out_of_order, "lies behind a later one of its key"),
    ("I4", key_out_of_order_that_nobody_acknowledged, "lies behind a later one of its key"),
    ("I4", delivered_out_of_order, "was delivered after one behind it"),
    ("I5", gap, "broker-b queue 1 offset 51 follows offset 49"),
    ("I5", committed_goes_back_to_the_beginning, "the committed offset went back from 110 to 0"),
    ("I5", committed_goes_back_further_than_a_commit_interval, "went back from 110 to 60; 90 was committed"),
    ("I5", committed_goes_back_further_than_before_a_partition, "went back from 110 to "),
    ("I5", max_goes_back, "the max offset went back from 165 to 145"),
    ("I5", max_goes_back_for_good, "the max offset went back from 95 to 40"),
    ("I6", never_delivered, "was never delivered"),
    ("I6", produced_and_never_delivered, "was never delivered"),
    ("I6", not_settled, "12 messages left"),
    ("I7", stored_twice, "message 7.100 at broker-a queue 0 offset 1199 is stored again"),
    ("I7", delivered_again_too_often, "was delivered again"),
    ("I7", delivered_again_from_far_back, "was delivered again from more than 2000 ms back"),
    ("I8", silent_while_it_could_acknowledge, "ms while it could, from "),
    ("I8", silent_for_too_long, "broker-a acknowledged nothing for"),
    ("I9", old_epoch_acknowledged, "was acknowledged in epoch 1 after epoch 2 had begun"),
    ("I10", other_bytes_in_a_replica, "broker-b-0 and broker-b-1 differ from log position 4711"),
    ("I10", other_committed_offsets, "queue 1: 5 and 7"),
    ("I11", queue_does_not_fit_the_log, "broker-b-1: queue 3: entry 7 is wrong"),
    ("I12", other_bytes_arrive, "message 7.17"),
    ("I13", memory_grows, "own_mib grew from 100 to 200"),
    ("I14", slow_stop, "broker-b-0 took 6.5 s"),
    ("I14", abort_marker, "abort marker"),
    ("I14", scan_after_a_clean_stop, "had to scan its log"),
    ("I14", bad_exit_code, "exit code 1"),
    ("I15", give_back_and_forget, "given back 2 times, 1 copies"),
    ("LOG", error_line, "sync failed"),
    ("END", rule_left, "namespace pd-1"),
]


@pytest.mark.parametrize(("invariant", "damage", "words"), DAMAGES, ids=[each[1].__name__ for each in DAMAGES])
def test_a_damage_is_found_and_named(invariant: str, damage: Callable[[Damaged], None], words: str) -> None:
    damaged = clean()
    damage(damaged)
    found = violated(damaged)
    assert invariant in found
    assert found[invariant].violations >= 1
    assert words in "\n".join(found[invariant].examples)


def test_every_invariant_has_a_damage() -> None:
    in_a_file_of_their_own = {"I16", "I17", "I18", "I19", "I20"}  # test_judge_promises.py, test_judge_pop.py
    assert {each[0] for each in DAMAGES} == set(TITLES) - in_a_file_of_their_own


def test_what_an_unknown_send_left_behind_is_no_phantom_and_need_not_be_there() -> None:
    damaged = clean()
    damaged.sent["outcome"][[10, 11]] = Outcome.UNKNOWN
    assert violated(damaged) == {}


def test_what_a_dead_consumer_had_may_come_again_from_far_back_and_so_may_what_nobody_went_on_from() -> None:
    damaged = clean()
    delivered_again_from_far_back(damaged)
    died = int(damaged.received["end_ns"][100]) + MS
    damaged.conditions.windows.append(Window("SIGKILL", "consumer-0", died, died + 1_000 * MS))
    assert violated(damaged) == {}
    damaged.conditions.windows[-1] = Window("SIGKILL", "consumer-0", died, died + MS)
    assert list(violated(damaged)) == ["I7"], "others had gone on with the queue for more than 2 s"
    damaged.conditions.windows[-1] = Window("SIGKILL", "broker-a-1", died, died + 1_000 * MS)
    assert list(violated(damaged)) == ["I7"], "no consumer had died"
    damaged = clean()
    delivered_again_from_far_back(damaged)
    damaged.received = damaged.received[:101]  # nothing else came meanwhile
    assert "I7" not in violated(damaged)


def test_what_could_not_be_committed_as_its_shard_was_away_may_come_again_from_further_back() -> None:
    """A slave went on giving what it had; nobody could take the commits."""
    damaged = clean()
    delivered_again_from_far_back(damaged)
    last = int(damaged.received["end_ns"][100]) + 500 * MS
    mine = (damaged.sent["shard"] == damaged.received["shard"][100]) & (damaged.sent["end_ns"] > last)
    damaged.sent["outcome"][mine] = Outcome.UNKNOWN
    assert "I7" not in violated(damaged)
    damaged.sent["outcome"][np.flatnonzero(mine)[-1]] = Outcome.OK  # back for a moment, too short for a commit
    damaged.extra[0]["end_ns"] = damaged.sent["end_ns"][-1] + 100 * MS
    assert "I7" not in violated(damaged)
    damaged.received["end_ns"][100] -= 2_000 * MS
    damaged.received["start_ns"][100] -= 2_000 * MS
    assert "I7" in violated(damaged), "it had been delivered long before the shard went away"


def test_what_was_produced_says_no_place_and_is_somewhere() -> None:
    damaged = clean()
    damaged.sent["queue"] = damaged.sent["offset"] = -1
    assert violated(damaged) == {}
    damaged.sent["shard"] = -1
    assert violated(damaged) == {}


def test_messages_of_a_killed_sender_are_no_phantoms() -> None:
    damaged = clean()
    damaged.sent = damaged.sent[:-5]
    assert violated(damaged) == {}
    damaged.invoked["offset"][0] -= 1
    assert list(violated(damaged)) == ["I2"]


def test_the_committed_offset_may_go_back_by_what_one_interval_committed() -> None:
    damaged = clean()
    damaged.looks["offset"][12] -= 20
    assert violated(damaged) == {}


def test_the_end_may_be_behind_while_a_slave_answers_if_it_comes_back() -> None:
    damaged = clean()
    damaged.looks["position"][10] -= 30
    assert violated(damaged) == {}


def test_redelivery_of_what_was_not_committed_is_allowed() -> None:
    damaged = clean()
    again = damaged.received[1000:1010].copy()
    again["end_ns"] += 500 * MS
    damaged.extra.append(again)
    assert violated(damaged) == {}


def test_a_drill_without_messages_is_judged_without_failing() -> None:
    damaged = clean()
    for name in ("invoked", "sent", "received", "read", "looks"):
        setattr(damaged, name, rows(0))
    damaged.conditions.recovery_limit_ms = None
    assert violated(damaged) == {}


def test_many_messages_are_judged_as_arrays() -> None:
    damaged = clean(100_000)
    began = time.process_time()
    found = verdicts(damaged)
    assert found["I1"].checked == 100_000
    assert violated(damaged) == {}
    print(f"judged in {time.process_time() - began:.1f} s of processor time")  # a million: 10 s


def test_the_judge_needs_no_sockets_and_no_clients() -> None:
    program = (
        "import sys, penstock.judge; "
        "sys.exit(any(name in sys.modules for name in ('grpc', 'numba', 'psutil', 'penstock.client')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_positions_are_judged_queue_by_queue() -> None:
    damaged = clean()
    other = damaged.looks.copy()
    other["queue"] = 0
    other["position"] = other["offset"] = 3
    damaged.extra.append(other)
    assert damaged.history.of(Op.POSITION).size == 40
    assert violated(damaged) == {}


def test_offsets_that_go_back_are_told_but_for_what_a_fault_explains() -> None:
    conditions = Conditions(windows=[Window("kill", "broker-a-0", FAULT_START, FAULT_END)])
    second = 1_000 * MS
    rising = [(at * second, 0, at * 10, at * 5) for at in range(12)]
    assert went_back(rising, conditions, "broker-a") == []
    behind = [*rising]
    behind[5] = (5 * second, 0, 30, 25)  # in the fault, and it comes back
    assert went_back(behind, conditions, "broker-a") == []
    behind[9] = (9 * second, 0, 70, 45)
    assert went_back(behind, conditions, "broker-a") == ["the max offset went back from 80 to 70"]
    reset = [*rising]
    reset[9] = (9 * second, 0, 90, 0)
    (told,) = went_back(reset, conditions, "broker-a")
    assert told == "the committed offset went back from 40 to 0; 35 was committed 1000 ms before"


def test_committed_offsets_may_be_those_of_before_the_queue_stopped_acknowledging() -> None:
    second = 1_000 * MS
    alone = [(0, 0, 90, 20), (1 * second, 0, 90, 40), *((at * second, 0, 90, 45) for at in range(2, 9))]
    back = [*alone, (9 * second, 0, 90, 40)]
    stopped = [500 * MS, 1_700 * MS]
    assert went_back(back, Conditions(), "broker-a", stopped) == []
    goes_on = [*stopped, 7_000 * MS]
    assert len(went_back(back, Conditions(), "broker-a", goes_on)) == 1
    lost = [*alone, (9 * second, 0, 90, 30)]
    (told,) = went_back(lost, Conditions(), "broker-a", stopped)
    assert told == "the committed offset went back from 45 to 30; 40 was committed 1000 ms before"
