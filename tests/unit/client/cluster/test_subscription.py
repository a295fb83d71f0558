"""What subscriptions cost whoever takes them."""

from __future__ import annotations

import pytest

from penstock.client import Sql
from penstock.client.cluster import subscription
from penstock.client.cluster.subscription import parse_subscription
from penstock.formats.sql92 import EXPRESSION_LENGTH_MAX, Program, parse_condition
from penstock.proto.errors import InvalidArgument

WRONG = "a = 1 AND " * EXPRESSION_LENGTH_MAX


@pytest.mark.parametrize("expression", [Sql(WRONG), "a || " * EXPRESSION_LENGTH_MAX, ["a"] * EXPRESSION_LENGTH_MAX])
def test_what_is_too_long_is_refused_before_anything_of_it_is_parsed(expression: Sql | str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match=rf"characters: at most {EXPRESSION_LENGTH_MAX} are allowed"):
        parse_subscription("orders", expression)


def test_tags_that_are_too_long_for_brokers_only_as_they_are_told_are_refused() -> None:
    tags = "||".join(f"{number:04}" for number in range(2700))
    assert len(tags) <= EXPRESSION_LENGTH_MAX
    with pytest.raises(InvalidArgument, match=r"an expression of 21596 characters"):
        parse_subscription("orders", tags)


def test_a_condition_that_comes_with_every_receive_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def parse(text: str) -> Program:
        parsed.append(text)
        return parse_condition(text)

    monkeypatch.setattr(subscription, "parse_condition", parse)
    for _ in range(3):
        parse_subscription("orders", Sql("of = 'once'"))
        with pytest.raises(InvalidArgument, match="found the end"):
            parse_subscription("orders", Sql("of ="))
    assert parsed.count("of = 'once'") == 1
