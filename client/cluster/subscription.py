"""What a consumer wants of a topic: everything, some tags, or what an SQL92 condition selects."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.formats.record.properties import TAGS
from penstock.formats.sql92 import EXPRESSION_LENGTH_MAX, parse_condition
from penstock.proto.errors import InvalidArgument
from penstock.proto.names import check_topic
from penstock.proto.wire.broker_pb2 import Filter

ALL = "*"

_NAME_SEPARATOR, _PAIR_SEPARATOR = b"\x01", b"\x02"


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 condition on message properties, evaluated by the broker: ``Sql("amount > 10 AND region = 'eu'")``.

    One that is wrong is refused by :meth:`subscribe`. A broker that is set not to (``enablePropertyFilter``) refuses
    all of them; the consumer then raises that error.
    """

    expression: str


Expression = str | Sql


@dataclass(frozen=True)
class Subscription:
    """One topic and the messages wanted of it."""

    topic: str
    filter: Filter
    tags: frozenset[str] = field(default=frozenset())  # empty: no tag filter

    @classmethod
    def of_all(cls, topic: str) -> Subscription:
        return cls(topic, Filter(kind=Filter.ALL))

    def wants(self, properties: bytes) -> bool:
        """True if a message with these encoded properties is wanted, judged by the text of its tag.

        Brokers compare hashes of tags, and different tags may have one hash.
        """
        if not self.tags:
            return True
        # The last pair of a name counts, as in every reader of properties.
        start = (_PAIR_SEPARATOR + properties).rfind(_TAG_PREFIX)
        if start < 0:
            return False
        value_start = start + len(_TAG_PREFIX) - 1
        end = properties.find(_PAIR_SEPARATOR, value_start)
        value = properties[value_start:] if end < 0 else properties[value_start:end]
        return value.decode(errors="replace") in self.tags


_TAG_PREFIX = _PAIR_SEPARATOR + TAGS.encode() + _NAME_SEPARATOR


def parse_subscription(topic: str, expression: Expression | Sequence[str] = ALL) -> Subscription:
    """The subscription of ``topic``; ``"*"`` or nothing is everything, ``"a || b"`` (or a list) are tags.

    Raises:
        InvalidName: not a topic name.
        InvalidArgument: an expression without any tag, an SQL92 condition that is empty or wrong, one that is too
            long, or no text.
    """
    check_topic(topic)
    try:
        return _parsed(topic, expression)
    except (TypeError, AttributeError, UnicodeEncodeError):
        raise InvalidArgument(
            f"subscription of topic {topic!r}: {expression!r:.80} must be text that is valid Unicode, a list of such "
            "tags, or Sql of one"
        ) from None


def _parsed(topic: str, expression: Expression | Sequence[str]) -> Subscription:
    if isinstance(expression, Sql):
        condition = _short(topic, expression.expression)
        if not condition.strip():
            raise InvalidArgument(f"subscription of topic {topic!r}: the SQL92 condition is empty")
        try:
            _check_condition(condition)
        except InvalidArgument as error:
            raise InvalidArgument(f"subscription of topic {topic!r}: {error.message}") from None
        return Subscription(topic, Filter(kind=Filter.SQL92, expression=condition))
    text = _short(topic, expression if isinstance(expression, str) else " || ".join(expression))
    if text.strip() in ("", ALL):
        return Subscription.of_all(topic)
    tags = {tag.strip() for tag in text.split("||")} - {""}
    if not tags:
        raise InvalidArgument(f"subscription of topic {topic!r}: {text!r} names no tag; write 'a || b', or '*' for all")
    # Sorted, so that members which write the same tags in another order are seen to subscribe alike.
    wanted = _short(topic, " || ".join(sorted(tags)))
    return Subscription(topic, Filter(kind=Filter.TAG, expression=wanted), frozenset(tags))


def _short(topic: str, text: str) -> str:
    """``text``, before anything of it is parsed: a gateway's clients may send 64 MiB. Raises InvalidArgument."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise InvalidArgument(
            f"subscription of topic {topic!r}: an expression of {len(text)} characters: at most "
            f"{EXPRESSION_LENGTH_MAX} are allowed"
        )
    return text


@functools.lru_cache(maxsize=256)
def _check_condition(text: str) -> None:
    """Raises InvalidArgument. What was right is kept: gateways are told a condition with every receive."""
    parse_condition(text)
