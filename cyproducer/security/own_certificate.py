"""Reads the dates of the certificate of this client, for an error of the broker about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyproducer.security.file_version import version_at
from cyproducer.security.tls import own_pkcs12_certificate

__all__ = ["OwnCertificate"]

_UNKNOWN = None, None


class OwnCertificate:
    """The certificate of a client with these settings ``ssl_*``. It is read again when its file has changed."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._read: tuple[Any, ...] | None = None
        self._dates: tuple[float | None, float | None] = _UNKNOWN

    def __repr__(self) -> str:
        return "OwnCertificate()"

    def validity(self) -> tuple[float | None, float | None]:
        """Return from when until when the certificate is valid, in seconds since the epoch.

        Both are None if there is none, or it cannot be read: for example without the package cryptography, which a PEM
        file does not need otherwise, and which may be of any version.
        """
        found = tuple(version_at(self._settings.get(name)) for name in ("ssl_certfile", "ssl_keystore_location"))
        if found != self._read:
            self._read, self._dates = found, _UNKNOWN
            try:
                self._dates = _dates(_content(self._settings))
            except Exception:
                return _UNKNOWN
        return self._dates


def _dates(certificate: bytes) -> tuple[float, float]:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate)
    return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()


def _content(settings: Mapping[str, Any]) -> bytes:
    """Return the certificate in PEM format; empty if there is none."""
    if settings.get("ssl_certdata"):
        return str(settings["ssl_certdata"]).encode()
    certificate = own_pkcs12_certificate(settings)
    if certificate is not None:
        return certificate
    return Path(settings["ssl_certfile"]).read_bytes() if settings.get("ssl_certfile") else b""
