"""Makes certificates, keys and stores for tests of the settings of TLS, and parses settings."""

import datetime
import functools
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError

__all__ = ["PASSWORD", "Samples", "changed", "in_one_line", "parse", "refused", "round_trip"]

PASSWORD = "Zq7-of-the-key"
_DAY = datetime.timedelta(days=1)
_PEM = serialization.Encoding.PEM
_PKCS8 = serialization.PrivateFormat.PKCS8
_TRADITIONAL = serialization.PrivateFormat.TraditionalOpenSSL
_ENCRYPTION = serialization.BestAvailableEncryption(PASSWORD.encode())


class Samples:
    """Texts in PEM, and files with them and with other content in a directory."""

    def __init__(self, directory: Path) -> None:
        made = _made()
        for name, content in made.items():
            (directory / name).write_bytes(content)
        self.directory = directory
        self.certificate, self.key = made["ca.pem"].decode(), made["key.pem"].decode()
        self.encrypted_key = made["encrypted.pem"].decode()

    def __call__(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.directory / name)


@functools.cache
def _made() -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - _DAY, now + _DAY).sign(key, hashes.SHA256())
    )  # fmt: skip
    crl = x509.CertificateRevocationListBuilder(name, now - _DAY, now + _DAY).sign(key, hashes.SHA256())
    pem = certificate.public_bytes(_PEM)
    key_pem = key.private_bytes(_PEM, _PKCS8, serialization.NoEncryption())
    return {
        "ca.pem": pem,
        "key.pem": key_pem,
        "both.pem": key_pem + pem,
        "encrypted.pem": key.private_bytes(_PEM, _PKCS8, _ENCRYPTION),
        "traditional.pem": key.private_bytes(_PEM, _TRADITIONAL, _ENCRYPTION),
        "crl.pem": crl.public_bytes(_PEM),
        "certificate.der": certificate.public_bytes(serialization.Encoding.DER),
        "store.p12": pkcs12.serialize_key_and_certificates(b"client", key, certificate, None, _ENCRYPTION),
        # Only the first bytes of Java's own types are read.
        "store.jks": bytes.fromhex("feedfeed 00000002 00000001"),
        "store.jceks": bytes.fromhex("cececece 00000002 00000001"),
        "token": b"eyJhbGciOiJub25lIn0.e30.",
        "empty": b"\n",
        "text": b"no certificate\n",
    }


def in_one_line(pem: str) -> str:
    """Return the text as it stands in a properties file."""
    return " ".join(pem.split("\n")).strip()


def parse(**given: object) -> Settings:
    return Settings.parse(**{"bootstrap_servers": "broker:9092", **given})


def refused(**given: object) -> str:
    with pytest.raises(KafkaConfigurationError) as caught:
        parse(**given)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def changed(settings: Settings) -> dict[str, object]:
    """Return the settings of TLS and SASL that differ from their defaults, as the sender gets them."""
    told, default = {**settings.sender_settings(), **settings.secrets()}, parse().sender_settings()
    return {n: v for n, v in told.items() if n.startswith(("ssl_", "sasl_", "https_")) and v != default.get(n)}


def round_trip(settings: Settings) -> Settings:
    """Return the settings as the sender that gets them has them."""
    return Settings.for_sender({**settings.sender_settings(), **settings.secrets()})
