"""Stands in for the package gssapi: a context of Kerberos whose tokens are readable texts."""

import types
from types import SimpleNamespace
from typing import Any

__all__ = ["FakeGssapi", "GSSError"]


class GSSError(Exception):
    """An error of Kerberos."""


class Context:
    """An initiator. It needs one answer of the broker, unless `rounds` of its module is another number."""

    def __init__(self, module: "FakeGssapi", **options: Any) -> None:
        self.module = module
        self.options = options
        self.initiator_name = "alice@REALM"
        self.rounds = module.rounds

    @property
    def complete(self) -> bool:
        return self.rounds < 0

    def step(self, token: bytes | None) -> bytes | None:
        if self.module.failure:
            raise GSSError(self.module.failure)
        if token is not None and not token.startswith(b"server"):
            raise GSSError("the token is defective")
        self.rounds -= 1
        return None if self.complete else b"client"

    def unwrap(self, message: bytes) -> SimpleNamespace:
        if not message.startswith(b"wrapped:"):
            raise GSSError("the token is defective")
        return SimpleNamespace(message=message.removeprefix(b"wrapped:"))

    def wrap(self, message: bytes, encrypt: bool) -> SimpleNamespace:
        assert not encrypt
        return SimpleNamespace(message=b"wrapped:" + message)


class FakeGssapi(types.ModuleType):
    """The module. `made` has the options of each Name, Credentials and SecurityContext, in this order.

    failure   the text of the error that each step raises; "": none
    rounds    how many answers of the broker a context needs
    """

    def __init__(self) -> None:
        super().__init__("gssapi")
        self.failure = ""
        self.rounds = 1
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.NameType = SimpleNamespace(hostbased_service="host based", kerberos_principal="principal")
        self.MechType = SimpleNamespace(kerberos="krb5")
        self.RequirementFlag = SimpleNamespace(
            mutual_authentication="mutual", integrity="integrity", out_of_sequence_detection="sequence"
        )

    def Name(self, text: str, name_type: str) -> str:
        self.made.append(("Name", {"text": text, "name_type": name_type}))
        return f"{name_type} {text}"

    def Credentials(self, **options: Any) -> str:
        self.made.append(("Credentials", options))
        return "credentials"

    def SecurityContext(self, **options: Any) -> Context:
        self.made.append(("SecurityContext", options))
        return Context(self, **options)
