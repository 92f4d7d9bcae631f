"""Makes private keys and certificates in a directory, for secure listeners of Kafka on this machine and their clients.

The certificates are good for tests only: their keys lie unprotected on the disk, and nobody revokes them.
"""

import datetime
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trustme

__all__ = ["Identity", "Keys", "MissingLibraryError"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
BROKER_HOSTS = ("localhost", "127.0.0.1")
# Reserved by RFC 6761: no resolver knows it.
WRONG_HOST = "elsewhere.invalid"
BROKER, CA, OTHER_CA = "broker", "ca", "other-ca"
EXPIRED, NOT_YET_VALID = datetime.datetime(2001, 1, 1), datetime.datetime(2900, 1, 1)
# The distinguished name of a client is "CN=name,OU=test,O=cyproducer" (RFC 2253), also after its re-issue.
ORGANIZATION, UNIT = "cyproducer", "test"


class MissingLibraryError(RuntimeError):
    """A library for keys and certificates is not installed; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key in PEM files, which only their owner can read.

    name          common name of the certificate
    certificate   file with the certificate, signed directly by one of the two CAs
    key           file with the private key in PKCS#8; encrypted if there is a password
    keystore      file with private key and certificate: a keystore of Kafka's type PEM
    password      of the private key, else None
    """

    name: str
    certificate: Path
    key: Path
    keystore: Path
    password: str | None = field(default=None, repr=False)


class Keys:
    """The keys and certificates in one directory (mode 0700; files 0600), which is created if missing.

    ca         certificate of the CA of the broker and its clients
    other_ca   certificate of a CA that the broker does not trust
    broker     the broker's certificate, for localhost and 127.0.0.1

    Each method that issues a certificate makes a new key and a new serial number. It writes each file beside its place
    and renames it. So a reader finds the old or the new content. Only `Identity.keystore` changes key and certificate
    at the same time; `key` changes just before `certificate`.

    Raise MissingLibraryError if trustme or cryptography is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            import trustme
        except ImportError:
            raise MissingLibraryError(
                "keys for secure listeners need trustme and cryptography, and one of them is not installed: "
                "pip install 'cyproducer[dev-tls]'"
            ) from None
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._authorities = {
            name: trustme.CA(organization_name=ORGANIZATION, organization_unit_name=name) for name in (CA, OTHER_CA)
        }
        self.ca = self._write(f"{CA}.pem", self._authorities[CA].cert_pem.bytes())
        self.other_ca = self._write(f"{OTHER_CA}.pem", self._authorities[OTHER_CA].cert_pem.bytes())
        self.broker = self.reissue_broker()

    def reissue_broker(
        self, *, expired: bool = False, not_yet_valid: bool = False, wrong_host: bool = False, other_ca: bool = False
    ) -> Identity:
        """Issue the broker's certificate again, into the same files. `Access.reload_certificates` makes nodes load it.

        expired         the certificate was valid until 2001
        not_yet_valid   the certificate will be valid from 2900 on
        wrong_host      the certificate is for another host
        other_ca        the other CA signs it
        """
        hosts = (WRONG_HOST,) if wrong_host else BROKER_HOSTS
        return self._issue(BROKER, hosts, None, expired, other_ca, not_yet_valid)

    def client(
        self, name: str, *, password: str | None = None, expired: bool = False, other_ca: bool = False
    ) -> Identity:
        """Issue a client's certificate with the common name ``name``; once more for the same name: into the same files.

        password     encrypts the private key
        expired      the certificate was valid until 2001
        other_ca     the other CA signs it
        """
        return self._issue(name, (f"{name}@client.invalid",), password, expired, other_ca)

    def server(self, name: str, *hosts: str, expired: bool = False, other_ca: bool = False) -> Identity:
        """Issue the certificate of another server, for the given hosts (by default those of the broker)."""
        return self._issue(name, hosts or BROKER_HOSTS, None, expired, other_ca)

    def pkcs12(self, identity: Identity, password: str) -> Path:
        """Write a PKCS#12 store with the key, the certificate and the certificate of the CA, and return its path."""
        # Optional dependencies: the module must be importable without them.
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            load_pem_private_key,
            pkcs12,
        )

        secret = None if identity.password is None else identity.password.encode()
        key: Any = load_pem_private_key(identity.key.read_bytes(), secret)
        certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
        authorities = [x509.load_pem_x509_certificate(path.read_bytes()) for path in (self.ca, self.other_ca)]
        signers = [authority for authority in authorities if authority.subject == certificate.issuer]
        protection = BestAvailableEncryption(password.encode())
        store = pkcs12.serialize_key_and_certificates(identity.name.encode(), key, certificate, signers, protection)
        return self._write(f"{identity.name}.p12", store)

    def _issue(
        self,
        name: str,
        hosts: tuple[str, ...],
        password: str | None,
        expired: bool,
        other_ca: bool,
        not_yet_valid: bool = False,
    ) -> Identity:
        if not NAME.fullmatch(name):
            raise ValueError(f"name={name!r}: use letters, digits, and after the first character also '.' and '-'")
        leaf = self._authorities[OTHER_CA if other_ca else CA].issue_cert(
            *hosts,
            common_name=name,
            organization_name=ORGANIZATION,
            organization_unit_name=UNIT,
            not_before=NOT_YET_VALID if not_yet_valid else None,  # None: in the year 2000
            not_after=EXPIRED if expired else None,  # None: in the year 3000
        )
        key, certificate = _pkcs8(leaf, password), leaf.cert_chain_pems[0].bytes()
        keystore = self._write(f"{name}.keystore.pem", key + certificate)
        key_file = self._write(f"{name}.key", key)
        return Identity(name, self._write(f"{name}.pem", certificate), key_file, keystore, password)

    def _write(self, name: str, content: bytes) -> Path:
        """Replace a file by rename, with mode 0600 (of mkstemp), and return its path."""
        path = self.directory / name
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return path


def _pkcs8(leaf: "trustme.LeafCert", password: str | None) -> bytes:
    """Return the private key in PKCS#8, the only form that Kafka reads. trustme writes the traditional form."""
    # Optional dependencies: the module must be importable without them.
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        KeySerializationEncryption,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    protection: KeySerializationEncryption = NoEncryption()
    if password is not None:
        protection = BestAvailableEncryption(password.encode())
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    return pem
