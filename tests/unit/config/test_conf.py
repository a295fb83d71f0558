"""Configuration files: what is wrong with them is said with file, line, key and value."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.proto.errors import ConfigError
from penstock.runtime.conf import FILE_BYTES_MAX, Relied, bind, effective, key, load_properties, log_effective, require


class Colour(enum.Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    interval_ms: int = key("flushInterval", default=500)
    colour: Colour = key("colour", default=Colour.RED)  # noqa: RUF009
    token: str = key("token", default="", secret=True)
    limit: int | None = key("limit", default=None)

    def __post_init__(self) -> None:
        require(1 <= self.interval_ms <= 1000, "flushInterval must be 1..1000", self.interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    names: tuple[str, ...] = key("names", default=())
    root: Path = key("root", default_factory=lambda: Path("/data"))  # noqa: RUF009
    ratio: float = key("ratio", default=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    flush: Flush = field(default_factory=Flush)
    where: Where = field(default_factory=Where)
    enabled: bool = key("enabled", default=False)
    ignored: tuple[str, ...] = key("ignoreUnsupported", default=())


RELIED_ON = {
    "guarded": Relied("false", "nobody guards it: guard it yourself"),
    "permission": Relied("6|", "it always has both: leave it out"),
}


def whole(tmp_path: Path, text: str | bytes) -> Whole:
    path = tmp_path / "some.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return bind(Whole, load_properties(path), known_unsupported={"deleteWhen"}, relied_on=RELIED_ON, path=path)


def refused(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        whole(tmp_path, text)
    assert str(tmp_path / "some.conf") in str(caught.value)
    return str(caught.value).replace(str(tmp_path / "some.conf"), "FILE")


def test_comments_blank_lines_and_both_separators_are_read(tmp_path: Path) -> None:
    text = "\ufeff# a comment\n! another\r\n\r\n  flushInterval =  7  \ncolour:BLUE\n"
    text += "names = a;; b ;\nenabled=TRUE\nroot=~\n"
    config = whole(tmp_path, text)
    assert config.flush == Flush(interval_ms=7, colour=Colour.BLUE)
    assert config.where == Where(names=("a", "b"), root=Path.home())
    assert config.enabled


def test_a_value_may_hold_separators_and_hashes(tmp_path: Path) -> None:
    assert whole(tmp_path, "names = http://x:1/?a=b#c").where.names == ("http://x:1/?a=b#c",)


def test_what_is_not_set_keeps_its_default(tmp_path: Path) -> None:
    assert whole(tmp_path, "") == Whole()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enabled = yes", "FILE:1: enabled must be true or false, not 'yes'"),
        ("flushInterval = 1k", "FILE:1: flushInterval must be a whole number, not '1k'"),
        ("flushInterval = 1_0", "FILE:1: flushInterval must be a whole number, not '1_0'"),
        ("flushInterval = ١", "FILE:1: flushInterval must be a whole number, not '١'"),
        ("flushInterval =", "FILE:1: flushInterval must be a whole number, not ''"),
        ("limit = 9999999999999999999", "FILE:1: limit must be a whole number of 64 bits, not '9999999999999999999'"),
        ("#\n\nflushInterval = 0", "FILE:3: flushInterval must be 1..1000, not '0'"),
        ("ratio = nan", "FILE:1: ratio must be a decimal number, not 'nan'"),
        ("colour = GREEN", "FILE:1: colour must be one of RED, BLUE, not 'GREEN'"),
        ("root =", "FILE:1: root must be a path, not ''"),
        (
            "root = ~nobody-of-that-name/x",
            "FILE:1: root must be a path whose home directory exists, not '~nobody-of-that-name/x'",
        ),
        ("enabled = true\nenabled = false", "FILE:2: key 'enabled' stands in line 1 already: keep one of them"),
        ("= 1", "FILE:1: no key in front of '=': write key = value"),
        ("enabled", "FILE:1: 'enabled' has no value: write key = value"),
        ("enabled true = 1", "FILE:1: key 'enabled true' has a space in it: write one key = value per line"),
        ("names = a;\\\n b", "FILE:1: 'names' goes on in the next line: write it on one line"),
        (b"enabled = true\n\xff\xfe", "FILE:2: not UTF-8 text: byte 0xff"),
        (b"\x7fELF\x02\x01\x00", "FILE:1: control character 0x7f: not a text file"),
        (b"#\na\x00b = 1", "FILE:2: control character 0x00: not a text file"),
    ],
)
def test_each_mistake_has_its_own_message(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert refused(tmp_path, text) == message


def test_a_file_that_is_no_configuration_is_refused_unread(tmp_path: Path) -> None:
    assert "longer than" in refused(tmp_path, b"#" * (FILE_BYTES_MAX + 1))


@pytest.mark.parametrize("name", ["absent.conf", ".", "with\0zero"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read|not a file name"):
        load_properties(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nflushIntervall = 1", "key=flushIntervall file=FILE line=2 reason=unknown: did you mean 'flushInterval'?"),
        ("FLUSHINTERVAL = 1", "key=FLUSHINTERVAL file=FILE line=1 reason=unknown: did you mean 'flushInterval'?"),
        ("guardet = true", "key=guardet file=FILE line=1 reason=unknown: did you mean 'guarded'?"),
        ("qqqq = 1", "key=qqqq file=FILE line=1 reason=unknown: no key has a name like that"),
    ],
)
def test_an_unknown_key_is_a_warning_with_the_nearest_name_or_an_error_where_it_was_typed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    assert whole(tmp_path, text) == Whole()
    (message,) = caplog.messages
    assert message.replace(str(tmp_path / "some.conf"), "FILE") == f"key ignored {told}"
    path = tmp_path / "some.conf"
    with pytest.raises(ConfigError, match="unknown key"):
        bind(Whole, load_properties(path), strict=True, path=path)


def test_keys_that_are_relied_on_and_do_nothing_end_the_start_together(tmp_path: Path) -> None:
    assert refused(tmp_path, "enabled = true\nguarded = true\npermission = 4") == (
        "FILE:2: guarded = 'true': nobody guards it: guard it yourself; "
        "FILE:3: permission = '4': it always has both: leave it out; "
        "to start without that: --ignore-unsupported guarded,permission (or ignoreUnsupported = guarded;permission)"
    )


@pytest.mark.parametrize("text", ["guarded = FALSE", "permission = 6", "permission ="])
def test_a_value_that_asks_for_what_is_done_anyway_is_nothing_to_tell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    assert whole(tmp_path, text) == Whole()
    assert not caplog.messages


def test_what_is_relied_on_may_be_given_up_by_name_in_the_file_or_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = whole(tmp_path, "guarded = true\npermission = 4\nignoreUnsupported = guarded; permission")
    assert found.ignored == ("guarded", "permission")
    assert [message.partition(" file=")[0] for message in caplog.messages] == [
        "key ignored, as was asked for key=guarded",
        "key ignored, as was asked for key=permission",
    ]
    path = tmp_path / "some.conf"
    path.write_text("guarded = true")
    bind(Whole, load_properties(path), relied_on=RELIED_ON, accepted=["guarded"], path=path)
    with pytest.raises(ConfigError, match=r"'guardet' cannot be ignored: .* \(did you mean 'guarded'\?\)"):
        bind(Whole, load_properties(path), relied_on=RELIED_ON, accepted=["guardet"], path=path)


def test_a_licence_in_the_comment_of_another_language_is_a_comment(tmp_path: Path) -> None:
    assert whole(tmp_path, "<!--\n  a = licence,\n  of lines\n  -->\nflushInterval = 7").flush.interval_ms == 7


def test_a_key_that_only_rocketmq_has_is_a_warning_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert whole(tmp_path, "deleteWhen = secret-value") == Whole()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "key=deleteWhen" in record.getMessage()
    assert "line=1" in record.getMessage()
    assert "secret-value" not in record.getMessage()


def test_a_missing_key_without_a_default_is_named(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Needy:
        name: str = key("name")

    with pytest.raises(ConfigError, match=r"some\.conf: name is missing"):
        bind(Needy, {}, path=tmp_path / "some.conf")


def test_secrets_appear_neither_in_repr_nor_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = whole(tmp_path, "token = hunter2\nnames=a;b\nenabled=true")
    with caplog.at_level(logging.INFO):
        log_effective(config, "some.conf")
    assert "hunter2" not in repr(config) + caplog.text
    assert effective(config) == {
        "flushInterval": "500",
        "colour": "RED",
        "token": "***",
        "limit": "None",
        "names": "a;b",
        "root": "/data",
        "ratio": "0.5",
        "enabled": "true",
        "ignoreUnsupported": "",
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.binary(max_size=200)
    | st.text(alphabet="=:#!\\ \nabflushIntervalcolourenabled019~;\r\t", max_size=120).map(str.encode)
)
def test_any_bytes_are_a_configuration_or_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    directory = tmp_path_factory.getbasetemp()
    try:
        whole(directory, text)
    except ConfigError as error:
        assert "some.conf" in str(error)


KEYS = st.sampled_from(["flushInterval", "colour", "token", "limit", "names", "root", "ratio", "enabled", "deleteWhen"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.dictionaries(KEYS, st.text(max_size=40)))
def test_any_value_is_taken_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    text = "\n".join(f"{name} = {value}" for name, value in values.items())
    directory = tmp_path_factory.getbasetemp()
    try:
        whole(directory, text.encode(errors="surrogatepass"))
    except ConfigError as error:
        assert "some.conf:" in str(error)
