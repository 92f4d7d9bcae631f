"""Defines the fixture for the tests of the settings of TLS and SASL."""

from pathlib import Path

import pytest
from security_samples import Samples

from cyproducer.config import security
from cyproducer.config.security_kinds import MECHANISMS


@pytest.fixture(autouse=True)
def everything_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the settings be checked that the sender does not support yet; test_config_supported.py has the refusals."""
    monkeypatch.setattr(security, "SUPPORTED_MECHANISMS", MECHANISMS)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)
