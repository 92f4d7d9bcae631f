"""Lets a process prove that it can read the files with credentials that a sender's settings name.

The content of each file is the key of a proof, as the secrets are that of the proof in credentials.py. Sender and
process read the file when the process attaches, so both have the present content after another program has replaced it.
"""

import os
import stat
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from cyproducer.config.secrets import ConcealedBytes, ConcealedText
from cyproducer.host.credentials import is_proof, proof
from cyproducer.host.interrupts import pass_on

__all__ = ["CredentialFileError", "credential_files", "file_proofs", "unproven_file"]

_BYTES_MAX = 16 << 20
_FILES = ("ssl_keyfile", "ssl_keystore_location", "sasl_kerberos_keytab")
_TOKEN_URL = "sasl_oauthbearer_token_endpoint_url"
_CACHE = "sasl_kerberos_ticket_cache"


class CredentialFileError(Exception):
    """A file with credentials cannot be read. The text has the setting, the path and the reason."""


def credential_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of the files with credentials that these settings of a sender use, by setting."""
    names = [name for name in _FILES if settings.get(name)]
    if settings.get("ssl_certfile") and not settings.get("ssl_keyfile"):
        names.append("ssl_certfile")  # it has the private key, too
    found = {name: str(settings[name]) for name in names}
    url = settings.get(_TOKEN_URL) or ""
    if url.lower().startswith("file:"):
        found[_TOKEN_URL] = unquote(urlsplit(url).path)
    if _uses_ticket(settings):
        path = (settings.get(_CACHE) or f"/tmp/krb5cc_{os.geteuid()}").removeprefix("FILE:")
        if path.startswith("/"):  # others are "KIND:..."
            found[_CACHE] = path
    return found


def _uses_ticket(settings: Mapping[str, Any]) -> bool:
    """Return whether a ticket is used that kinit got."""
    is_kerberos = (
        str(settings.get("security_protocol")).startswith("SASL") and settings.get("sasl_mechanism") == "GSSAPI"
    )
    return is_kerberos and not settings.get("sasl_kerberos_keytab")


def file_proofs(files: Mapping[str, str], subject: str) -> dict[str, str]:
    """Return the proofs of this process that it can read the files, by setting. Raise CredentialFileError."""
    return {name: proof(_content(name, path), subject) for name, path in files.items()}


def unproven_file(files: Mapping[str, str], claimed: Any, subject: str) -> str:
    """Return the setting of the first file that a process has not proved to be able to read; "" if there is none.

    Raise CredentialFileError if this process cannot read a file.
    """
    proofs = claimed if isinstance(claimed, dict) else {}
    for name, path in files.items():
        if not is_proof(proofs.get(name), _content(name, path), subject):
            return name
    return ""


def _content(name: str, path: str) -> dict[str, str]:
    """Return the content of a file as a secret. A file that does not exist is empty: it has no credentials yet."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise CredentialFileError(f"{name}: {path} is not a regular file; name a file")
            content = ConcealedBytes(os.read(fd, min(status.st_size + 1, _BYTES_MAX)))
        finally:
            os.close(fd)
    except FileNotFoundError:
        content = ConcealedBytes()
    except OSError as error:
        pass_on(error)
        text = f"{name}: {path} cannot be read: {error.strerror}; check the rights of the file"
        raise CredentialFileError(text) from None
    return {name: ConcealedText(content.hex())}
