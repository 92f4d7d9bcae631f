"""Names why an attempt to attach has failed, if another one may succeed."""

__all__ = ["NoAnswerError", "TryAgainError", "UncheckedTokenError"]


class TryAgainError(Exception):
    """The attempt failed, but the next one may succeed after `pause_s` or later. The text is the reason."""

    pause_s = 0.0


class NoAnswerError(TryAgainError):
    """No answer came in time. The reason of an earlier attempt is more informative."""


class UncheckedTokenError(TryAgainError):
    """No broker could check the OAuth token. Each attempt costs the sender a connection to each broker."""

    pause_s = 1.0
