"""Decides by its name whether a setting holds a secret, for error messages and for the identity of a sender."""

import re

_WORDS = r"passw|secret|token|credential|jaas|private|api.?key"
_IN_TEXT = re.compile(_WORDS, re.IGNORECASE)
_IN_NAME = re.compile(_WORDS + r"|(?:^|[._])key(?:$|[._](?!serializer))", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether a setting of this name may hold a secret. The name may have Kafka's spelling."""
    return _IN_NAME.search(name) is not None


def mentions_secret(text: str) -> bool:
    """Return whether a text names a secret, so that the rest of it may be one."""
    return _IN_TEXT.search(text) is not None
