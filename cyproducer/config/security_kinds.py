"""Defines the values that the settings of TLS and SASL accept."""

import os
import re
from collections.abc import Mapping
from typing import Any

from cyproducer.config import pem
from cyproducer.config.ciphers import openssl_ciphers, why_refused
from cyproducer.config.kinds import Kind, Wrong, boolean, number
from cyproducer.config.token_provider import token_provider

__all__ = [
    "MECHANISMS",
    "TLS_VERSIONS",
    "ciphers",
    "endpoint",
    "extensions",
    "fraction",
    "hostname_check",
    "mechanism",
    "path",
    "pem_text",
    "provider",
    "service_of_broker",
    "store_type",
    "text",
    "tls_protocol",
    "tls_versions",
    "user",
]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_OLD_VERSIONS = ("SSL", "SSLV2", "SSLV3", "TLSV1", "TLSV1.0", "TLSV1.1")
# RFC 7628, as in Kafka (OAuthBearerClientInitialResponse.java).
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


def text(allowed: str = "a str", *, empty: bool = False) -> Kind:
    """Return the kind of a text without NUL. An empty one counts as not given, or as itself with `empty`."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise Wrong
        if "\0" in value:
            raise Wrong("it has a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Wrong("it has a surrogate, which UTF-8 cannot express") from None
        return str(value) if value or empty else None

    return Kind("None, or " + allowed, parse)


def user() -> Kind:
    plain = text("a str without line breaks")

    def parse(value: Any, dotted: bool) -> str | None:
        parsed: str | None = plain.parse(value, dotted)
        if parsed is not None and ("\n" in parsed or "\r" in parsed):
            raise Wrong("it has a line break; a name that is read from a file often ends with one")
        return parsed

    return plain._replace(parse=parse)


def path(instead: str = "") -> Kind:
    """Return the kind of a file's path. `instead`: the setting for the text of such a file.

    The path becomes absolute: the sender has another working directory.
    """

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str | os.PathLike):
            raise Wrong
        given = os.fspath(value)
        if not isinstance(given, str) or "\0" in given:
            raise Wrong
        if "-----BEGIN" in given:
            raise Wrong(f"this is a text in PEM, not a path; {f'use {instead}' if instead else 'put it into a file'}")
        if given.startswith("~"):
            raise Wrong("~ is not replaced in a path; use os.path.expanduser()")
        return os.path.abspath(given)

    return Kind("None, or the path of a file", parse)


def pem_text(what: str, labels: tuple[str, ...], instead: str) -> Kind:
    """Return the kind of a text in PEM. `instead`: the setting for the path of a file with such a text."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        if "-----BEGIN" not in value:
            raise Wrong(f"it is not PEM; if it is the path of a file, use {instead}")
        try:
            found = pem.normalised(value)
        except ValueError as error:
            raise Wrong(str(error)) from None
        if not pem.contains(found.encode(), labels):
            raise Wrong(f"it has no {what}")
        if labels is pem.CERTIFICATE and pem.contains(found.encode(), pem.PRIVATE_KEY):
            raise Wrong("it has a private key, which belongs to ssl_keydata")
        return found

    return Kind(f"None, or a text in PEM with a {what}", parse)


def store_type() -> Kind:
    """Return the kind of Kafka's type of a store. JKS, Kafka's default, lets the file decide, as in Java."""
    known = ("JKS", "PKCS12", "PEM")

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str) or value.strip().upper() not in known:
            raise Wrong
        return value.strip().upper()

    return Kind("None, 'PKCS12', 'PEM', or JKS, which means None", parse)


def hostname_check() -> Kind:
    """Return the kind of ssl_check_hostname, and of Kafka's ssl.endpoint.identification.algorithm."""
    algorithms = {"https": True, "": False, "none": False}
    either = boolean()

    def parse(value: Any, dotted: bool) -> bool:
        if isinstance(value, str) and value.strip().lower() in algorithms:
            return algorithms[value.strip().lower()]
        checked: bool = either.parse(value, dotted)
        return checked

    return Kind("True (Kafka's https), or False (Kafka's empty text)", parse)


def ciphers() -> Kind:
    plain = text("names of cipher suites, as of Kafka with commas or as of OpenSSL with colons")

    def parse(value: Any, dotted: bool) -> str | None:
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            value = ",".join(value)
        given: str | None = plain.parse(value, dotted)
        if given is None or not given.strip():
            return None
        reason = why_refused(openssl_ciphers(given)) if openssl_ciphers(given).tls12 else ""
        if reason:
            raise Wrong(reason)
        return given

    return plain._replace(parse=parse)


