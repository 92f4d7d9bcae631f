"""Describes the secure listeners of a KafkaCluster, and translates them into the settings of its nodes."""

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devkafka.keys import Keys

__all__ = ["LISTENERS", "MECHANISMS", "SCRAM_ITERATIONS", "SCRAM_MECHANISMS", "Kerberos", "Security"]

#: The secure listeners, each with its security protocol.
LISTENERS = {"SSL": "SSL", "MTLS": "SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL"}
# mechanism -> hash function of hashlib
SCRAM_MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER", "GSSAPI")
SCRAM_ITERATIONS = 4096  # the least that Kafka takes

CLIENT_AUTH = ("none", "requested", "required")
USER = re.compile(r"[A-Za-z0-9_.-]+")
_MODULES = "org.apache.kafka.common.security"
_KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_VALIDATOR = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
# Maps the distinguished name "CN=alice,OU=…,O=…" to the principal "User:CN=alice".
_NAME_RULES = "RULE:^(CN=[^,]+),.*$/$1/,DEFAULT"


@dataclass(frozen=True, slots=True)
class Kerberos:
    """What the nodes have in a realm of Kerberos, whose KDC is not part of the cluster.

    principal   of all nodes, ``SERVICE/HOST@REALM``; clients ask for a ticket for SERVICE and `Security.host`
    keytab      file with its key
    config      ``krb5.conf``, which says where the KDC is
    """

    principal: str
    keytab: Path
    config: Path


