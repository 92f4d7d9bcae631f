"""Decides by its name whether a setting holds a secret, and wraps secrets in types whose repr() hides them.

Programs that record errors, such as Sentry, store the repr() of the local variables of each function in a traceback. So
a secret is wrapped as soon as it is read. The types are those of the values otherwise.
"""

import re
from collections.abc import Mapping
from typing import Any, SupportsIndex, overload

from cyproducer.config.table import OTHER_SPELLINGS, SECURITY_BY_NAME

__all__ = [
    "ConcealedBytes",
    "ConcealedText",
    "ConcealedValue",
    "conceal",
    "is_secret_name",
    "may_be_shown",
    "mentions_secret",
    "revealed",
    "secret_texts",
    "shown",
]

_WORDS = r"passw|secret|token|credential|jaas|private|api.?key"
_IN_TEXT = re.compile(_WORDS + "|-----BEGIN", re.IGNORECASE)
_IN_NAME = re.compile(_WORDS + r"|(?:^|[._])key(?:$|[._](?!serializer))", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether a setting of this name holds a secret, or may hold one if no setting has the name.

    The name may have any spelling that is accepted.
    """
    plain = name.replace(".", "_")
    setting = SECURITY_BY_NAME.get(OTHER_SPELLINGS.get(plain, plain))
    return setting.secret if setting is not None else _IN_NAME.search(name) is not None


def mentions_secret(text: str) -> bool:
    """Return whether a text names a secret, so that the rest of it may be one."""
    return _IN_TEXT.search(text) is not None


_URL = "sasl_oauthbearer_token_endpoint_url"


class ConcealedText(str):
    """A str that repr() does not show. Its parts are hidden too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"

    def __getitem__(self, key: SupportsIndex | slice) -> "ConcealedText":
        return ConcealedText(super().__getitem__(key))


class ConcealedBytes(bytes):
    """Bytes that repr() and str() do not show. Their parts are hidden too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"

    __str__ = __repr__

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> "ConcealedBytes": ...

    def __getitem__(self, key: SupportsIndex | slice) -> "int | ConcealedBytes":
        found = super().__getitem__(key)
        return found if isinstance(found, int) else ConcealedBytes(found)


class ConcealedValue:
    """A value of another type that was given for a secret, and that no setting accepts."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<hidden>"


def conceal(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names, in any spelling, with each value wrapped that may be a secret or has one."""
    found = {name: _concealed(name, value) for name, value in given.items()}
    secrets = secret_texts(found)
    for name, value in found.items():
        if type(value) is str and any(secret in value for secret in secrets):
            found[name] = ConcealedText(value)
    return found


def revealed(value: Any) -> Any:
    """Return a value without its wrapper."""
    if isinstance(value, ConcealedText):
        return str(value)
    return bytes(value) if isinstance(value, ConcealedBytes) else value


def secret_texts(given: Mapping[str, Any]) -> list[ConcealedText]:
    """Return the texts that no error message may show: the values whose names are like the name of a secret.

    `given` is the result of conceal().
    """
    found: list[ConcealedText] = []
    for name, value in given.items():
        if may_be_shown(name):
            continue
        if isinstance(value, ConcealedValue):
            value = value.value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            is_jaas = name.replace(".", "_") == "sasl_jaas_config"
            for text in (str(value), *(_values_in_jaas(str(value)) if is_jaas else ())):
                found += [ConcealedText(text), ConcealedText(repr(text)[1:-1])]
    return found


def _values_in_jaas(text: str) -> list[str]:
    from cyproducer.config.jaas import values_in  # imported here because most producers have no such text

    return values_in(text)


def may_be_shown(name: str) -> bool:
    """Return whether error messages may show the value of a setting of this name, in any spelling."""
    plain = name.replace(".", "_")
    setting = SECURITY_BY_NAME.get(OTHER_SPELLINGS.get(plain, plain))
    public = setting.shown if setting is not None else not plain.startswith(("ssl_", "sasl_"))
    return public and not is_secret_name(name)


def shown(name: str, value: Any) -> str:
    """Return the canonical value of a setting as a repr, an error or the log may show it: a URL without its query."""
    if name == _URL and isinstance(value, str):
        address, separator, _ = value.partition("?")
        return repr(address + (separator and "?<hidden>"))
    return repr(value) if may_be_shown(name) else "<hidden>"


def _concealed(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return ConcealedText(value) if not may_be_shown(name) or mentions_secret(value) or "@" in value else value
    if may_be_shown(name) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        return ConcealedBytes(value)
    if is_secret_name(name):
        return ConcealedValue(value)
    if isinstance(value, Mapping):  # sasl_oauthbearer_extensions
        return {key: ConcealedText(each) if isinstance(each, str) else each for key, each in value.items()}
    return value
