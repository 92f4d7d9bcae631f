"""Declares the types of methods.pyx."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cyproducer.producer.transactions.facts import Completion
from cyproducer.producer.transactions.transaction_manager import TransactionManager

_T = TypeVar("_T")
_Method = Callable[..., Coroutine[Any, Any, Completion | None]]

def run(producer: Any, method: _Method, timeout: float | None, *args: Any) -> Any: ...
def run_async(producer: Any, method: _Method, timeout: float | None, *args: Any) -> Coroutine[Any, Any, None]: ...
async def send_counted(producer: Any, send: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T: ...
def manager_of(producer: Any, name: str) -> TransactionManager: ...