@dataclass(frozen=True, slots=True)
class Security:
    """What the nodes of a KafkaCluster have besides their listener PLAINTEXT: four secure listeners and an authorizer.

    SSL              TLS; the client certificate is ``client_auth``
    MTLS             TLS; a client certificate of the CA is required
    SASL_PLAINTEXT   SASL with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and GSSAPI
    SASL_SSL         the same over TLS

    A client has the principal ``User:CN=name`` by its certificate with that common name, ``User:name`` by PLAIN, by
    SCRAM and as ``name@REALM`` of Kerberos, and ``User:subject`` by a token. All others are ``User:ANONYMOUS``. The
    authorizer denies what no rule allows, except to ``super_users``. Nodes and admin clients use PLAINTEXT, so the
    principal of that listener must be a super user. If that is ``User:ANONYMOUS``, as by default, then clients of the
    listener SSL without a certificate are super users too. To tell them apart, give PLAINTEXT and CONTROLLER another
    principal with ``listener.name.plaintext.principal.builder.class`` and
    ``listener.name.controller.principal.builder.class``.

    keys            the broker's certificate and the CA of its clients
    users           passwords by user, for PLAIN (these are fixed) and SCRAM (`Access` can change these)
    client_auth     ``ssl.client.auth`` of the listener SSL
    jwks_url        address of the public keys of tokens, with the scheme http, https or file; None: no OAUTHBEARER
    audience        required audience of tokens, None: any
    issuer          required issuer of tokens, None: any
    kerberos        the nodes' principal of Kerberos; None: no GSSAPI
    max_reauth_ms   ``connections.max.reauth.ms``: a client authenticates again after that time at the latest (KIP-368)
    super_users     principals that may do everything
    host            name in the addresses of the secure listeners, which are on 127.0.0.1; the certificate is valid for
                    localhost and 127.0.0.1

    Needs Kafka 4.0 or later.
    """

    keys: Keys
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_auth: Literal["none", "requested", "required"] = "requested"
    jwks_url: str | None = None
    audience: str | None = None
    issuer: str | None = None
    kerberos: Kerberos | None = None
    max_reauth_ms: int = 0
    super_users: Sequence[str] = ("User:ANONYMOUS",)
    host: str = "localhost"

    def __post_init__(self) -> None:
        if self.client_auth not in CLIENT_AUTH:
            raise ValueError(f"client_auth={self.client_auth!r}: use one of {', '.join(CLIENT_AUTH)}")
        for user in self.users:
            if not USER.fullmatch(user):
                raise ValueError(f"users: {user!r} has other characters than letters, digits, '.', '_' and '-'")

    def properties(self, ports: Mapping[str, int], bind: str, base: Mapping[str, object]) -> dict[str, object]:
        """Return the settings of a node whose secure listeners are on these ports of the address ``bind``.

        ``base`` has the settings of the node without security. Only those that change are returned.
        """
        listening = [f"{name}://{bind}:{port}" for name, port in ports.items()]
        advertised = [f"{name}://{self.host}:{port}" for name, port in ports.items()]
        protocols = [f"{name}:{LISTENERS[name]}" for name in ports]
        found: dict[str, object] = {
            name: ",".join([str(base[name]), *more])
            for name, more in (
                ("listeners", listening),
                ("advertised.listeners", advertised),
                ("listener.security.protocol.map", protocols),
            )
        }
        found |= {
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.principal.mapping.rules": _NAME_RULES,
            # So that a broker can load a certificate for another host.
            "ssl.allow.dn.changes": "true",
            "ssl.allow.san.changes": "true",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(self.super_users),
            "connections.max.reauth.ms": self.max_reauth_ms,
            **self.stores(),
            "listener.name.ssl.ssl.client.auth": self.client_auth,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.sasl_ssl.ssl.client.auth": "none",
        }
        for listener in ("sasl_plaintext", "sasl_ssl"):
            found |= self._sasl(f"listener.name.{listener}.")
        if self.jwks_url is not None:
            found |= {
                "sasl.oauthbearer.jwks.endpoint.url": self.jwks_url,
                # The tokens are from this machine and so have the time of the same clock.
                "sasl.oauthbearer.clock.skew.seconds": 0,
            }
            if self.audience is not None:
                found["sasl.oauthbearer.expected.audience"] = self.audience
            if self.issuer is not None:
                found["sasl.oauthbearer.expected.issuer"] = self.issuer
        return {name: _escaped(str(value)) for name, value in found.items()}

    def stores(self) -> dict[str, str]:
        """Return the settings of the files with keys and certificates. A broker loads them again if they are altered.

        Kafka takes such changes only for the settings of one listener, not for those of all listeners.
        """
        return {
            f"listener.name.{listener.lower()}.ssl.{store}.location": str(path.resolve())
            for listener, protocol in LISTENERS.items()
            if protocol.endswith("SSL")
            for store, path in (("keystore", self.keys.broker.keystore), ("truststore", self.keys.ca))
        }

    def format_arguments(self) -> list[str]:
        """Return the arguments of StorageTool that create the SCRAM users. The passwords in them are salted."""
        found = []
        for user, password in self.users.items():
            for mechanism, algorithm in SCRAM_MECHANISMS.items():
                salt = os.urandom(16)
                salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, SCRAM_ITERATIONS)
                parts = f"salt={_base64(salt)},saltedpassword={_base64(salted)},iterations={SCRAM_ITERATIONS}"
                found += ["--add-scram", f"{mechanism}=[name={user},{parts}]"]
        return found

    def jvm_options(self) -> list[str]:
        """Return the options of a node's JVM: the URL of the keys of tokens that is allowed, and ``krb5.conf``."""
        found = []
        if self.jwks_url is not None:
            found.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks_url}")
        if self.kerberos is not None:
            found.append(f"-Djava.security.krb5.conf={self.kerberos.config.resolve()}")
        return found

    def _sasl(self, prefix: str) -> dict[str, object]:
        """Return the settings of a SASL listener."""
        absent = {"OAUTHBEARER"} if self.jwks_url is None else set()
        if self.kerberos is None:
            absent.add("GSSAPI")
        mechanisms = [name for name in MECHANISMS if name not in absent]
        users = "".join(f" user_{user}={_quoted(password)}" for user, password in self.users.items())
        found: dict[str, object] = {
            prefix + "sasl.enabled.mechanisms": ",".join(mechanisms),
            prefix + "plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required{users};",
        }
        for name in SCRAM_MECHANISMS:
            module = f"{_MODULES}.scram.ScramLoginModule required;"
            found[f"{prefix}{name.lower()}.sasl.jaas.config"] = module
        if self.jwks_url is not None:
            module = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
            found[prefix + "oauthbearer.sasl.jaas.config"] = module
            found[prefix + "oauthbearer.sasl.server.callback.handler.class"] = _VALIDATOR
        if self.kerberos is not None:
            options = {"keyTab": str(self.kerberos.keytab.resolve()), "principal": self.kerberos.principal}
            given = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
            found[prefix + "gssapi.sasl.jaas.config"] = (
                f"{_KERBEROS_MODULE} required useKeyTab=true storeKey=true {given};"
            )
            service = self.kerberos.principal.partition("/")[0]
            found[prefix + "sasl.kerberos.service.name"] = service
        return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quoted(text: str) -> str:
    """Return a string in quotes as java.io.StreamTokenizer, which reads a JAAS configuration, expects it."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{inner}"'


def _escaped(text: str) -> str:
    """Return the value of a setting as java.util.Properties reads it from a file."""
    units = text.replace("\\", "\\\\").encode("utf-16-be")
    numbers = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(n) if 32 <= n < 127 else f"\\u{n:04x}" for n in numbers)
