"""Configuration files as RocketMQ's operators have them: ``key = value``, bound to dataclasses by key name.

A section is a frozen dataclass whose fields name the key they read::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class FlushConfig:
        interval_ms: int = key("flushIntervalCommitLog", default=500, doc="longest time bytes stay only in memory")

        def __post_init__(self) -> None:
            require(1 <= self.interval_ms <= 60_000, "flushIntervalCommitLog must be 1..60000", self.interval_ms)

A configuration is a dataclass of sections, and :func:`bind` fills all of them from one file. Everything that is
wrong with a file is a :class:`ConfigError` that names file, line, key and value and says what is allowed.
RocketMQ ignores unknown keys without a word, so a misspelt ``flushDiskTyp`` silently costs durability; here each is a
warning with the name that was probably meant. Keys of RocketMQ that its users rely on, and that do nothing here, end
the start: :class:`Relied`.

Syntax: one setting per line, ``=`` or ``:`` between key and value, ``#`` or ``!`` in front of a comment, UTF-8;
``<!-- … -->`` is a comment too, as some of RocketMQ's own samples begin with one.
Of Java's property files, continuation lines and backslash escapes are left out: a value is what stands there.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import ipaddress
import logging
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.proto.errors import ConfigError

from .nearest import hint, nearest

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE_BYTES_MAX = 1024 * 1024
SHOWN_CHARACTERS_MAX = 80

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DIGITS_MAX = 20
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9.]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_types_of: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""The types of a dataclass's fields: reading them from their texts takes longer than binding a file."""


IGNORED_KEY = "ignoreUnsupported"
"""The key of the list that a file itself gives, of keys that need not have an effect."""


class Relied(NamedTuple):
    """A key of RocketMQ whose users rely on what it does, and that does nothing here.

    ``same``: a regular expression of the values with which nothing is missing. ``why``: what is missing else, and what
    to do.
    """

    same: str
    why: str


class Setting(NamedTuple):
    """One line of a file: its value, and its number from 1."""

    value: str
    line: int


def key(
    name: str,
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    doc: str = "",
    differs: str = "",
    secret: bool = False,
    within: tuple[int, int | None] | None = None,
    unit: str = "",
) -> Any:
    """A dataclass field that is read from the key ``name``. A key without a default must be given.

    ``doc`` says what it means, ``differs`` what RocketMQ does otherwise; both stand in the reference of keys.
    ``within``: least and greatest value, in that ``unit``; :func:`check_ranges` refuses others.
    A secret's value appears neither in ``repr`` nor in the log nor in an error.
    """
    metadata = {"key": name, "doc": doc, "differs": differs, "secret": secret, "within": within, "unit": unit}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def require(condition: bool, message: str, value: object) -> None:
    """Raise :class:`ConfigError` unless ``condition``.

    ``message`` begins with the key it speaks of, ``"listenPort must be 0..65535"``; :func:`bind` finds the
    key's line by that and puts it in front.
    """
    if not condition:
        raise ConfigError(f"{message}, not {_shown(str(value))}")


def require_ip(text: str, key_name: str) -> None:
    """Raise :class:`ConfigError` unless the text is an address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        require(False, f"{key_name} must be an IPv4 or IPv6 address", text)


def check_listening(address: str, port: int) -> None:
    """Refuse a ``bindAddress`` or ``listenPort`` that no server could have. Raises ConfigError."""
    require(0 <= port <= 65535, "listenPort must be 0..65535 (0: any free port)", port)
    require_ip(address, "bindAddress")


def check_ranges(section: Any) -> None:
    """Refuse values that are not ``within`` what their keys allow; for a section's ``__post_init__``.

    Raises:
        ConfigError: as :func:`require`.
    """
    for field in dataclasses.fields(section):
        if field.metadata.get("within") is not None:
            value, (low, high) = getattr(section, field.name), field.metadata["within"]
            allowed = f"at least {low}" if high is None else f"{low}..{high}"
            unit = f" {field.metadata['unit']}" if field.metadata["unit"] else ""
            is_within = low <= value and (high is None or value <= high)
            require(is_within, f"{field.metadata['key']} must be {allowed}{unit}", value)


class Section:
    """A dataclass of keys, which refuses values that are not ``within`` what they allow: :func:`check_ranges`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_ranges(self)


