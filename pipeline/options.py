"""Options of sources, sinks and jobs, each declared once: name, meaning, kind of value, default.

A frozen dataclass declares them: each field made with :func:`setting` is an option. :func:`options_of` lists them, for
a reference and for the command line, and :meth:`Options.read` checks what a user gave, before anything else happens.
Names may be spelt ``like_this``, ``like-this`` or ``likeThis``, and as Spark gives them, in lower case.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from penstock.proto.errors import ConfigError
from penstock.runtime.nearest import hint

REQUIRED: Final[Any] = dataclasses.MISSING
TIME_EXPECTED: Final = (
    "a time as 2030-01-31, 2030-01-31T12:30:00+01:00, or milliseconds since 1970, but not of eight or ten digits"
)
TABLE_PROPERTIES: Final = ("comment", "collation", "location", "provider", "owner", "external", "is_managed_location")
"""Which Spark gives a source of a table in its catalog. Source: Spark's ``CatalogV2Util.TABLE_RESERVED_PROPERTIES``."""
_TABLE_OPTION: Final = "option."
"""Before the names of ``CREATE TABLE … OPTIONS``, which Spark gives a second time so, once, when it makes the table."""
_FROM_CATALOG: Final = "Spark gives the options of a table in its catalog to no Python source"
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option's text must be. ``parse`` raises ValueError where it is something else."""

    expected: str
    parse: Callable[[str], Any]
    of: type[Any] = str
    words: tuple[str, ...] = ()  # the only ones, where these are few


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``several``: its text names values with commas between them, and they are a tuple."""

    name: str
    meaning: str
    kind: Kind
    default: Any = None
    several: bool = False
    field: str = ""  # of the dataclass that declares it

    @property
    def is_required(self) -> bool:
        """True if it must be given."""
        return self.default is REQUIRED


def setting(meaning: str, default: Any = REQUIRED, *, name: str = "", kind: Kind | None = None) -> Any:
    """A field that is an option: what it means, and its default; required without one.

    ``name`` is the field's, ``kind`` that of the field's type, unless they are given.
    """
    return dataclasses.field(default=default, metadata={"meaning": meaning, "name": name, "kind": kind})


def camel_case(name: str) -> str:
    """``like_this`` as ``likeThis``, for options of Spark."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def options_of(declared: type[Any], spelt: Callable[[str], str] = str) -> tuple[Option, ...]:
    """The options that a dataclass declares; ``spelt``: how fields are called that have no name of their own."""
    hints = typing.get_type_hints(declared)
    found = []
    for field in dataclasses.fields(declared):
        if "meaning" in field.metadata:
            of, several = _type_of(hints[field.name])
            kind = field.metadata["kind"] or _KINDS[of]
            name = field.metadata["name"] or spelt(field.name)
            found.append(Option(name, field.metadata["meaning"], kind, field.default, several, field.name))
    return tuple(found)


def _type_of(hint_of_field: Any) -> tuple[type[Any], bool]:
    """The type of a field's values, and True if the field holds several."""
    origin, arguments = typing.get_origin(hint_of_field), typing.get_args(hint_of_field)
    if origin is tuple:
        return arguments[0], True
    if origin in (typing.Union, types.UnionType):
        (hint_of_field,) = (each for each in arguments if each is not type(None))
    return hint_of_field, False


class Given:
    """What a user gave: by name, a value of the option's kind, else its default."""

    def __init__(self, options: Iterable[Option], values: Mapping[str, Any]) -> None:
        self._options = tuple(options)
        self._values = values

    def __contains__(self, name: str) -> bool:
        """True if the user gave the option."""
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        (option,) = (each for each in self._options if each.name == name)
        return () if option.several and option.default in (None, REQUIRED) else option.default

    def fields(self) -> dict[str, Any]:
        """The values of all fields of the dataclass that declares options."""
        return {option.field: self[option.name] for option in self._options if option.field}

    def at_most_one(self, *wanted: str) -> str | None:
        """The one of these options that is given. Raises ConfigError when there are two."""
        given = [name for name in wanted if name in self]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)}: give only one of {', '.join(wanted)}")
        return given[0] if given else None


def in_sql(source: str, options: str) -> str:
    """What to do where a table of Spark's catalog brings no options to a read."""
    return f"{_FROM_CATALOG}: CREATE TEMPORARY VIEW … USING {source} OPTIONS ({options}), or … FROM … WITH ({options})"


def into_sql(options: str) -> str:
    """The same of a write."""
    return f"{_FROM_CATALOG}: INSERT INTO … WITH ({options}) …; a table is not made and written in one statement"


T = TypeVar("T")


def made(declared: type[T], given: Mapping[str, Any], where: str) -> T:
    """The dataclass that declares options, with what a user gave. Raises ConfigError: see :meth:`Options.read`."""
    return declared(**Options(where, declared).read(given).fields())


