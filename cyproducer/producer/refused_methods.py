"""Refuses methods of other Kafka clients by name, with what to use instead.

The names are attributes of the class that raise UnsupportedMethodError when they are read. It is an AttributeError,
because `hasattr()` and `getattr()` with a default, by which libraries find out what a producer can do, understand no
other error. A method `__getattr__` would do the same, but CPython calls every method of such a class more slowly.
"""

from typing import Any, NoReturn

from cyproducer.config.hints import METHODS
from cyproducer.errors import UnsupportedMethodError

#: What to use instead of each method, by name.
ADVICE = {hint.name: hint.advice for hint in METHODS}
LENGTH = "len() of a producer is not supported; metrics() has the number of batches without an outcome, batches-pending"


class _Refused:
    """An attribute that cannot be read."""

    def __init__(self, name: str, advice: str) -> None:
        self.message = f"KafkaProducer has no {name!r}: {advice}"

    def __get__(self, instance: Any, owner: Any) -> NoReturn:
        raise UnsupportedMethodError(self.message)


def refuse_methods(producer_class: type) -> None:
    """Add the refused names to the class. They are found only where neither it nor a subclass has the name."""
    for name, advice in ADVICE.items():
        setattr(producer_class, name, _Refused(name, advice))
