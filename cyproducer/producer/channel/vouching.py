"""Shows a sender an OAuth token before the attach, so that only processes with a valid token use its connections."""

from typing import Any

from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.failures import TryAgainError, UncheckedTokenError
from cyproducer.producer.tokens.token_supplier import TokenSupplier
from cyproducer.shm import system_clock

__all__ = ["vouch"]

_ANSWER_S = 20.0  # longer than the sender's check of a token


def vouch(sock: Any, tokens: TokenSupplier, path: str, named: bool, deadline: float) -> None:
    """Send a token on the connection to the sender at `path`, and wait for the answer.

    Raise SenderUnavailableError if the sender refuses it, KafkaConfigurationError if a sender that the setting `sender`
    names takes none, TryAgainError if another attempt may succeed.
    """
    try:
        control_messages.send(sock, tokens.message(deadline))
        answer = _answer(sock, min(deadline, system_clock.monotonic() + _ANSWER_S))
    except (ConnectionError, BlockingIOError) as error:
        pass_on(error)
        raise TryAgainError(f"it closed the connection: {error.strerror}") from None
    except control_messages.HandshakeError as error:
        raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from None
    if answer is None:
        raise TryAgainError("it closed the connection, or did not say in time whether it takes the OAuth token")
    if answer.get("ok"):
        return
    name, text = str(answer.get("error")), str(answer.get("message"))
    if name == "UNCHECKED":
        raise UncheckedTokenError(text)
    tokens.discard()
    if name == "CREDENTIALS" and named:
        raise KafkaConfigurationError(f"the sender at {path} has other credentials: {text}")
    raise SenderUnavailableError(f"the sender at {path} does not take the OAuth token ({name}): {text}")


def _answer(sock: Any, until: float) -> dict[str, Any] | None:
    while wait_readable([sock.fileno()], until - system_clock.monotonic()):
        try:
            return control_messages.receive_alone(sock)
        except BlockingIOError as error:
            pass_on(error)
    return None
