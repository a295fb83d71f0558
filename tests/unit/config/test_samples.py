"""The sample configurations load without a complaint."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker.config import load_broker_config
from penstock.nameserver.config import load_nameserver_config

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"


@pytest.mark.parametrize("name", ["broker-master.conf", "broker-slave.conf"])
def test_a_sample_broker_configuration_loads_without_warnings(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load_broker_config(SAMPLES / name)
    assert config.identity.broker_name == "broker-a"
    assert not caplog.records


def test_the_sample_nameserver_configuration_loads() -> None:
    assert load_nameserver_config(SAMPLES / "namesrv.conf").listen_port == 9876
