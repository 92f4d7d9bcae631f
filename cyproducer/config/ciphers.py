"""Converts cipher suites: the names of Kafka (those of IANA) to the names of OpenSSL."""

import contextlib
import re
from typing import Any, NamedTuple

__all__ = ["TLS13_SUITES", "Ciphers", "openssl_ciphers", "why_refused"]

_EXCLUDED = ":!aNULL:!eNULL"
"""What the sender appends (security/tls.py): no suite without authentication or encryption."""

#: The suites of TLS 1.3 that OpenSSL enables by default (SSL_CTX_set_ciphersuites(3)).
TLS13_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_IANA = re.compile(r"TLS_((?:[A-Z]+_)*?)WITH_([A-Z0-9_]+)")


class Ciphers(NamedTuple):
    """The ciphers that a list of names means.

    tls12      a cipher string of OpenSSL for TLS 1.2; empty: the list has no suite of TLS 1.2
    tls13      the suites of TLS 1.3 in the list
    iana       whether the list has the names of IANA. As in Java, only the versions of TLS with a suite in the list can
               be used then. A cipher string of OpenSSL says nothing of TLS 1.3.
    """

    tls12: str
    tls13: tuple[str, ...]
    iana: bool


def openssl_ciphers(value: str) -> Ciphers:
    """Return the ciphers of a setting: names of IANA with commas (Java), or a cipher string of OpenSSL."""
    names = [name.strip() for name in re.split(r"[,:\s]+", value) if name.strip()]
    if not any(name.upper().startswith("TLS_") for name in names):
        return Ciphers(value.strip(), (), False)
    tls13 = tuple(dict.fromkeys(name.upper() for name in names if name.upper() in TLS13_SUITES))
    tls12 = [_openssl_name(name) for name in names if name.upper() not in TLS13_SUITES]
    return Ciphers(":".join(dict.fromkeys(tls12)), tls13, True)


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2 (see `openssl ciphers -stdname`)."""
    found = _IANA.fullmatch(name.upper())
    if found is None:
        return name
    exchange, cipher = found[1].rstrip("_").replace("_", "-"), found[2]
    if "POLY1305" in cipher:
        cipher = cipher.removesuffix("_SHA256")  # the hash is not in OpenSSL's name
    cipher = re.sub(r"^(AES|ARIA|CAMELLIA)_", r"\1", cipher).replace("_CBC_", "_").replace("CCM_8", "CCM8")
    if cipher.startswith("ARIA"):
        exchange = exchange.replace("ECDHE-RSA", "ECDHE")
    return "-".join(part for part in ("" if exchange == "RSA" else exchange, cipher.replace("_", "-")) if part)


def why_refused(ciphers: Ciphers) -> str:
    """Return why the ciphers of TLS 1.2 are refused: OpenSSL does not know them, or they are not safe; "" if not.

    With an anonymous suite, a server needs no certificate, so any server would get the password. OpenSSL's security
    level forbids these suites, but the text or the configuration of the system may set another level. The sender
    excludes them from groups as HIGH; what names only such suites is an error.
    """
    import ssl  # imported here because a program without TLS does not need it

    # OpenSSL skips a name that it does not know, as long as it knows another one.
    for name in ciphers.tls12.split(":") if ciphers.iana else [ciphers.tls12]:
        if "-ANON-" in name:  # a name of IANA, for which OpenSSL has another one
            return f"{name} does not verify the broker's certificate; remove it"
        try:
            _suites(name)
        except ssl.SSLError:
            return f"{ssl.OPENSSL_VERSION} has no cipher {name if ciphers.iana else 'that this text selects'}"
        except ValueError:  # a character that a cipher string cannot have
            return "it is not a cipher string"
        for part in re.split("[:, ]+", name):
            if part and part[0] not in "!-+@":
                with contextlib.suppress(ssl.SSLError):
                    reasons = [_why_unsafe(suite) for suite in _suites(part)]
                    if reasons and all(reasons):
                        return f"{reasons[0]}; remove {part}"
        try:
            _suites(name + _EXCLUDED)
        except ssl.SSLError:
            return "it has no suite that verifies the broker's certificate and encrypts"
    return ""


def _suites(text: str) -> list[dict[str, Any]]:
    """Return the suites of TLS 1.2 and older that a text selects. Raise ssl.SSLError if there are none."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(text)
    return [dict(suite) for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"]


def _why_unsafe(suite: dict[str, Any]) -> str:
    if suite["auth"] == "auth-null":
        return f"{suite['name']} does not verify the broker's certificate"
    return f"{suite['name']} does not encrypt" if suite["strength_bits"] == 0 else ""