def tls_versions() -> Kind:
    def parse(value: Any, dotted: bool) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise Wrong
        names = [name.strip() for name in names if name.strip()]
        found = {_tls_version(name) for name in names}
        # Without a name, Java uses the versions that it enables by default.
        return tuple(name for name in TLS_VERSIONS if name in found or not found)

    return Kind("TLSv1.2, TLSv1.3, or both with a comma or in a list", parse)


def tls_protocol() -> Kind:
    """Return the kind of Kafka's ssl.protocol: the newest version that can be used."""

    def parse(value: Any, dotted: bool) -> str:
        if not isinstance(value, str):
            raise Wrong
        return TLS_VERSIONS[-1] if value.strip().upper() == "TLS" else _tls_version(value.strip())

    return Kind("TLSv1.3 or TLSv1.2", parse)


def _tls_version(name: str) -> str:
    known = {version.upper(): version for version in TLS_VERSIONS}
    if name.upper() in _OLD_VERSIONS:
        raise Wrong("versions before TLS 1.2 are not secure and cannot be used; remove them")
    if name.upper() not in known:
        raise Wrong
    return known[name.upper()]


def mechanism() -> Kind:
    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        name = value.strip().upper()
        if "," in name or " " in name:
            raise Wrong("a client uses one mechanism")
        if name == "AWS_MSK_IAM":
            raise Wrong(
                "brokers of Amazon MSK accept OAUTHBEARER too; use it, and sasl_oauth_token_provider with a token of "
                "the package aws-msk-iam-sasl-signer-python"
            )
        if name not in MECHANISMS:
            raise Wrong
        return name

    return Kind("one of " + ", ".join(repr(name) for name in MECHANISMS), parse)


def service_of_broker() -> Kind:
    """Return the kind of kafka-python's sasl_kerberos_name: (service, host) of service@host, or of gssapi.Name."""

    def parse(value: Any, dotted: bool) -> tuple[str, str] | None:
        if value is None or value == "":
            return None
        if type(value).__module__.partition(".")[0] == "gssapi":
            value = str(value)
        if not isinstance(value, str):
            raise Wrong
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)[@/]([A-Za-z0-9_.-]+)", value)
        if found is None:
            raise Wrong("a realm comes from the Kerberos configuration of the host" if value.count("@") else "")
        return found[1], found[2]

    return Kind("None, or a str service@host", parse)


def endpoint() -> Kind:
    """Return the kind of the URL of a token endpoint, or of a file with a token."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        from urllib.parse import urlsplit  # imported here because most producers have no URL

        url = value.strip()
        try:
            parts = urlsplit(url)
            valid = parts.port is None or parts.port > 0
        except ValueError:
            raise Wrong("it is not a URL", "<hidden>") from None
        if "@" in parts.netloc:
            raise Wrong("it contains credentials (user:password@); remove them", "<hidden>")
        if not url.isprintable() or " " in url or parts.fragment or not valid:
            raise Wrong
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query:
                raise Wrong("a file needs an absolute path: file:///directory/token")
            return f"file://{parts.path}"
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise Wrong
        return url

    return Kind("None, or a URL https://..., http://... or file:///...", parse)


def extensions() -> Kind:
    """Return the kind of the SASL extensions of OAUTHBEARER (KIP-342): pairs, sorted by name."""

    def parse(value: Any, dotted: bool) -> tuple[tuple[str, str], ...]:
        if isinstance(value, str):
            value = [each.strip().partition("=")[::2] for each in value.split(",") if each.strip()]
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple):
            raise Wrong
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise Wrong
            if not _EXTENSION_NAME.fullmatch(pair[0]) or pair[0] == "auth":
                raise Wrong("a name has other characters than letters, or is auth")
            if not _EXTENSION_VALUE.fullmatch(pair[1]):
                raise Wrong("a value is empty or has a character that is not in ASCII")
        if len({name for name, _ in pairs}) != len(pairs):
            raise Wrong("a name is given twice")
        return tuple(sorted((str(name), str(content)) for name, content in pairs))

    return Kind("a dict of str to str, or a str name=value,name=value", parse)


def fraction(low: float, high: float) -> Kind:
    every = number(0, 1, fractions=True)

    def parse(value: Any, dotted: bool) -> float:
        found = float(every.parse(value, dotted))
        if not low <= found <= high:
            raise Wrong
        return found

    return Kind(f"a number from {low} to {high}", parse)


def provider() -> Kind:
    def parse(value: Any, dotted: bool) -> Any:
        if value is None:
            return None
        try:
            return token_provider(value)
        except TypeError as error:
            raise Wrong(str(error)) from None

    return Kind("None, an object with token(), or a function that returns a token", parse)
