"""One Kafka producer for every Python process on a host."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cyproducer import errors
from cyproducer.types import ArrayMetadata, TopicPartition

if TYPE_CHECKING:
    from cyproducer.producer.producer import KafkaProducer
    from cyproducer.producer.record_metadata import RecordMetadata
    from cyproducer.producer.waiters import as_completed, wait

__all__ = [
    "ArrayMetadata", "KafkaProducer", "RecordMetadata", "TopicPartition", "as_completed", "errors", "wait",
]

__version__ = "0.1.0"

# Imported when they are first asked for: the sender and the command line do without the producer room.
_LATER = {
    "KafkaProducer": "producer.producer", "RecordMetadata": "producer.record_metadata",
    "as_completed": "producer.waiters", "wait": "producer.waiters",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _is_sub_interpreter():
        # Before a native module is loaded: whichever interpreter loads one is the only one that can.
        raise errors.UnsupportedPlatformError(
            "cyproducer works in the main interpreter of a process only, this is a sub-interpreter "
            "(under mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
        )
    room = _LATER[name] if sys.platform == "linux" else "unsupported"
    value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def _is_sub_interpreter() -> bool:
    for module in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13, and before
        try:
            interpreters = importlib.import_module(module)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
