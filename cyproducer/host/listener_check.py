"""Checks that a socket is connected to a sender that this process may trust."""

import os
from typing import Any

from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.trust import why_untrusted

__all__ = ["ForeignListenerError", "check_listener"]


class ForeignListenerError(SenderUnavailableError):
    """Another user listens at a path that this process has computed."""


def check_listener(sock: Any, path: str, named: bool) -> None:
    """Check which user listens. Another user is trusted only at a named path that no third user could have created.

    Raise SenderUnavailableError, ForeignListenerError if the path is not named.
    """
    _, uid, _ = control_messages.peer_credentials(sock)
    if uid in (os.geteuid(), 0):
        return
    text = f"the sender at {path} belongs to uid {uid}, not to the effective uid {os.geteuid()} of this process"
    if not named:
        raise ForeignListenerError(text)
    problem = why_untrusted(path, uid, os.geteuid())
    if problem:
        raise SenderUnavailableError(
            f"{text}, and another user may have created it: {problem}; run the sender as this user or root, or put "
            f"its socket in a directory that only root, this user and uid {uid} can write"
        )
