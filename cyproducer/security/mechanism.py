"""Declares what the SASL mechanisms of a client have in common: credentials, errors, and their interface."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MESSAGE_BYTES_MAX", "Credentials", "SaslClient", "SaslError"]

MESSAGE_BYTES_MAX = 65536  # a message of a server that is longer is refused before it is parsed


class SaslError(Exception):
    """An authentication cannot go on. The text says what failed, why and what to do, without a secret.

    retryable   whether another attempt may succeed soon although nobody repairs anything
    """

    def __init__(self, text: str, retryable: bool = False) -> None:
        super().__init__(text)
        self.retryable = retryable


class SaslClient(Protocol):
    """One authentication, as a state machine without input and output.

    mechanism      its name, as in a SaslHandshake request
    complete       whether the broker has accepted, and the mechanism's own checks have passed
    may_block      whether respond() may wait for another server; then a thread that must not wait does not call it
    server_error   what the broker has said about a refusal, or ""
    advice         what to do if the broker refuses the next message
    secrets        what the broker has got, and no text that it sends may show
    """

    mechanism: str
    complete: bool
    may_block: bool
    server_error: str
    advice: str
    secrets: tuple[str, ...]

    def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the next bytes to send, or None when nothing is to be sent any more; then `complete` is True.

        challenge   None asks for the initial response; later it is what the broker has answered, without an error

        Raise SaslError for a challenge that is not correct. The object cannot be used after that.
        """
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Credentials:
    """What a client authenticates with. Each mechanism uses a part of it; repr() shows nothing.

    username, password       of PLAIN and SCRAM
    token                    of OAUTHBEARER, with extensions (KIP-342)
    kerberos_service_name    first part of the principal of a broker
    kerberos_domain_name     second part of it; None: the host of the broker
    kerberos_principal       of this client; None: the principal of the ticket
    kerberos_keytab          file with the key of the principal; None: a ticket from a cache is used
    kerberos_ticket_cache    name of that cache, as in KRB5CCNAME; None: the default of Kerberos
    """

    username: str | None = None
    password: str | None = None
    token: str | None = None
    token_extensions: Mapping[str, str] = field(default_factory=dict)
    kerberos_service_name: str = "kafka"
    kerberos_domain_name: str | None = None
    kerberos_principal: str | None = None
    kerberos_keytab: str | None = None
    kerberos_ticket_cache: str | None = None
    # SCRAM keeps here what it has derived from the password. So it lives as long as the password.
    salted_passwords: dict[tuple[str, bytes, int], bytes] = field(default_factory=dict, init=False)
    # GSSAPI holds it while it asks the KDC.
    kerberos_lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __repr__(self) -> str:
        return "Credentials(<hidden>)"