def load_properties(path: str | Path) -> dict[str, Setting]:
    """The settings of the file at ``path``, in the order in which they stand there.

    Raises:
        ConfigError: no such file or not readable, not text, a line without a separator, an empty or repeated key.
    """
    settings: dict[str, Setting] = {}
    for number, line, name, value in lines_of(_read_text(path)):
        _check_line(line, name, value, f"{path}:{number}")
        if name in settings:
            first = settings[name].line
            raise ConfigError(f"{path}:{number}: key {_shown(name)} stands in line {first} already: keep one of them")
        settings[name] = Setting(value, number)
    return settings


def lines_of(text: str) -> Iterator[tuple[int, str, str, str]]:
    """(number, line, key, value) of each line that is neither blank nor a comment; without a separator all is key."""
    is_comment = False
    for number, line in enumerate(map(str.strip, text.split("\n")), start=1):
        is_comment = is_comment or line.startswith("<!--")
        if line and line[0] not in "#!" and not is_comment:
            separator = re.search("[=:]", line)
            at = separator.start() if separator else len(line)
            yield number, line, line[:at].strip(), line[at + 1 :].strip()
        is_comment = is_comment and not line.endswith("-->")


def read_limited(path: str | Path) -> bytes:
    """The content of a file that people write. Raises ConfigError: it cannot be read, or is too long to be one."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a path with a zero byte in it
        raise ConfigError(f"{str(path)!r}: not a file name: {error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: longer than {FILE_BYTES_MAX} bytes: not a configuration file")
    return content


def _read_text(path: str | Path) -> str:
    content = read_limited(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text: byte 0x{content[error.start]:02x}") from error
    text = text.replace("\r\n", "\n")
    for number, checked in enumerate(text.split("\n"), start=1):
        found = _CONTROL.search(checked)
        if found:
            raise ConfigError(f"{path}:{number}: control character 0x{ord(found[0]):02x}: not a text file")
    return text


def _check_line(line: str, name: str, value: str, place: str) -> None:
    if name == line:
        raise ConfigError(f"{place}: {_shown(line)} has no value: write key = value")
    if not name:
        raise ConfigError(f"{place}: no key in front of {line[0]!r}: write key = value")
    if re.search(r"\s", name):
        raise ConfigError(f"{place}: key {_shown(name)} has a space in it: write one key = value per line")
    if value.endswith("\\"):
        raise ConfigError(f"{place}: {_shown(name)} goes on in the next line: write it on one line")


def bind(
    cls: type[T],
    settings: Mapping[str, Setting],
    *,
    known_unsupported: Collection[str] = (),
    relied_on: Mapping[str, Relied] | None = None,
    accepted: Collection[str] = (),
    strict: bool = False,
    path: str | Path,
) -> T:
    """A ``cls`` filled from ``settings``; what is not set keeps its default.

    A key that ``cls`` does not read is a warning: one in ``known_unsupported`` (RocketMQ has it, we do not), and any
    other, with the nearest key of all these. One in ``relied_on`` whose value asks for what is missing ends the start,
    unless ``accepted`` or the file's own :data:`IGNORED_KEY` names it. So does an unknown one of TLS, which would leave
    a port open; with ``strict`` any unknown one.

    Raises:
        ConfigError: with file and line: a key that is relied on, missing key, value of the wrong form or out of its
            range.
    """
    known = {name for name, _ in keyed_fields(cls)}
    relied_on = relied_on or {}
    ignored = {*accepted, *_parse(tuple[str, ...], settings[IGNORED_KEY].value if IGNORED_KEY in settings else "")}
    for name in sorted(ignored - relied_on.keys()):
        where = (
            f":{settings[IGNORED_KEY].line}: {IGNORED_KEY}" if IGNORED_KEY in settings and name not in accepted else ""
        )
        raise ConfigError(
            f"{path}{where}: {_shown(name)} cannot be ignored: no start is refused for it{hint(name, relied_on)}"
        )
    missed = []
    for name, (value, number) in settings.items():
        if name in known:
            continue
        relied = relied_on.get(name)
        if relied is not None and not re.fullmatch(relied.same, value, re.IGNORECASE):
            if name not in ignored:
                missed.append((name, f"{path}:{number}: {name} = {_shown(value)}: {relied.why}"))
            else:
                log.warning("key ignored, as was asked for key=%s file=%s line=%d: %s", name, path, number, relied.why)
        elif name in known_unsupported:
            log.warning("key ignored key=%s file=%s line=%d reason=not supported by Penstock", name, path, number)
        elif relied is None:
            near = nearest(name, {*known, *relied_on, *known_unsupported})
            advice = f"did you mean {near!r}?" if near else "no key has a name like that"
            if strict or name.startswith("tls."):
                raise ConfigError(f"{path}:{number}: unknown key {_shown(name)}: {advice}")
            log.warning("key ignored key=%s file=%s line=%d reason=unknown: %s", name, path, number, advice)
    if missed:
        names = ",".join(name for name, _ in missed)
        remedy = f"to start without that: --ignore-unsupported {names} (or {IGNORED_KEY} = {names.replace(',', ';')})"
        raise ConfigError("; ".join([*(told for _, told in missed), remedy]))
    try:
        return _build(cls, settings, path)
    except ConfigError as error:
        line = next((f":{settings[word].line}" for word in _WORD.findall(error.message) if word in settings), "")
        if error.message.startswith(f"{path}:"):
            raise
        raise ConfigError(f"{path}{line}: {error.message}", **error.details) from None


def keyed_fields(cls: type) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every key that ``cls`` and its sections read, with the field that holds it, in the order of definition."""
    hints = _types_of(cls)
    for field in dataclasses.fields(cls):
        if "key" in field.metadata:
            yield field.metadata["key"], field
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from keyed_fields(hints[field.name])


