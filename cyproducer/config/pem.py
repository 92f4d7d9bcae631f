"""Checks PEM texts (RFC 7468) and brings them into one form: certificates, private keys and revocation lists."""

import binascii
import re

__all__ = ["CERTIFICATE", "PRIVATE_KEY", "REVOCATION_LIST", "contains", "is_encrypted", "is_pem", "normalised"]

#: The labels that OpenSSL accepts for each kind of content.
CERTIFICATE = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
PRIVATE_KEY = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY")
REVOCATION_LIST = ("X509 CRL",)

_BEGIN = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
# Kafka's parser (DefaultSslEngineFactory.PemParser) accepts any white space instead of line breaks, so that a value of
# a properties file can be one line.
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE = 64


def is_pem(data: bytes) -> bool:
    """Return whether the data has the beginning of a PEM block."""
    return _BEGIN.search(data) is not None


def contains(data: bytes, labels: tuple[str, ...]) -> bool:
    """Return whether the data has the beginning of a PEM block with one of the labels."""
    return any(found.decode() in labels for found in _BEGIN.findall(data))


def is_encrypted(data: bytes) -> bool:
    """Return whether a private key of the data needs a password: PKCS#8, or OpenSSL's traditional format."""
    return contains(data, ("ENCRYPTED PRIVATE KEY",)) or re.search(rb"Proc-Type:\s*4\s*,\s*ENCRYPTED", data) is not None


def normalised(text: str) -> str:
    """Return the blocks of a PEM text with lines of 64 characters, and nothing else of the text.

    The lines of the text may be joined by spaces, or by the two characters `\\n` as in an environment variable.
    Raise ValueError, whose text has nothing of the value, if there is no block or one is damaged.
    """
    if "\n" not in text.strip():
        text = text.replace("\\r", "").replace("\\n", "\n")
    blocks = [_block(found[1], found[2]) for found in _BLOCK.finditer(text)]
    if not blocks or len(blocks) != text.count("-----BEGIN "):
        raise ValueError("it is not PEM: a block from BEGIN to END is missing or not complete")
    return "".join(blocks)


def _block(label: str, body: str) -> str:
    lines = [line.strip() for line in body.strip().splitlines()]
    headers = [line for line in lines if ":" in line]
    encoded = "".join("".join(line.split()) for line in lines if ":" not in line)
    try:
        if not binascii.a2b_base64(encoded, strict_mode=True):
            raise ValueError
    except ValueError:  # also binascii.Error, and a character that is not in ASCII
        raise ValueError("it is not PEM: a block is not in Base64") from None
    rows = [encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE)]
    return "\n".join(
        [f"-----BEGIN {label}-----", *([*headers, ""] if headers else []), *rows, f"-----END {label}-----\n"]
    )
