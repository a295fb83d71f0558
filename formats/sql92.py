"""SQL92 conditions on message properties: from text to the program that brokers run.

``NOT``, ``AND``, ``OR``, ``= <> > >= < <=``, ``[NOT] BETWEEN`` (numbers, properties), ``[NOT] IN`` (texts), ``IS [NOT]
NULL``, ``[NOT] CONTAINS``, ``STARTSWITH``, ``ENDSWITH`` (a text), ``TRUE``, ``FALSE``, ``NULL``, unary ``+`` and ``-``,
parentheses, comments; literals are decimals, floating-point numbers and ``'texts'`` with ``''`` for a quote. Keywords
know no case, property names do. A property that is missing is NULL, and so is a comparison of its text with a number
if the text is no number; NULL is neither true nor false. No text has an empty part.
Source: RocketMQ's ``SelectorParser``; differs: a number in a property may be written as any number, where RocketMQ
refuses ``10.5`` beside a whole one; ``NOT`` binds as in SQL, where RocketMQ takes ``NOT a = 3`` for ``(NOT a) = 3``;
of two properties a missing one is NULL, where RocketMQ takes two missing ones for equal, and one for unlike any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.proto.errors import InvalidArgument

EXPRESSION_LENGTH_MAX: Final = 16 * 1024
"""Characters of a condition, or of tags, that one subscription may have."""
DEPTH_MAX: Final = 16
"""So deep may parentheses, NOT and signs be nested."""
OPS_MAX: Final = 2048
PART_BYTES_MAX: Final = 255
NAMES_MAX: Final = 64
"""Properties that one condition may name."""


class Op(IntEnum):
    """What one step does; it takes values from the stack and leaves one there."""

    NULL = 0
    BOOL = 1
    LONG = 2
    DOUBLE = 3
    TEXT = 4
    PROPERTY = 5
    NEGATE = 6
    EQUAL = 7
    UNEQUAL = 8
    LESS = 9
    LESS_EQUAL = 10
    GREATER = 11
    GREATER_EQUAL = 12
    IS_NULL = 13
    AND = 14
    OR = 15
    NOT = 16
    CONTAINS = 17
    STARTS_WITH = 18
    ENDS_WITH = 19
    IN = 20
    TO_BOOL = 21


@dataclass(slots=True)
class Program:
    """Steps ``(op, argument, count)``; arguments are values, or places in the lists. ``IN`` names ``count`` texts.

    ``numbers`` are such as are no whole ones, as they are written.
    """

    steps: list[tuple[Op, int, int]] = field(default_factory=list)
    longs: list[int] = field(default_factory=list)
    numbers: list[bytes] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)


class _Token(NamedTuple):
    kind: str  # word, number, text, sign, end
    text: str
    at: int


_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+[lL]?)
      |(?P<text>'(?:[^']|'')*')
      |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      |(?P<sign><>|<=|>=|[=<>()+,-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_COMPARISONS: Final = {
    "=": Op.EQUAL,
    "<>": Op.UNEQUAL,
    "<": Op.LESS,
    "<=": Op.LESS_EQUAL,
    ">": Op.GREATER,
    ">=": Op.GREATER_EQUAL,
}
_PARTS: Final = {"CONTAINS": Op.CONTAINS, "STARTSWITH": Op.STARTS_WITH, "ENDSWITH": Op.ENDS_WITH}
_KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", *_PARTS})
_LONG_MAX: Final = (1 << 63) - 1
_LITERAL = re.compile(r"[+-]?[\d.]+(?:[eE][+-]?\d+)?[lL]?", re.ASCII)

# What an expression is, as far as its text tells.
_CONDITION, _NUMBER, _TEXT, _PROPERTY, _NULL = "a condition", "a number", "a text", "a property", "NULL"


def parse_condition(text: str) -> Program:
    """The program of a condition. Raises InvalidArgument: it shows where, and what was expected."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0
        self._program = Program()

    def parse(self) -> Program:
        """The whole text."""
        at = self._token.at
        self._as_condition(self._either(), at)
        if self._token.kind != "end":
            raise self._wrong("AND, OR or the end")
        if len(self._program.steps) > OPS_MAX:
            raise InvalidArgument(f"SQL92 condition of {len(self._program.steps)} steps: at most {OPS_MAX} are allowed")
        return self._program

    def _split(self) -> list[_Token]:
        found, at = [], 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                hint = " (unequal is <>)" if self._text.startswith("!=", at) else ""
                raise self._error(at, f"{self._text[at]!r} begins nothing{hint}")
            if match.lastgroup != "blank":
                found.append(_Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return [*found, _Token("end", "", at)]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _takes(self, *wanted: str) -> str:
        """The wanted keyword or sign, taken, if it comes next; else nothing."""
        token = self._token
        text = token.text.upper() if token.kind == "word" else token.text
        if token.kind in ("word", "sign") and text in wanted:
            self._next += 1
            return text
        return ""

    def _must(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise self._wrong(wanted)

    def _wrong(self, expected: str) -> InvalidArgument:
        token = self._token
        found = f"{token.text!r:.40}" if token.kind != "end" else "the end"
        return self._error(token.at, f"expected {expected}, found {found}")

    def _error(self, at: int, what: str) -> InvalidArgument:
        shown = f"{self._text[max(0, at - 30) : at]}>>>{self._text[at : at + 30]}"
        return InvalidArgument(f"SQL92 condition, character {at + 1}: {what}: {shown!r}")

    def _step(self, op: Op, argument: int = 0, count: int = 0) -> None:
        self._program.steps.append((op, argument, count))

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(self._token.at, f"nested more than {DEPTH_MAX} deep")

    # One method for each level of precedence; each answers what the expression is.

    def _either(self) -> str:
        return self._joined("OR", Op.OR, self._both)

    def _both(self) -> str:
        return self._joined("AND", Op.AND, self._negated)

    def _joined(self, word: str, op: Op, part: Callable[[], str]) -> str:
        at, kind = self._token.at, part()
        while self._takes(word):
            self._as_condition(kind, at)
            at = self._token.at
            self._as_condition(part(), at)
            self._step(op)
            kind = _CONDITION
        return kind

    def _negated(self) -> str:
        if not self._takes("NOT"):
            return self._compared()
        self._deeper()
        at = self._token.at
        self._as_condition(self._negated(), at)
        self._step(Op.NOT)
        self._depth -= 1
        return _CONDITION

    def _compared(self) -> str:
        begin = len(self._program.steps)
        at, kind = self._token.at, self._value()
        while True:
            if sign := self._takes(*_COMPARISONS):
                other_at = self._token.at
                self._check_comparable(kind, self._value(), sign, at, other_at)
                self._step(_COMPARISONS[sign])
            elif self._takes("IS"):
                is_not = self._takes("NOT")
                self._must("NULL")
                self._step(Op.IS_NULL)
                if is_not:
                    self._step(Op.NOT)
            elif not self._tested(kind, at, begin):
                return kind
            kind = _CONDITION

    def _tested(self, kind: str, at: int, first_step: int) -> bool:
        """BETWEEN, IN, CONTAINS and their like, if one comes next; ``first_step``: where their left side begins."""
        begin = self._next
        is_not = self._takes("NOT")
        word = self._takes("BETWEEN", "IN", *_PARTS)
        if not word:
            self._next = begin
            return False
        if kind not in (_PROPERTY, _NUMBER if word == "BETWEEN" else _TEXT):
            raise self._error(at, f"{kind} in front of {word}, where a property must be")
        if word == "BETWEEN":
            self._between(first_step)
        elif word == "IN":
            self._in()
        else:
            at = self._token.at
            part = self._text_literal()
            if len(self._program.texts[part]) > PART_BYTES_MAX:
                raise self._error(at, f"a text of more than {PART_BYTES_MAX} bytes behind {word}")
            self._step(Op.TEXT, part)
            self._step(_PARTS[word])
        if is_not:
            self._step(Op.NOT)
        return True

    def _between(self, first_step: int) -> None:
        left = self._program.steps[first_step:]
        del self._program.steps[first_step:]
        at = self._token.at
        low, lowest = self._bound()
        self._must("AND")
        high, highest = self._bound()
        if lowest is not None and highest is not None and lowest > highest:
            raise self._error(at, f"BETWEEN {lowest:g} AND {highest:g}: the first is the greater one")
        for op, bound in ((Op.GREATER_EQUAL, low), (Op.LESS_EQUAL, high)):
            self._program.steps += [*left, *bound, (op, 0, 0)]
        self._step(Op.AND)

    def _bound(self) -> tuple[list[tuple[Op, int, int]], float | None]:
        """The steps of one side, and its number if it is a literal."""
        first, begin, at = len(self._program.steps), self._next, self._token.at
        if self._value() not in (_NUMBER, _PROPERTY):
            raise self._error(at, "a bound is a number or a property")
        steps = self._program.steps[first:]
        del self._program.steps[first:]
        text = "".join(token.text for token in self._tokens[begin : self._next])
        return steps, float(text.rstrip("lL")) if _LITERAL.fullmatch(text) else None

    def _in(self) -> None:
        self._must("(")
        first = self._text_literal()
        last = first
        while self._takes(","):
            last = self._text_literal()
        self._must(")")
        self._step(Op.IN, first, last - first + 1)

    def _text_literal(self) -> int:
        if self._token.kind != "text":
            raise self._wrong("a 'text'")
        self._program.texts.append(self._take().text[1:-1].replace("''", "'").encode())
        return len(self._program.texts) - 1

    def _value(self) -> str:
        token = self._token
        if sign := self._takes("+", "-"):
            self._deeper()
            at = self._token.at
            kind = self._value()
            if kind not in (_NUMBER, _PROPERTY):
                raise self._error(at, f"{kind} behind {sign}")
            self._depth -= 1
            if sign == "-" or kind == _PROPERTY:
                self._step(Op.NEGATE)
                if sign == "+":
                    self._step(Op.NEGATE)
            return _NUMBER
        if self._takes("("):
            self._deeper()
            kind = self._either()
            self._must(")")
            self._depth -= 1
            return kind
        word = token.text.upper()
        if token.kind == "number":
            self._number(self._take())
            return _NUMBER
        if token.kind == "text":
            self._step(Op.TEXT, self._text_literal())
            return _TEXT
        if token.kind == "word" and word in ("TRUE", "FALSE", "NULL"):
            self._take()
            self._step(Op.NULL if word == "NULL" else Op.BOOL, int(word == "TRUE"))
            return _NULL if word == "NULL" else _CONDITION
        if token.kind == "word" and word not in _KEYWORDS:
            self._property(self._take().text)
            return _PROPERTY
        raise self._wrong("a property, a value or (")

    def _number(self, token: _Token) -> None:
        text = token.text.rstrip("lL")
        if text.isdecimal():
            if len(text) > len(str(_LONG_MAX)) or int(text) > _LONG_MAX:
                raise self._error(token.at, f"a whole number beyond {_LONG_MAX}: write it with a decimal point")
            self._program.longs.append(int(text))
            self._step(Op.LONG, len(self._program.longs) - 1)
            return
        if math.isinf(float(text)):
            raise self._error(token.at, "a number beyond 1.8e308")
        self._program.numbers.append(text.encode())
        self._step(Op.DOUBLE, len(self._program.numbers) - 1)

    def _property(self, name: str) -> None:
        names, encoded = self._program.names, name.encode()
        if encoded not in names:
            if len(names) == NAMES_MAX:
                raise InvalidArgument(f"SQL92 condition: it names more than {NAMES_MAX} properties")
            names.append(encoded)
        self._step(Op.PROPERTY, names.index(encoded))

    def _as_condition(self, kind: str, at: int) -> None:
        if kind == _PROPERTY:
            self._step(Op.TO_BOOL)
        elif kind not in (_CONDITION, _NULL):
            raise self._error(at, f"{kind} where a condition must be")

    def _check_comparable(self, left: str, right: str, sign: str, at: int, other_at: int) -> None:
        if sign not in ("=", "<>"):
            for kind, place in ((left, at), (right, other_at)):
                if kind not in (_NUMBER, _PROPERTY):
                    raise self._error(place, f"{kind} beside {sign}: only numbers and properties have an order")
        elif _NULL not in (left, right) and _PROPERTY not in (left, right) and left != right:
            raise self._error(at, f"{left} is never equal to {right}")
