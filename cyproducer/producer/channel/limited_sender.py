"""Decides whether a process replaces a sender that refuses it because of the sender's resource limits."""

from typing import Any

from cyproducer.errors import SenderUnavailableError
from cyproducer.host import limits

__all__ = ["LimitedSenderError"]

#: The largest number of replacements that one attach starts. Each replaced sender had lower limits than this process.
_REPLACEMENTS_MAX = 3


class LimitedSenderError(Exception):
    """A sender refused this process: its resource limits do not allow another front-end."""

    def __init__(self, path: str, answer: dict[str, Any], named: bool) -> None:
        super().__init__(f"the sender at {path} refuses this process: {answer.get('message')}")
        self.shortage = str(answer["shortage"])
        self.limits = answer.get("limits")
        #: It gets its OAuth tokens from producers, and was started by one of them.
        self.ends_only = answer.get("needs_token") is True
        self.stop = f"cyproducer stop --socket {path}"
        self.on_purpose = named or answer.get("replaceable") is not True

    def check(self, replacements: int) -> None:
        """Raise SenderUnavailableError unless this process should start a sender that replaces the refusing one.

        `replacements`: how many senders this attach has started.
        """
        if self.ends_only:
            raise self.to_error(
                "it gets its OAuth tokens from producers, so no other sender can take over from it: end it with "
                f"`{self.stop}`, and the next process that attaches starts a sender with its own limits (`ulimit -H`)"
            )
        if self.on_purpose:
            raise self.to_error(
                "it was started with `cyproducer sender`, or is named by the setting `sender`, so it is not replaced "
                "automatically: start it again with a higher limit (`ulimit -H`), or replace it with "
                "`cyproducer sender --replace`"
            )
        if not limits.are_higher(limits.reachable(), self.limits, self.shortage):
            ours = limits.describe(self.shortage, limits.reachable()) or "other limits, which are lower"
            raise self.to_error(
                f"a sender that this process starts would have no more, because this process has {ours}: raise the "
                "hard limit (`ulimit -H`) of this process, close producers, or start `cyproducer sender` with higher "
                "limits"
            )
        if replacements >= _REPLACEMENTS_MAX:
            raise self.to_error(
                "the senders that this process started to replace it reached their limits as well: close producers, "
                "or start `cyproducer sender` with higher limits"
            )

    def to_error(self, detail: str) -> SenderUnavailableError:
        """Return the error for the user: the refusal, and `detail`, which says why it is final and what to do."""
        return SenderUnavailableError(f"{self}; {detail}")
