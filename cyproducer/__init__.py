"""Provides the public interface: one Kafka producer for every Python process on a host."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cyproducer import errors
from cyproducer.types import ArrayMetadata, ProducerRecord, TopicPartition
from cyproducer.version import VERSION

if TYPE_CHECKING:
    from cyproducer.producer.channel.waits import as_completed, wait
    from cyproducer.producer.core.native import RecordMetadata
    from cyproducer.producer.producer import KafkaProducer

__all__ = [
    "ArrayMetadata",
    "KafkaProducer",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "as_completed",
    "errors",
    "wait",
]

__version__ = VERSION

# Raised here, since such a Python turns the GIL on for the whole process when it loads a module that needs it.
if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "cyproducer needs the GIL, and this Python is a free-threaded build, which is not supported: use the build "
        f"of Python {sys.version_info.major}.{sys.version_info.minor} that has the GIL"
    )

# Imported at their first use, because the sender and most commands do not need the producer package.
_LATER = {
    "KafkaProducer": "producer.producer",
    "RecordMetadata": "producer.core.native",
    "as_completed": "producer.channel.waits",
    "wait": "producer.channel.waits",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _is_sub_interpreter():
        # Raise before a native module is loaded: only the first interpreter that loads one can use it.
        raise errors.UnsupportedPlatformError(
            "cyproducer works only in the main interpreter of a process, and this is a sub-interpreter "
            "(under mod_wsgi, set WSGIApplicationGroup %{GLOBAL})"
        )
    module = _LATER[name] if sys.platform == "linux" else "unsupported"
    try:
        value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(__name__):
            raise
        raise ImportError(
            f"{__path__[0]} has no compiled modules ({error.name}). If this is a copy of the source, and the package "
            "is installed, run Python in another directory, or with the option -P. Or build the modules in the copy "
            "with: pip install -e ."
        ) from error
    globals()[name] = value
    return value


def _is_sub_interpreter() -> bool:
    for module in ("_interpreters", "_xxsubinterpreters"):  # the names in Python 3.13 and in earlier versions
        try:
            interpreters = importlib.import_module(module)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
