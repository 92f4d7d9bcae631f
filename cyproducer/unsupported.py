"""Stands in for the producer where it cannot be built: importing works, using says why not."""

import platform
import sys
from typing import Any, NoReturn

from cyproducer.errors import UnsupportedPlatformError


def _refuse() -> NoReturn:
    raise UnsupportedPlatformError(
        "cyproducer needs Linux 5.4 or later on x86-64 or aarch64, "
        f"this is {sys.platform} on {platform.machine()}"
    )


class KafkaProducer:
    """Constructing one raises UnsupportedPlatformError."""

    def __init__(self, **configs: Any) -> None:
        _refuse()


def wait(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises UnsupportedPlatformError."""
    _refuse()


def as_completed(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises UnsupportedPlatformError."""
    _refuse()