class Options:
    """The options of ``where``, which every error names: those of a dataclass, and ``more``."""

    def __init__(
        self,
        where: str,
        declared: type[Any] | None,
        more: Iterable[Option] = (),
        ignored: Collection[str] = (),
        foreign: Mapping[str, str] | None = None,
        spelt: Callable[[str], str] = str,
    ) -> None:
        """``ignored``: names that are passed over. ``foreign``: of another system, each with what does it here."""
        self.all = (*more, *(options_of(declared, spelt) if declared is not None else ()))
        self._where = where
        self._ignored = {name.lower() for name in ignored}
        self._foreign = {name.lower(): instead for name, instead in (foreign or {}).items()}
        self._by_name = {option.name.lower(): option for option in self.all}
        self._by_name |= {_snake(option.name): option for option in self.all}

    def _is_told_twice(self, key: str, given: Mapping[str, Any]) -> bool:
        told = key.lower().removeprefix(_TABLE_OPTION)
        return told != key.lower() and told in {name.lower() for name in given}

    def read(self, given: Mapping[str, Any]) -> Given:
        """The options as a user gave them. None, and an empty text where one value is wanted, are as good as nothing.

        Raises ConfigError: an unknown name, a missing option, or a value of another kind; and what would be right.
        """
        values: dict[str, Any] = {}
        for key, value in given.items():
            option = self._by_name.get(_snake(key)) or self._by_name.get(key.lower())
            if option is None:
                if key.lower() in self._ignored or self._is_told_twice(key, given):
                    continue
                raise ConfigError(f"{self._where}: no option {key!r}{self._instead(key)}")
            if value is not None and (value != "" or option.several or option.is_required):
                values[option.name] = self._value(option, value)
        for option in self.all:
            if option.is_required and option.name not in values:
                raise ConfigError(f"{self._where}: {option.name} is missing: {option.meaning}")
        return Given(self.all, values)

    def _instead(self, key: str) -> str:
        """What may be meant: a list of all options only where nothing is near."""
        if key.lower() in self._foreign:
            return f": give {self._foreign[key.lower()]}"
        names = [each.name for each in self.all]
        return hint(key, names) or f"; there are {', '.join(names)}"

    def _value(self, option: Option, value: Any) -> Any:
        if not option.several:
            if value == "":
                raise ConfigError(f"{self._where}: {option.name} is empty: name {option.meaning}")
            return self._one(option, str(value), value)
        names = value.split(",") if isinstance(value, str) else value
        found = tuple(self._one(option, name, value) for each in names if (name := str(each).strip()))
        if not found and (option.is_required or isinstance(value, str)):
            remedy = "" if option.is_required else ", or leave it out"
            raise ConfigError(f"{self._where}: {option.name} is empty: name {option.meaning}{remedy}")
        return found

    def _one(self, option: Option, text: str, value: Any) -> Any:
        try:
            return option.kind.parse(text.strip())
        except ValueError:
            meant = hint(text, option.kind.words)
            expected = option.kind.expected
            raise ConfigError(f"{self._where}: {option.name} is {value!r:.80}{meant}: expected {expected}") from None


def _snake(name: str) -> str:
    """``likeThis`` and ``like-this`` as ``like_this``."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).replace("-", "_").lower()


def whole(low: int | None = None, high: int | None = None, expected: str = "") -> Kind:
    """A whole number of ``low..high``, both included."""
    limits = f" of {low:,}..{high:,}" if low is not None and high is not None else ""
    return _bounded(int, low, high, expected or f"a whole number{limits}")


def size(low: int, high: int) -> Kind:
    """A number of bytes."""
    return _bounded(parse_bytes, low, high, f"a whole number of {low:,}..{high:,}, also with k, m or g behind it")


def _bounded(parse: Callable[[str], int], low: int | None, high: int | None, expected: str) -> Kind:
    def bounded(text: str) -> int:
        number = parse(text)
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(number)
        return number

    return Kind(expected, bounded, int)


def instant(low_ms: int, high_ms: int) -> Kind:
    """A time, as milliseconds since 1970."""
    years = [datetime.fromtimestamp(each / 1000, UTC).year for each in (low_ms, high_ms)]
    return _bounded(parse_time_ms, low_ms, high_ms, f"{TIME_EXPECTED}, from {years[0]} to {years[1]}")


def choice(*words: str) -> Kind:
    """One of these words."""

    def chosen(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return Kind(f"one of {', '.join(words)}", chosen, words=words)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them or of an ISO 8601 time, UTC where it names no zone.

    Of a time between two milliseconds the later one: messages are stored at whole ones, so it parts them as the time.
    Raises ValueError: neither, or digits that may be something else: eight a date, ten a time in seconds.
    """
    if text.lstrip("-").isdecimal():
        if len(text) == 8 and text.isdecimal():
            raise ValueError(
                f"{text} may be a date or milliseconds since 1970: write {text[:4]}-{text[4:6]}-{text[6:]}"
            )
        if len(text) == 10 and text.isdecimal():
            raise ValueError(f"{text} may be seconds or milliseconds since 1970: write {text}000")
        return int(text)
    time = datetime.fromisoformat(text)
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return -(-since // timedelta(milliseconds=1))


def parse_bytes(text: str) -> int:
    """A number of bytes, also as ``64k``, ``16m``, ``1g``. Raises ValueError: neither."""
    found = re.fullmatch(r"(-?[0-9]{1,19})\s*([kmg]?)i?b?", text.lower())
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _SIZES.get(found[2], 1)


TEXT: Final = Kind("a text", str)
FLAG: Final = Kind("true or false", _flag, bool, ("true", "false"))
WHOLE: Final = whole()
NUMBER: Final = Kind("a number", _number, float)
TIME: Final = Kind(TIME_EXPECTED, parse_time_ms, int)
_KINDS: Final[Mapping[type[Any], Kind]] = {str: TEXT, bool: FLAG, int: WHOLE, float: NUMBER}
