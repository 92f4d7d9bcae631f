"""Decides by its name whether a setting holds a secret, for error messages and for the identity of a sender."""

import re

from cyproducer.config.security_table import OTHER_SPELLINGS, SECURITY_BY_NAME

__all__ = ["is_secret_name", "mentions_secret"]

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
