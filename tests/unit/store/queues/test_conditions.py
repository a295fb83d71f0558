"""SQL92 conditions: what they mean, against an evaluator in plain Python, and what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.store import ReadStatus, Store
from penstock.broker.store.filter.conditions import DAMAGED, YES, Condition
from penstock.formats.record.layout import Host
from penstock.formats.record.properties import encode_properties
from penstock.formats.record.reading import RecordBatch
from penstock.proto.errors import InvalidArgument
from tests.support.broker.stores import batch, dispatch_all, store_config
from tests.support.record.encoding import encode_messages

HOST = Host.parse("127.0.0.1:1")
Truth = bool | None


def bodies_of(result: Any) -> list[bytes]:
    data = ctypes.create_string_buffer(max(result.bytes, 1))
    size = result.bytes
    result.copy_to(ctypes.addressof(data))
    return RecordBatch(data.raw[:size]).bodies() if size else []


def holds(condition: str, *given: dict[str, str], raw: bytes | None = None) -> list[bool]:
    """For which messages with these properties the condition holds."""
    encoded = [raw] if raw is not None else [encode_properties(each) for each in given]
    batch = RecordBatch(encode_messages("orders", [b"body"] * len(encoded), encoded, born_host=HOST))
    log = np.frombuffer(batch.buffer, np.uint8)
    found = Condition(condition).judge(log, *(np.ascontiguousarray(batch.rows[n]) for n in ("position", "size")))
    assert len(found) == len(batch)
    return [bool(each == YES) for each in found]


def test_a_condition_picks_messages_by_their_properties() -> None:
    messages = [{"amount": "11", "region": "eu"}, {"amount": "9", "region": "eu"}, {"amount": "11"}, {}]
    assert holds("amount > 10 AND region = 'eu'", *messages) == [True, False, False, False]
    assert holds("amount > 10 and (region = 'eu' or region is null)", *messages) == [True, False, True, False]
    assert holds("NOT (region = 'eu')", *messages) == [False, False, False, False]  # NULL is not false


@pytest.mark.parametrize(
    ("condition", "properties", "expected"),
    [
        ("a = 10", {"a": "10"}, True),
        ("a = 10", {"a": "10.0"}, True),
        ("a = 10", {"a": "ten"}, False),
        ("NOT a = 10", {"a": "ten"}, False),
        ("a <> 10", {"a": "11"}, True),
        ("a <> 10", {}, False),
        ("a >= -1.5e1", {"a": "-15"}, True),
        ("-a > 5", {"a": "-6"}, True),
        ("+a > 5", {"a": "6"}, True),
        ("a > 9223372036854775806", {"a": "9223372036854775807"}, True),
        ("a = 1234567890123456789", {"a": "1234567890123456790"}, False),
        ("a > 9223372036854775807", {"a": "9223372036854775808"}, False),  # as floating-point numbers they are equal
        ("a = 920.0864349327219", {"a": "920.0864349327219"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a > b", {"a": "x", "b": "9"}, False),
        ("a BETWEEN low AND high", {"a": "5", "low": "1", "high": "7"}, True),
        ("a BETWEEN low AND 3", {"a": "5", "low": "1"}, False),
        ("a CONTAINS ''", {"a": "x"}, False),
        ("a NOT STARTSWITH ''", {"a": "x"}, False),
        ("a > 99999999999999999", {"a": "100000000000000000"}, True),
        ("a = 1.1", {"a": "1.1"}, True),
        ("a < 1e300", {"a": "1e299"}, True),
        ("a = 10L", {"a": "10"}, True),
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "3.1"}, True),
        ("a NOT BETWEEN 1 AND 3", {}, False),
        ("a BETWEEN -3 AND -1", {"a": "-2"}, True),
        ("-a BETWEEN 1 AND 3", {"a": "-2"}, True),
        ("- - a BETWEEN 1 AND 3 AND b = 1", {"a": "2", "b": "1"}, True),
        ("(a) BETWEEN 1 AND +3", {"a": "2"}, True),
        ("(a = 1) IS NULL", {}, True),
        ("a NOT IN ('x') IS NULL", {}, True),
        ("a IN ('x', 'y''s')", {"a": "y's"}, True),
        ("a NOT IN ('x')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, False),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {"a": "0"}, True),
        ("a CONTAINS 'li'", {"a": "Alice"}, True),
        ("a NOT CONTAINS 'x'", {"a": "Alice"}, True),
        ("a STARTSWITH 'Al'", {"a": "Alice"}, True),
        ("a ENDSWITH 'ce'", {"a": "Alice"}, True),
        ("a NOT ENDSWITH 'ce'", {"a": "Alice"}, False),
        ("a STARTSWITH 'Alices'", {"a": "Alice"}, False),
        ("a CONTAINS 'x'", {}, False),
        ("TRUE", {}, True),
        ("FALSE OR a", {"a": "TRUE"}, True),
        ("a = TRUE", {"a": "true"}, True),
        ("a = FALSE", {"a": "no"}, True),
        ("a", {"a": "yes"}, False),
        ("NULL OR TRUE", {}, True),
        ("NULL = NULL", {}, False),
        ("a = b", {}, False),
        ("a <> b", {"a": "x"}, False),
        ("a <> b OR b IS NULL", {"a": "x"}, True),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("A = 'x'", {"a": "x"}, False),
        ("a = 'ä'", {"a": "ä"}, True),
        ("TAGS = 'paid'", {"TAGS": "paid"}, True),
        ("a = 1 -- the end\n/* or\n not */ AND b = 2", {"a": "1", "b": "2"}, True),
        ("a = 1 OR b = 1 AND c = 1", {"a": "1"}, True),
        ("$a_1 = '1'", {"$a_1": "1"}, True),
        ("amount = 1", {"mount": "1"}, False),
        ("amount = 1", {"xamount": "1"}, False),
        ("a = 1 = TRUE", {"a": "1"}, True),
    ],
)
def test_what_conditions_mean(condition: str, properties: dict[str, str], expected: bool) -> None:
    assert holds(condition, properties) == [expected]


def test_of_a_repeated_property_the_last_value_counts() -> None:
    assert holds("a = 2", raw=b"a\x011\x02a\x012\x02") == [True]
    assert holds("a = 2", raw=b"a\x012\x02a\x01\x02") == [True]  # one without a value is none
    assert holds("a = 2", raw=b"b\x011\x02a\x012") == [True]  # the last separator may be missing


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "character 1: expected a property, a value or .*, found the end"),
        ("a >", "character 4: expected a property"),
        ("a = 1 b", "character 7: expected AND, OR or the end, found 'b'"),
        ("a > 'x'", "character 5: a text beside >: only numbers and properties have an order"),
        ("1 = 'x'", "character 1: a number is never equal to a text"),
        ("a BETWEEN 3 AND 1", "character 11: BETWEEN 3 AND 1: the first is the greater one"),
        ("a BETWEEN 'x' AND 'y'", "a bound is a number or a property"),
        ("a = 1" + "0" * 23, "a whole number beyond 9223372036854775807: write it with a decimal point"),
        ("a = 1e999", "a number beyond"),
        ("a CONTAINS '" + "x" * 256 + "'", "a text of more than 255 bytes behind CONTAINS"),
        (" OR ".join(f"n{number} = 1" for number in range(65)), "more than 64 properties"),
        ("a IN (1)", "expected a 'text', found '1'"),
        ("a IN ()", "expected a 'text'"),
        ("a CONTAINS b", "expected a 'text', found 'b'"),
        ("(a = 1", "expected .*, found the end"),
        ("a != 1", r"character 3: '!' begins nothing \(unequal is <>\)"),
        ("a = 1 AND 2", "character 11: a number where a condition must be"),
        ("'x'", "character 1: a text where a condition must be"),
        ("a LIKE 'x'", "expected AND, OR or the end, found 'LIKE'"),
        ("a + 1 = 2", "expected AND, OR or the end, found '\\+'"),
        ("a IS 1", "expected NULL, found '1'"),
        ("(" * 17 + "a" + ")" * 17, "nested more than 16 deep"),
        ("-'x' = 1", "a text behind -"),
        ("'unclosed", "begins nothing"),
        ("a = \u0663", "begins nothing"),
        (" OR ".join(["a = 1"] * 1000), "steps: at most 2048"),
    ],
)
def test_what_is_no_condition_is_shown_with_its_place(condition: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Condition(condition)


NAMES = ["a", "b", "c"]
values = st.sampled_from(["", "0", "1", "-1", "1.5", "10", "x", "xy", "true", "FALSE", "1e2", ".", "-", "1.", "+7"])
numbers = st.sampled_from(["0", "1", "-1", "1.5", "1e1", "100"])
texts = st.sampled_from(["x", "xy", "y", "1", "true"])


def number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def comparison(name: str, sign: str, number: str) -> tuple[str, Callable[[dict[str, str]], Truth]]:
    def evaluate(given: dict[str, str]) -> Truth:
        mine, other = number_of(given.get(name, "")), float(number)
        if mine is None:
            return None
        return {
            "=": mine == other,
            "<>": mine != other,
            "<": mine < other,
            "<=": mine <= other,
            ">": mine > other,
            ">=": mine >= other,
        }[sign]

    return f"{name} {sign} {number}", evaluate


def about_text(name: str, word: str, text: str) -> tuple[str, Callable[[dict[str, str]], Truth]]:
    tests: dict[str, Callable[[str], bool]] = {
        "=": lambda mine: mine == text,
        "<>": lambda mine: mine != text,
        "CONTAINS": lambda mine: text in mine,
        "STARTSWITH": lambda mine: mine.startswith(text),
        "NOT ENDSWITH": lambda mine: not mine.endswith(text),
    }
    return f"{name} {word} '{text}'", lambda given: tests[word](given[name]) if given.get(name) else None


def both(one: Any, other: Any) -> tuple[str, Callable[[dict[str, str]], Truth]]:
    def evaluate(given: dict[str, str]) -> Truth:
        found = one[1](given), other[1](given)
        return False if False in found else None if None in found else True

    return f"({one[0]} AND {other[0]})", evaluate


def either(one: Any, other: Any) -> tuple[str, Callable[[dict[str, str]], Truth]]:
    def evaluate(given: dict[str, str]) -> Truth:
        found = one[1](given), other[1](given)
        return True if True in found else None if None in found else False

    return f"({one[0]} OR {other[0]})", evaluate


def negated(one: Any) -> tuple[str, Callable[[dict[str, str]], Truth]]:
    return f"NOT ({one[0]})", lambda given: None if one[1](given) is None else not one[1](given)


simple = st.one_of(
    st.builds(comparison, st.sampled_from(NAMES), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers),
    st.builds(
        about_text,
        st.sampled_from(NAMES),
        st.sampled_from(["=", "<>", "CONTAINS", "STARTSWITH", "NOT ENDSWITH"]),
        texts,
    ),
    st.sampled_from(NAMES).map(lambda name: (f"{name} IS NULL", lambda given: not given.get(name))),
)
conditions = st.recursive(
    simple,
    lambda inner: st.one_of(st.builds(both, inner, inner), st.builds(either, inner, inner), inner.map(negated)),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(conditions, st.lists(st.dictionaries(st.sampled_from(NAMES), values), min_size=1, max_size=6))
def test_the_kernel_agrees_with_an_evaluator_in_plain_python(condition: Any, messages: list[dict[str, str]]) -> None:
    text, evaluate = condition
    assert holds(text, *messages) == [evaluate(each) is True for each in messages], text


TOKENS = ["a", "b", "1", "1.5", "9" * 5000, "'x'", "(", ")", "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE"]
TOKENS += ["=", "<>", "<", ">=", "+", "-", ",", "CONTAINS", "ENDSWITH", "1e999", "--", "/*"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=9).map(" ".join))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        Condition(text)
    except InvalidArgument:
        return
    assert holds(text, {"a": "1", "b": "x"}) in ([True], [False])


def test_what_is_no_record_is_damage_and_ends_the_search() -> None:
    log = np.zeros(200, np.uint8)
    found = Condition("TRUE").judge(log, np.array([0, 150], np.int64), np.array([100, 100], np.int32))
    assert found.tolist() == [DAMAGED]
    found = Condition("TRUE").judge(log, np.array([150], np.int64), np.array([100], np.int32))
    assert found.tolist() == [DAMAGED]


def test_one_call_takes_no_longer_than_some_milliseconds() -> None:
    text = "a" * 30_000
    batch = RecordBatch(
        encode_messages("orders", [b"body"] * 50, [encode_properties({"p": text})] * 50, born_host=HOST)
    )
    arguments = (
        np.frombuffer(batch.buffer, np.uint8),
        *(np.ascontiguousarray(batch.rows[n]) for n in ("position", "size")),
    )
    hard = Condition(f"p CONTAINS '{'a' * 254}b'")
    assert len(hard.judge(*arguments)) == 2  # by its count of work, not by a clock
    assert len(Condition("p IS NULL").judge(*arguments)) == 50


def test_a_store_reads_where_a_condition_holds_within_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(store_config(tmp_path / "store"))  # 16 KiB files: the messages lie in several
    try:
        properties = [encode_properties({"n": str(number)}) for number in range(400)]
        for start in range(0, 400, 20):
            bodies = [b"%03d" % number * 30 for number in range(start, start + 20)]
            store.append("orders", batch("orders", bodies, properties=properties[start : start + 20]), queues=1)
        dispatch_all(store)

        def read(
            text: str, offset: int = 0, max_bytes: int = 1 << 20, max_count: int = 1000, searched: int = 1 << 30
        ) -> tuple[list[int], int]:
            result = store.reader.read(
                *("orders", 0, offset, max_bytes), max_count=max_count, condition=Condition(text), max_searched=searched
            )
            found = [int(body[:3]) for body in bodies_of(result)]
            assert (result.count, bool(found)) == (len(found), result.status is ReadStatus.FOUND)
            return found, result.next_offset

        assert read("n >= 100 AND n < 300") == (list(range(100, 300)), 400)
        assert read("n >= 100 AND n < 300", max_count=3) == ([100, 101, 102], 103)
        assert read("n IN ('7', '390')", max_count=1) == ([7], 390)
        assert read("n > 397", max_bytes=1) == ([398], 399)
        assert read("n < 5", offset=5) == ([], 400)
        limits: dict[str, Any] = {"max_count": 1, "max_searched": 1, "condition": Condition("TRUE")}
        for topic, offset, status in (("orders", 400, 1), ("orders", 401, 3), ("none", 0, 5)):
            assert store.reader.read(topic, 0, offset, 1, **limits).status == status
        monkeypatch.setattr("penstock.broker.store.reading.SEARCHED_AT_ONCE", 3_000)
        found, offset = read("n > 390", searched=10_000)
        assert (found, 0 < offset < 390) == ([], True)
        while not found:
            found, offset = read("n > 390", offset, searched=10_000)
        assert (found, offset) == (list(range(391, 400)), 400)
    finally:
        store.close()


@pytest.mark.parametrize("what", ["size", "body"])
def test_a_damaged_record_is_told_of_its_own_offset(tmp_path: Path, what: str) -> None:
    store = Store.open(store_config(tmp_path / "store", segment_bytes=1 << 17))
    try:
        properties = [encode_properties({"n": str(number)}) for number in range(100)]
        store.append("orders", batch("orders", [b"x" * 50] * 100, properties=properties), queues=1)
        dispatch_all(store)
        place = store.picker.locate("orders", 0, np.arange(50, 51))
        file = store._log.file_of(int(place.positions[0]))
        at = int(place.positions[0]) - file.base
        file.bytes[at + 84 + 3 if what == "size" else at + 90] ^= 0x7F  # the body's length, or a byte of it

        def read(text: str, offset: int) -> Any:
            limits: dict[str, Any] = {"max_count": 1000, "max_searched": 1 << 30, "verify": True}
            return store.reader.read("orders", 0, offset, 1 << 20, condition=Condition(text), **limits)

        found = read("n >= 40", 0)
        assert (found.status, found.count, found.next_offset) == (ReadStatus.FOUND, 10, 50)
        found = read("n >= 60", 0)
        assert (found.status, found.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)
        found = read("n >= 60", 50)
        assert (found.status, found.next_offset) == (ReadStatus.DAMAGED, 51)
        assert "orders queue 0 offset 50" in found.problem
        assert read("n >= 60", 51).count == 40
    finally:
        store.close()
