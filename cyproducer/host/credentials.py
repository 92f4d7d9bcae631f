"""Distinguishes senders by the secrets in their settings, without a secret, or what reveals it, in a name or a file.

A sender's identity contains a tag of its secrets: a keyed hash (BLAKE2b), whose key is a file of 32 random bytes in the
runtime directory that only the user can read. The tag is in a file name and in /proc/net/unix, which all users can
read; without the key nobody can try passwords on it. A process with other secrets computes another tag, and so finds
another sender.

A front-end proves to a sender that it knows the secrets: by a keyed hash of its arena, whose descriptor is in the same
message. So the proof is worth nothing to another process.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from cyproducer.host.rendezvous import RendezvousError, blake2b

__all__ = ["is_proof", "proof", "tag"]

_KEY_FILE = "credentials.key"
_KEY_BYTES = 32
_TAG_BYTES = 16


def tag(directory: str, secrets: Mapping[str, Any]) -> str:
    """Return what distinguishes the secrets in a runtime directory; "" if there are none.

    Create the key of the directory if it is missing. Raise RendezvousError.
    """
    if not secrets:
        return ""
    return blake2b(_encoded(secrets), key=_key_of(directory), digest_size=_TAG_BYTES).hexdigest()


def _encoded(secrets: Mapping[str, Any]) -> bytes:
    return json.dumps(secrets, sort_keys=True, separators=(",", ":")).encode()


def _key_of(directory: str) -> bytes:
    path = os.path.join(directory, _KEY_FILE)
    for _ in range(2):
        try:
            return _read(path)
        except FileNotFoundError:
            _create(path)
        except OSError as error:
            raise RendezvousError(f"{path}: {error.strerror}; make it readable, or remove it") from None
    raise RendezvousError(f"{path}: it was removed while it was read; try again")


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        key = os.read(fd, _KEY_BYTES + 1)
    finally:
        os.close(fd)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
        raise RendezvousError(f"{path}: other users can read or have made this file; remove it")
    if len(key) != _KEY_BYTES:
        raise RendezvousError(f"{path}: it is not a key of {_KEY_BYTES} bytes; remove it")
    return key


def _create(path: str) -> None:
    """Create the file with its content at once, so that no other process reads a part. Keep one that appears first."""
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, os.urandom(_KEY_BYTES))
        finally:
            os.close(fd)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise RendezvousError(f"{path}: it cannot be created ({error.strerror}); check the runtime directory") from None


def proof(secrets: Mapping[str, Any], arena_fd: int) -> str:
    """Return the proof of a front-end with this arena that it knows the secrets; "" if there are none."""
    if not secrets:
        return ""
    key = blake2b(_encoded(secrets)).digest()
    status = os.fstat(arena_fd)
    return blake2b(f"attach {status.st_dev} {status.st_ino}".encode(), key=key, digest_size=_KEY_BYTES).hexdigest()


def is_proof(claimed: Any, secrets: Mapping[str, Any], arena_fd: int) -> bool:
    """Return whether `claimed` proves that the front-end with this arena knows the secrets."""
    import hmac  # it loads OpenSSL, which a front-end does not need

    expected = proof(secrets, arena_fd)
    return isinstance(claimed, str) and claimed.isascii() and hmac.compare_digest(claimed, expected)
