"""Makes the SSL contexts of the connections to brokers from the settings ``ssl_*``.

Certificates, keys and protocol versions are handled by Python's module ssl, so by the OpenSSL of the system. Files that
have changed are read again for the next connection.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from cyproducer.security.file_version import version_at

__all__ = ["TlsContexts", "TlsError", "own_pkcs12_certificate"]

FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile", "ssl_keystore_location", "ssl_truststore_location")
AUTHORITIES = ("ssl_cafile", "ssl_cadata", "ssl_truststore_location")
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(Exception):
    """A certificate, a key or a cipher cannot be used. The text names the setting and says what to do."""


class TlsContexts:
    """The SSL context of one set of settings, which is made again when one of its files has changed.

    settings: the canonical settings ``ssl_*``; those that are None or missing are not used. A store is a PKCS#12 file:
    one in PEM is ``ssl_cafile`` or ``ssl_certfile`` there.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._read: tuple[Any, ...] = ()
        #: Why changed files were not taken; empty if they were.
        self.problem = ""

    def __repr__(self) -> str:
        return "TlsContexts()"

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection.

        If changed files cannot be used, the former context stays in use and `problem` says why: a certificate and its
        key are replaced one after the other. Raise TlsError if there is no former one.
        """
        found = tuple(version_at(path) for path in self._files())
        if self._context is None or found != self._read:
            try:
                self._context, self.problem = self._checked(), ""
                self._read = found
            except TlsError as error:
                if self._context is None:
                    raise
                self.problem = str(error)
        return self._context

    def _files(self) -> list[str | None]:
        """Return the files and directories that the context is made of."""
        files = [self._settings.get(name) for name in FILES]
        if not self._has_authorities():
            system = ssl.get_default_verify_paths()
            files += [system.cafile, system.capath]
        return files

    def _has_authorities(self) -> bool:
        """Return whether the settings give the trusted authorities, so that the system's do not count."""
        return any(self._settings.get(name) for name in AUTHORITIES)

    def _checked(self) -> ssl.SSLContext:
        try:
            return self._make()
        except TlsError:
            raise
        except Exception as error:  # of a library, for a key or certificate that it does not know
            raise TlsError(
                f"the certificates and keys of the settings ssl_* cannot be used ({type(error).__name__}); use others"
            ) from None

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.options |= ssl.OP_NO_RENEGOTIATION  # so a write never has to wait for something to read
        context.check_hostname = bool(self._settings.get("ssl_check_hostname", True))
        versions = [VERSIONS[name] for name in self._settings.get("ssl_enabled_protocols") or VERSIONS]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        self._set_ciphers(context)
        self._trust(context)
        self._load_own(context)
        return context

    def _set_ciphers(self, context: ssl.SSLContext) -> None:
        ciphers = self._settings.get("ssl_ciphers")
        if not ciphers:
            return
        try:
            # The settings have been checked, perhaps with another OpenSSL.
            context.set_ciphers(f"{ciphers}:!aNULL:!eNULL")
        except ssl.SSLError:
            raise TlsError(
                f"ssl_ciphers={ciphers!r}: OpenSSL knows none of these ciphers; use the names that `openssl ciphers` "
                "prints, separated by colons"
            ) from None

    def _trust(self, context: ssl.SSLContext) -> None:
        """Load the certificates of the trusted authorities: those that were given, or the system's."""
        cafile, cadata = self._settings.get("ssl_cafile"), self._settings.get("ssl_cadata")
        store = self._settings.get("ssl_truststore_location")
        if store:
            _, _, chain = _open_pkcs12("ssl_truststore_location", store, self._settings.get("ssl_truststore_password"))
            if not chain:
                raise TlsError(
                    f"ssl_truststore_location={store}: it has no certificate of an authority; add that of the brokers' "
                    "authority (keytool -importcert)"
                )
            cadata = chain.decode()
        if not self._has_authorities():
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if cafile:
            with _reading("ssl_cafile", cafile):
                context.load_verify_locations(cafile=cafile)
        if cadata:
            with _reading("ssl_cadata" if not store else "ssl_truststore_location", "its certificates"):
                context.load_verify_locations(cadata=cadata)
        # An intermediate authority may be trusted without its root, as in Java and in Python's default context of 3.13.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self._settings.get("ssl_crlfile"):
            with _reading("ssl_crlfile", self._settings["ssl_crlfile"]):
                context.load_verify_locations(cafile=self._settings["ssl_crlfile"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF

    def _load_own(self, context: ssl.SSLContext) -> None:
        """Load the certificate of this client and its key, for brokers that ask for them."""
        get = self._settings.get
        store = get("ssl_keystore_location")
        if store:
            key, certificate, chain = _open_pkcs12("ssl_keystore_location", store, get("ssl_keystore_password"))
            if not key or not certificate:
                raise TlsError(f"ssl_keystore_location={store}: it has no private key with a certificate; add them")
            _load_pair(context, "ssl_keystore_location", None, certificate + chain, None, key, None)
            return
        certfile = get("ssl_certfile")
        if certfile or get("ssl_certdata"):
            _load_pair(
                context,
                "ssl_certfile" if certfile else "ssl_certdata",
                certfile,
                _as_bytes(get("ssl_certdata")),
                get("ssl_keyfile"),
                _as_bytes(get("ssl_keydata")),
                get("ssl_password"),
            )


def _as_bytes(text: str | None) -> bytes:
    return text.encode() if text else b""


@contextlib.contextmanager
def _reading(name: str, path: str) -> Iterator[None]:
    """Raise TlsError with the name of the setting for what fails inside."""
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or "").replace("_", " ").lower() or "it has no certificate"
        raise TlsError(
            f"{name}={path}: it cannot be used ({reason}); it must hold certificates in PEM format"
        ) from None
    except OSError as error:
        raise TlsError(f"{name}={path}: {error.strerror or 'it cannot be read'}; make it readable") from None


def _load_pair(
    context: ssl.SSLContext,
    name: str,
    certfile: str | None,
    certificate: bytes,
    keyfile: str | None,
    key: bytes,
    password: str | None,
) -> None:
    """Load a certificate with its key, each from a file or from PEM text. The key may be in the certificate's file."""
    with contextlib.ExitStack() as stack:
        if not certfile:
            certfile = stack.enter_context(_as_file(certificate))
        if key:
            keyfile = stack.enter_context(_as_file(key))
        asked = False

        def give_password() -> str:
            nonlocal asked
            asked = True
            return password or ""

        try:
            # Without a function OpenSSL would ask for the password of an encrypted key at the terminal.
            context.load_cert_chain(certfile, keyfile, password=give_password)
        except ssl.SSLError as error:
            if asked and password is None:
                raise TlsError(f"{name}: the private key is encrypted; give its password as ssl_password") from None
            if asked:
                raise TlsError(f"{name}: the private key cannot be decrypted: ssl_password is wrong") from None
            raise TlsError(f"{name}: {_why_unusable(error)}") from None
        except OSError as error:
            raise TlsError(f"{name}={error.filename or certfile}: {error.strerror}; make it readable") from None


def _why_unusable(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate; give the key of this certificate"
    if not reason or reason == "NO_START_LINE":
        return "there is no certificate with a private key in PEM format; check both files"
    return f"the certificate or its key cannot be used ({reason.replace('_', ' ').lower()})"


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give the content a path, since the module ssl takes keys only from files. It stays in memory (memfd_create)."""
    fd = os.memfd_create("cyproducer-pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def own_pkcs12_certificate(settings: Mapping[str, Any]) -> bytes | None:
    """Return the certificate of this client in PEM format, if it is in a PKCS#12 file. Raise TlsError."""
    store = settings.get("ssl_keystore_location")
    return _open_pkcs12("ssl_keystore_location", store, settings.get("ssl_keystore_password"))[1] if store else None


def _open_pkcs12(name: str, path: str, password: str | None) -> tuple[bytes, bytes, bytes]:
    """Return the key, its certificate and the other certificates of a PKCS#12 file, in PEM format."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise TlsError(
            f"{name}={path}: PKCS#12 needs the package cryptography: pip install 'cyproducer[pkcs12]'"
        ) from None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise TlsError(f"{name}={path}: {error.strerror}; make it readable") from None
    try:
        store = pkcs12.load_pkcs12(content, password.encode() if password else None)
    except ValueError:
        raise TlsError(
            f"{name}={path}: it is no PKCS#12 file, or {name.rpartition('_')[0]}_password is wrong"
        ) from None
    pem = Encoding.PEM
    key = store.key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()) if store.key is not None else b""
    own = store.cert.certificate.public_bytes(pem) if store.cert is not None else b""
    return key, own, b"".join(each.certificate.public_bytes(pem) for each in store.additional_certs)
