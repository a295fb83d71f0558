"""Message ids that clients give."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.formats.record import unique_key
from penstock.formats.record.unique_key import new_unique_key


def test_a_key_is_32_upper_case_digits_with_process_and_time_in_their_places() -> None:
    before_s = time.time()
    key = new_unique_key()
    after_s = time.time()
    assert len(key) == 32
    assert key == bytes.fromhex(key).hex().upper()
    assert int(key[8:12], 16) == os.getpid() & 0xFFFF
    month_start_s = time.mktime((*time.localtime(before_s)[:2], 1, 0, 0, 0, 0, 0, -1))
    made_ms = int(key[20:28], 16) + int(month_start_s * 1000)
    assert int(before_s * 1000) <= made_ms <= int(after_s * 1000)


def test_keys_of_many_threads_differ() -> None:
    with ThreadPoolExecutor(4) as pool:
        keys = [key for part in pool.map(lambda _: [new_unique_key() for _ in range(5000)], range(4)) for key in part]
    assert len(set(keys)) == len(keys)


def test_a_new_month_starts_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    new_unique_key()
    for month, day in ((1, 31), (2, 1), (2, 28), (3, 31), (4, 1), (12, 31)):
        moment = time.mktime((2031, month, day, 12, 0, 0, 0, 0, -1))
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: int(moment) * 1_000_000_000)
        elapsed_s = int(new_unique_key()[20:28], 16) / 1000
        assert elapsed_s == moment - time.mktime((2031, month, 1, 0, 0, 0, 0, 0, -1))


def test_times_that_come_again_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    moment_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: moment_ns)
    first = new_unique_key()
    moment_ns -= 3600 * 1_000_000_000
    assert new_unique_key()[:20] != first[:20]
    again = new_unique_key()
    moment_ns -= 5_000_000  # as threads see it that overtake each other
    assert new_unique_key()[:20] == again[:20]


def test_a_small_step_back_gives_no_key_twice_though_the_counter_has_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_ns, step_ns, keys = time.time_ns(), 2000, set()
    for begin_ns in (start_ns, start_ns + (70_000 - 65_536) * step_ns):
        moments = iter(range(begin_ns, begin_ns + 70_000 * step_ns, step_ns))
        monkeypatch.setattr(time, "time_ns", lambda moments=moments: next(moments))
        keys |= {new_unique_key() for _ in range(70_000)}
    assert len(keys) == 140_000


def test_processes_with_the_same_address_and_id_still_differ() -> None:
    first, second = (unique_key._Source(b"\x0a\0\0\1") for _ in range(2))
    assert first.prefix[:12] == second.prefix[:12]
    assert first.prefix != second.prefix


def test_a_forked_process_takes_a_new_prefix() -> None:
    source = unique_key._Source(b"\x0a\0\0\1")
    before = source.prefix
    source.renew()
    assert source.prefix[:8] == before[:8]
    assert source.prefix != before
