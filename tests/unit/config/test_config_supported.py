"""Tests that settings which the sender does not support yet are refused, and say what to use instead."""

import importlib
from pathlib import Path

import pytest

from cyproducer.config import security
from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError

SASL = {"bootstrap_servers": "h:9092", "security_protocol": "SASL_SSL"}


@pytest.fixture(autouse=True)
def as_it_is(everything_supported: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    importlib.reload(security)


def test_kerberos() -> None:
    with pytest.raises(KafkaConfigurationError, match="sasl_mechanism='GSSAPI' is not supported yet; use PLAIN or"):
        Settings.parse(**SASL, sasl_mechanism="GSSAPI")


def test_every_other_mechanism(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x.y.z")
    for mechanism in security.SUPPORTED_MECHANISMS:
        given = {"sasl_plain_username": "u", "sasl_plain_password": "p"}
        if mechanism == "OAUTHBEARER":
            given = {"sasl_oauthbearer_token_endpoint_url": token.as_uri()}
        assert Settings.parse(**SASL, sasl_mechanism=mechanism, **given).sasl_mechanism == mechanism
