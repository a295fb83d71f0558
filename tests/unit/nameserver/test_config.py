"""``namesrv.conf``."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.nameserver import NameserverConfig, load_nameserver_config
from penstock.proto.errors import ConfigError


def load(tmp_path: Path, text: str) -> NameserverConfig:
    path = tmp_path / "namesrv.conf"
    path.write_text(text)
    return load_nameserver_config(path)


def test_an_empty_file_gives_rocketmqs_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert (config.listen_port, config.bind_address) == (9876, "0.0.0.0")
    assert config.kv_config_path == Path.home() / "namesrv" / "kvConfig.json"


def test_its_keys_are_read_and_rocketmqs_others_are_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load(tmp_path, "listenPort=1\nbindAddress = ::1\nkvConfigPath=/kv.json\nproductEnvName = true\n")
    assert config == NameserverConfig(listen_port=1, bind_address="::1", kv_config_path=Path("/kv.json"))
    assert "key=productEnvName" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listenPort = -1", ":1: listenPort must be 0..65535 (0: any free port), not '-1'"),
        ("#\nbindAddress = everywhere", ":2: bindAddress must be an IPv4 or IPv6 address, not 'everywhere'"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value) == f"{tmp_path}/namesrv.conf{message}"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["listenPort", "bindAddress", "kvConfigPath"]), st.text(max_size=15)))
def test_any_values_load_or_raise_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.conf"
    path.write_bytes("\n".join(f"{k}={v}" for k, v in values.items()).encode(errors="surrogatepass"))
    try:
        load_nameserver_config(path)
    except ConfigError as error:
        assert "fuzz.conf:" in str(error)
