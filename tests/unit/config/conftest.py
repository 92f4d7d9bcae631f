"""Defines the fixture for the tests of the settings of TLS and SASL."""

from pathlib import Path

import pytest
from security_samples import Samples


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)
