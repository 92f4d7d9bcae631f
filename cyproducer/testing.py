"""Describes KafkaProducer to `unittest.mock`, for the tests of applications.

mock reads the arguments of functions that are written in Python only, and the producer's methods are native.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from cyproducer import KafkaProducer

__all__ = ["KafkaProducerSpec"]


class _Spec(type):
    def __dir__(cls) -> list[str]:
        """Leave out the refused methods of other clients, so that a mock does not have them."""
        return [name for name in super().__dir__() if hasattr(cls, name)]


class KafkaProducerSpec(KafkaProducer, metaclass=_Spec):
    """KafkaProducer for `autospec`: the same methods and arguments, as functions in Python. It makes no producers.

    `mock.create_autospec(KafkaProducerSpec, instance=True)` is a producer that refuses wrong arguments, and
    `mock.patch.object(KafkaProducer, "send", autospec=KafkaProducerSpec.send)` replaces one method.
    """

    def __init__(self, **configs: Any) -> None:
        raise TypeError("KafkaProducerSpec is a specification for unittest.mock; make a KafkaProducer instead")


def _in_python(method: Callable[..., Any]) -> Any:
    """Return a function in Python with the name, the docstring and the arguments of the method."""

    @functools.wraps(method)
    def function(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"KafkaProducerSpec.{method.__name__} is a specification for unittest.mock")

    @functools.wraps(method)
    async def coroutine_function(*args: Any, **kwargs: Any) -> None:
        function()

    # mock replaces a coroutine function with an object that can be awaited.
    is_async = method.__name__.endswith("_async") or method.__name__ == "send_and_wait"
    made: Any = coroutine_function if is_async else function
    made.__signature__ = inspect.signature(method)
    return made


for _name, _method in list(vars(KafkaProducer).items()):
    if not _name.startswith("_") and callable(_method):
        setattr(KafkaProducerSpec, _name, _in_python(_method))
