"""What numbered messages say of losses, duplicates and order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from penstock.bench.load.ledger import HEADER, Received, gaps, headers_of, numbered_rows, verify

RUN = 7


def received(tmp_path: Path, *messages: tuple[int, int, int, int], run: int = RUN) -> npt.NDArray[np.void]:
    """Messages as (stream, sequence, queue id, offset)."""
    made = Received()
    for stream, sequence, queue_id, offset in messages:
        rows = numbered_rows(30, run, stream, sequence, 1, 99)
        headers, _ = headers_of([rows.tobytes()])
        made.add(headers, "broker-a", np.array([queue_id], dtype=np.int32), np.array([offset]))
    made.save(tmp_path / "seen.npy")
    seen: npt.NDArray[np.void] = np.load(tmp_path / "seen.npy")
    return seen


def test_numbers_survive_the_way_through_a_body() -> None:
    rows = numbered_rows(40, RUN, 3, 100, 5, 123)
    assert HEADER.unpack_from(rows[4].tobytes()) == (RUN, 3, 104, 123)
    headers, fits = headers_of([row.tobytes() for row in rows])
    assert headers["sequence"].tolist() == [100, 101, 102, 103, 104]
    assert fits.all()


def test_a_body_too_short_for_a_number_is_told_apart() -> None:
    headers, fits = headers_of([bytes(24), bytes(23)])
    assert fits.tolist() == [True, False]
    assert len(headers) == 1


def test_everything_in_order_is_a_clean_verdict(tmp_path: Path) -> None:
    seen = received(tmp_path, (0, 0, 1, 10), (0, 1, 1, 11), (0, 2, 2, 5))
    verdict = verify(seen, RUN, {0: 3}, 0)
    assert (verdict.distinct, verdict.duplicates, verdict.lost, verdict.out_of_order) == (3, 0, 0, 0)


def test_a_missing_message_is_lost(tmp_path: Path) -> None:
    assert verify(received(tmp_path, (0, 0, 1, 10), (0, 2, 1, 11)), RUN, {0: 3}, 0).lost == 1


def test_a_stream_never_seen_is_lost_as_a_whole(tmp_path: Path) -> None:
    assert verify(received(tmp_path, (0, 0, 1, 10)), RUN, {0: 1, 5: 4}, 0).lost == 4


@pytest.mark.parametrize(("known", "exact"), [(1, {}), (0, {0: (1,)})])
def test_what_was_not_acknowledged_is_not_lost(tmp_path: Path, known: int, exact: dict[int, tuple[int, ...]]) -> None:
    assert verify(received(tmp_path, (0, 0, 1, 10), (0, 2, 1, 11)), RUN, {0: 3}, known, exact).lost == 0


def test_delivered_twice_and_stored_twice_are_duplicates(tmp_path: Path) -> None:
    again = received(tmp_path, (0, 0, 1, 10), (0, 0, 1, 10))
    stored = received(tmp_path, (0, 0, 1, 10), (0, 0, 1, 11))
    assert (verify(again, RUN, {0: 1}, 0).duplicates, verify(again, RUN, {0: 1}, 0).stored_twice) == (1, 0)
    assert (verify(stored, RUN, {0: 1}, 0).duplicates, verify(stored, RUN, {0: 1}, 0).stored_twice) == (1, 1)


def test_a_message_behind_a_newer_one_of_its_stream_and_queue_is_out_of_order(tmp_path: Path) -> None:
    swapped = received(tmp_path, (0, 1, 1, 10), (0, 0, 1, 11))
    other_queue = received(tmp_path, (0, 1, 1, 10), (0, 0, 2, 11))
    assert verify(swapped, RUN, {0: 2}, 0).out_of_order == 1
    assert verify(other_queue, RUN, {0: 2}, 0).out_of_order == 0


def test_messages_of_other_runs_do_not_count(tmp_path: Path) -> None:
    assert verify(received(tmp_path, (0, 0, 1, 10), run=8), RUN, {}, 0).distinct == 0


def test_gaps_know_how_much_each_stream_must_have_sent(tmp_path: Path) -> None:
    assert gaps(received(tmp_path, (0, 0, 1, 10), (0, 4, 1, 11), (2, 1, 1, 12))) == {(RUN, 0): 5, (RUN, 2): 2}


def test_messages_of_different_keys_have_no_order_and_those_of_one_key_have(tmp_path: Path) -> None:
    other_key = received(tmp_path, (0, 1, 1, 10), (0, 0, 1, 11))
    same_key = received(tmp_path, (0, 2, 1, 10), (0, 0, 1, 11))
    assert verify(other_key, RUN, {0: 2}, 0, keys=2).out_of_order == 0
    assert verify(same_key, RUN, {0: 3}, 0, keys=2).out_of_order == 1
