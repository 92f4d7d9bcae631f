"""Reads the dates of the certificate of this client, for an error of the broker about it."""

import calendar
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyproducer.security.tls import TlsError, own_pkcs12_certificate

__all__ = ["own_validity"]

_UNKNOWN = None, None


def own_validity(settings: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return from when until when the certificate is valid, in seconds since the epoch.

    Both are None if there is none, if it cannot be read, or if the package cryptography is not there.
    """
    try:
        from cryptography import x509
    except ImportError:
        return _UNKNOWN
    try:
        found = x509.load_pem_x509_certificate(_own(settings))
    except (OSError, ValueError, TlsError):
        return _UNKNOWN
    first, last = found.not_valid_before_utc, found.not_valid_after_utc
    return calendar.timegm(first.utctimetuple()), calendar.timegm(last.utctimetuple())


def _own(settings: Mapping[str, Any]) -> bytes:
    """Return the certificate in PEM format; empty if there is none."""
    if settings.get("ssl_certdata"):
        return str(settings["ssl_certdata"]).encode()
    certificate = own_pkcs12_certificate(settings)
    if certificate is not None:
        return certificate
    return Path(settings["ssl_certfile"]).read_bytes() if settings.get("ssl_certfile") else b""