def effective(config: Any) -> dict[str, str]:
    """Every key of the bound ``config`` with its value as text; secrets as ``***``."""
    shown: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "key" in field.metadata:
            shown[field.metadata["key"]] = "***" if field.metadata["secret"] else _as_text(value)
        elif dataclasses.is_dataclass(value):
            shown.update(effective(value))
    return shown


def log_effective(config: Any, path: str | Path) -> None:
    """Log the whole effective configuration in one line; for the start of a process."""
    pairs = " ".join(f"{name}={value}" for name, value in effective(config).items())
    log.info("configuration read file=%s %s", path, pairs)


def _build(cls: type[T], settings: Mapping[str, Setting], path: str | Path) -> T:
    hints = _types_of(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # bind takes dataclasses only
        if "key" not in field.metadata:
            if dataclasses.is_dataclass(hints[field.name]):
                values[field.name] = _build(hints[field.name], settings, path)
            continue
        name = field.metadata["key"]
        if name in settings:
            setting = settings[name]
            try:
                values[field.name] = _parse(hints[field.name], setting.value)
            except ValueError as error:
                seen = "the value given" if field.metadata["secret"] else _shown(setting.value)
                raise ConfigError(f"{path}:{setting.line}: {name} must be {error}, not {seen}") from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}: {name} is missing: add a line {name} = ...")
    return cls(**values)


def _parse(kind: Any, text: str) -> Any:
    """``text`` as a ``kind``; ValueError says what is allowed."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(choice for choice in typing.get_args(kind) if choice is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(";") if part.strip())
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.lower() == "true"
    if kind is int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("a whole number")
        if len(text) > _DIGITS_MAX or not -(1 << 63) <= int(text) < 1 << 63:
            raise ValueError("a whole number of 64 bits")
        return int(text)
    if kind is float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError("a decimal number")
        return float(text)
    if kind is Path:
        if not text:
            raise ValueError("a path")
        return _expanded(text)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if text not in kind.__members__:
            raise ValueError("one of " + ", ".join(kind.__members__))
        return kind[text]
    raise TypeError(f"a configuration field of type {kind} cannot be read from text")


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path whose home directory exists") from None


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 3] + "...")
