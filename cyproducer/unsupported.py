"""Replaces the producer on platforms where it cannot be built: the import works, and each use raises an error."""

import platform
import sys
from typing import Any, NoReturn

from cyproducer.errors import UnsupportedPlatformError


def _refuse() -> NoReturn:
    raise UnsupportedPlatformError(
        f"cyproducer needs Linux 5.4 or later on x86-64 or aarch64; this is {sys.platform} on {platform.machine()}"
    )


class KafkaProducer:
    """A class whose constructor raises UnsupportedPlatformError."""

    def __init__(self, **configs: Any) -> None:
        _refuse()


def wait(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedPlatformError."""
    _refuse()


def as_completed(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedPlatformError."""
    _refuse()
