"""Authenticates with the mechanism PLAIN (RFC 4616): user and password are sent as they are."""

from cyproducer.security.mechanism import Credentials, SaslError

__all__ = ["PASSWORD_ADVICE", "PlainClient", "user_and_password"]

PASSWORD_ADVICE = "check sasl_plain_username and sasl_plain_password, and the user at the broker"

_START, _SENT, _ENDED = range(3)


class PlainClient:
    """The client of PLAIN. Raise SaslError if the credentials cannot be sent."""

    mechanism = "PLAIN"
    may_block = False
    advice = PASSWORD_ADVICE

    def __init__(self, credentials: Credentials) -> None:
        user, password = user_and_password(self.mechanism, credentials)
        self._message = b"\0" + user + b"\0" + password
        self.secrets: tuple[str, ...] = (password.decode(),)
        self._state = _START
        self.complete = False
        self.server_error = ""

    def __repr__(self) -> str:
        return "PlainClient()"

    def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the only message, then None. As in Kafka's client, the content of the broker's answer is ignored."""
        state, self._state = self._state, _ENDED
        if state == _START and challenge is None:
            self._state = _SENT
            return self._message
        if state != _SENT or challenge is None:
            raise SaslError("a message of PLAIN arrived out of order; begin a new authentication")
        self.complete = True
        return None


def user_and_password(mechanism: str, credentials: Credentials) -> tuple[bytes, bytes]:
    """Return user and password in UTF-8. Raise SaslError if one is missing, or cannot be sent.

    SASLprep (RFC 4013) is not applied. Kafka's brokers, tools and clients do not apply it either, so a password that it
    would change or refuse is stored and compared as it is.
    """
    encoded = []
    parts = (
        ("user", "sasl_plain_username", credentials.username),
        ("password", "sasl_plain_password", credentials.password),
    )
    for what, setting, value in parts:
        if not value:
            raise SaslError(f"{mechanism} needs a {what}, and there is none; set {setting}")
        if "\0" in value:
            raise SaslError(
                f"the {what} of {mechanism} contains the character NUL, which SASL forbids; change {setting}"
            )
        try:
            encoded.append(value.encode())
        except UnicodeEncodeError:
            # Its text would show a part of the password.
            raise SaslError(
                f"the {what} of {mechanism} contains half of a surrogate pair, which UTF-8 cannot express; "
                f"change {setting}"
            ) from None
    return encoded[0], encoded[1]
