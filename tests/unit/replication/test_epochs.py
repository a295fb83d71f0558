"""Histories of epochs: what follows what, and the common point of two."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.epochs import ENTRIES_MAX, Epoch
from penstock.replication.epochs import EpochHistory, common_end

HISTORY = EpochHistory([Epoch(1, 0), Epoch(2, 12712), Epoch(3, 26618)])


@st.composite
def histories(draw: st.DrawFn) -> EpochHistory:
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50)), max_size=8))
    entries, epoch, start = [], 0, 0
    for more_epochs, more_bytes in steps:
        epoch, start = epoch + more_epochs, start + more_bytes
        entries.append(Epoch(epoch, start))
    return EpochHistory(entries)


@pytest.mark.parametrize("entries", [[(2, 0), (1, 5)], [(1, 0), (1, 5)], [(1, 5), (2, 4)], [(-1, 0)], [(1, -1)]])
def test_what_is_no_history_is_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError):
        EpochHistory(Epoch(*entry) for entry in entries)


def test_the_oldest_epochs_are_forgotten_beyond_the_limit() -> None:
    history = EpochHistory()
    for epoch in range(1, ENTRIES_MAX + 3):
        history = history.begin(epoch, epoch * 10)
    assert len(history.entries) == ENTRIES_MAX
    assert history.entries[0] == Epoch(3, 30)


def test_truncating_forgets_epochs_of_which_nothing_is_left() -> None:
    assert HISTORY.truncate_to(26619) == HISTORY
    assert HISTORY.truncate_to(26618) == EpochHistory(HISTORY.entries[:2])
    assert HISTORY.truncate_to(0) == EpochHistory()


def test_a_follower_of_an_old_epoch_agrees_up_to_where_the_next_master_began() -> None:
    slave = EpochHistory([Epoch(1, 0)])
    assert common_end(HISTORY, 40000, slave, 13563) == 12712  # it had a tail that epoch 2 never saw
    assert common_end(HISTORY, 40000, slave, 9000) == 9000
    assert common_end(HISTORY, 40000, HISTORY, 30000) == 30000


def test_histories_without_a_common_epoch_have_no_common_end() -> None:
    assert common_end(HISTORY, 40000, EpochHistory([Epoch(1, 7)]), 100) is None
    assert common_end(HISTORY, 40000, EpochHistory(), 0) is None


@settings(max_examples=200)
@given(histories(), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(1, 3), st.integers(1, 3))
def test_the_common_end_is_where_two_continuations_of_one_log_part(
    shared: EpochHistory, shared_more: int, one_more: int, other_more: int, one_epochs: int, other_epochs: int
) -> None:
    fork = (shared.entries[-1].start if shared.entries else 0) + shared_more
    shared = shared if shared.entries else EpochHistory([Epoch(1, 0)])
    one = shared.begin(shared.latest + one_epochs, fork)
    other = shared.begin(shared.latest + one_epochs + other_epochs, fork)
    found = common_end(one, fork + one_more, other, fork + other_more)
    assert found == fork
    assert common_end(other, fork + other_more, one, fork + one_more) == found
