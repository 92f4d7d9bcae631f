"""Computes where the sender for a producer's settings listens.

A forked worker pays a page fault for nearly every page that it touches first. So the address is computed when the
producer is created, before the fork, and is used as long as nothing that it depends on has changed.
"""

import dataclasses
import os
import sys
from typing import Any, Protocol

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError
from cyproducer.host import control_messages, rendezvous
from cyproducer.host.credential_files import CredentialFileError, credential_files, file_proofs
from cyproducer.host.credentials import attaching, proof, tag
from cyproducer.host.interrupts import pass_on
from cyproducer.host.rendezvous import ProcessEnvironment, Rendezvous, RendezvousError
from cyproducer.shm.native import LAYOUT_VERSION, process_environment
from cyproducer.version import VERSION

__all__ = ["Address", "Tokens"]

_PRINCIPAL = "sasl_oauth_principal"


class Tokens(Protocol):
    """Supplies the sender with OAuth tokens of the application: a TokenSupplier."""

    def message(self, deadline: float) -> dict[str, Any]:
        """Return the message that shows a token to a sender."""

    def discard(self) -> None:
        """Forget the token, which a sender has refused."""

    def principal(self, deadline: float) -> str:
        """Return the principal of the tokens. Wait for one up to `deadline`. Raise SenderUnavailableError."""

    def serve(self, path: str, named: bool) -> None:
        """Supply the sender at `path` from now on."""

    def close(self) -> None:
        """End the thread that supplies tokens."""


class Address:
    """The address of one producer's sender. `hello`: the encoded part of the attach message about the settings.

    For the encoding see host/control_messages.py. A sender that the setting `sender` names must agree with the sender
    settings that were given explicitly; any other sender must agree with all of them. `tokens`: supplies the sender
    with OAuth tokens of the application; None: it has no provider of them.
    """

    def __init__(self, settings: Settings) -> None:
        self._named = named = settings.sender is not None
        self._expected = rendezvous.public_settings(
            settings.explicit_sender_settings() if named else settings.sender_settings()
        )
        self._secrets = settings.secrets()
        self.hello = b""
        self._encode_hello(settings)
        self._depends_on: tuple[Any, ...] | None = None
        self._found: tuple[Rendezvous, dict[str, Any]] | None = None
        self.tokens: Tokens | None = None
        if settings.sasl_oauth_token_provider is not None:
            # It loads OpenSSL, which other programs do not need.
            from cyproducer.producer.tokens.token_supplier import TokenSupplier

            self.tokens = TokenSupplier(settings)
        elif not named:
            try:
                self._find(process_environment(), make=False)
            except (OSError, RendezvousError) as error:
                pass_on(error)  # the first use tries again and raises the error

    def _encode_hello(self, settings: Settings) -> None:
        self.hello = control_messages.encode(
            {
                "op": "attach",
                "layout": LAYOUT_VERSION,
                "version": VERSION,
                "app": _application_name(),
                "settings": settings.front_end_settings(),
                "sender_settings": self._expected,
            }
        )

    def with_principal(self, settings: Settings, deadline: float) -> Settings:
        """Return the settings with the principal of the provided tokens, which is a part of the sender's identity.

        Settings without a provider of tokens, or for a sender that they name, are returned as they are. The first call
        waits for a token, up to `deadline` (time.monotonic()). Raise SenderUnavailableError.
        """
        if self.tokens is None or settings.sender is not None:
            return settings
        principal = self.tokens.principal(deadline)
        if self._expected.get(_PRINCIPAL) != principal:
            self._expected[_PRINCIPAL] = principal
            self._encode_hello(settings)
            self._found = None
        return dataclasses.replace(settings, sasl_oauth_principal=principal)

    def close(self) -> None:
        """End the thread that supplies tokens, if there is one."""
        if self.tokens is not None:
            self.tokens.close()

    def find(self, again: bool = False) -> tuple[Rendezvous, dict[str, Any]]:
        """Return (rendezvous, the sender's identity). `again`: compute it anew, because no sender listens there.

        Create the runtime directory. Raise RendezvousError.
        """
        now = process_environment()
        if again or self._found is None or now != self._depends_on:
            self._find(now, make=True)
        assert self._found is not None
        return self._found

    @property
    def needs_challenge(self) -> bool:
        """Whether this process proves to the sender that it has the credentials."""
        return bool(self._secrets or self._files())

    def proofs(self, arena_fd: int, challenge: str) -> dict[str, Any]:
        """Return the fields of the attach message that prove that this process has the credentials.

        Raise KafkaConfigurationError if it cannot read a file with credentials.
        """
        files = self._files()
        if not self._secrets and not files:
            return {}
        subject = attaching(challenge, arena_fd, None if self._named else os.getpid())
        found: dict[str, Any] = {"proof": proof(self._secrets, subject)} if self._secrets else {}
        try:
            return {**found, "files": file_proofs(files, subject)} if files else found
        except CredentialFileError as error:
            raise KafkaConfigurationError(str(error)) from None

    def _files(self) -> dict[str, str]:
        """Return the files with credentials. A sender that the settings name lends its own."""
        return {} if self._named else credential_files(self._expected)

    def other_sockets(self) -> list[str]:
        """Return the sockets of this sender in other runtime directories of the user.

        There is one if a sender was started while the present directory could not be used. Raise RendezvousError.
        """
        place, _ = self.find()
        where = process_environment()
        others = rendezvous.places_in_use(lambda directory: self._description(directory, where, make=False))
        return [other.socket for other in others if other != place]

    def _description(self, directory: str, where: tuple[Any, ...], make: bool) -> dict[str, Any]:
        """Return the sender's identity in a runtime directory. Raise RendezvousError."""
        credentials = tag(directory, self._secrets, make)
        return rendezvous.identity(LAYOUT_VERSION, self._expected, ProcessEnvironment.of(where), credentials)

    def _find(self, where: tuple[Any, ...], make: bool) -> None:
        directory = rendezvous.runtime_directory(make=make)
        description = self._description(directory, where, make)
        self._found = rendezvous.of_sender(directory, description), description
        self._depends_on = where


def _application_name() -> str:
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return ("".join(c for c in name if c.isprintable()) or os.path.basename(sys.executable or "python"))[:100]
