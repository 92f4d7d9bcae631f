"""Makes an object with the method token() of each form in which clients of Kafka accept a source of OAuth tokens."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CalledTokenProvider", "token_provider"]


@dataclass(frozen=True, slots=True, repr=False)
class CalledTokenProvider:
    """A provider whose token() calls a function.

    takes_configuration   the function has an argument, as confluent-kafka's `oauth_cb`: the text of
                          `sasl.oauthbearer.config`, which is empty here
    """

    function: Callable[..., Any]
    takes_configuration: bool

    def token(self) -> Any:
        """Return what the function returns: a token, or a tuple that begins with the token and its expiry."""
        return self.function("") if self.takes_configuration else self.function()


def token_provider(value: Any) -> Any:
    """Return an object with token() for such an object or for a function. Raise TypeError for anything else."""
    if isinstance(value, type):
        raise TypeError("this is a provider's class, not an instance")
    if callable(getattr(value, "token", None)):
        return value
    if not callable(value):
        raise TypeError("it has no method token() and cannot be called")
    return CalledTokenProvider(value, _needs_argument(value))


def _needs_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in positional and each.default is each.empty for each in parameters)
