"""Distinguishes senders by the secrets in their settings, without a secret, or what reveals it, in a name or a file.

A sender's identity contains a tag of its secrets: a keyed hash (BLAKE2b), whose key is a file of 32 random bytes in the
runtime directory that only the user can read. The tag is in a file name and in /proc/net/unix, which all users can
read; without the key nobody can try passwords on it. A process with other secrets computes another tag, and so finds
another sender.

A process proves to a sender that it knows the secrets, with a keyed hash of the sender's challenge, of its process id,
which the kernel tells the sender, and of its arena, whose descriptor is in the same message. So the proof is worth
nothing to another process, for example to one that got the proof and the arena because it listened in the place of the
sender, nor later, when the process id is used again. In the same way it proves that it can read the files with
credentials that the settings name.
"""

import contextlib
import json
import os
from _operator import _compare_digest as compare_digest  # hmac, which has it too, loads OpenSSL
from collections.abc import Mapping
from typing import Any

from cyproducer.config.secrets import ConcealedBytes
from cyproducer.host.interrupts import pass_on
from cyproducer.host.rendezvous import RendezvousError, blake2b

__all__ = ["attaching", "is_proof", "new_challenge", "proof", "replacing", "tag"]

_KEY_FILE = "credentials.key"
_KEY_BYTES = 32
_TAG_BYTES = 16
_CHALLENGE_BYTES = 16


def tag(directory: str, secrets: Mapping[str, Any], make: bool = True) -> str:
    """Return what distinguishes the secrets in a runtime directory; "" if there are none.

    Create the key of the directory if it is missing and `make` is true. Raise RendezvousError.
    """
    if not secrets:
        return ""
    return blake2b(_encoded(secrets), key=_key_of(directory, make), digest_size=_TAG_BYTES).hexdigest()


def _encoded(secrets: Mapping[str, Any]) -> bytes:
    return json.dumps(secrets, sort_keys=True, separators=(",", ":")).encode()


def _key_of(directory: str, make: bool) -> bytes:
    path = os.path.join(directory, _KEY_FILE)
    for _ in range(2):
        try:
            return _read(path)
        except FileNotFoundError:
            if not make:
                raise RendezvousError(f"{path}: it does not exist yet") from None
            _create(path)
        except OSError as error:
            pass_on(error)
            raise RendezvousError(f"{path}: {error.strerror}; make it readable, or remove it") from None
    raise RendezvousError(f"{path}: it was removed while it was read; try again")


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        key = ConcealedBytes(os.read(fd, _KEY_BYTES + 1))
    finally:
        os.close(fd)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
        raise RendezvousError(f"{path}: other users can read or have made this file; remove it")
    if len(key) != _KEY_BYTES:
        raise RendezvousError(f"{path}: it is not a key of {_KEY_BYTES} bytes; remove it")
    return key


def _create(path: str) -> None:
    """Create the file with its content at once, so that no other process reads a part. Keep one that appears first."""
    temporary = f"{path}.{os.urandom(8).hex()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, os.urandom(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.close(fd)
            os.unlink(temporary)
    except OSError as error:
        pass_on(error)
        raise RendezvousError(f"{path}: it cannot be created ({error.strerror}); check the runtime directory") from None


def proof(secrets: Mapping[str, Any], subject: str) -> str:
    """Return the proof of a process that it knows the secrets; "" if there are none.

    subject: what only this process can say, see attaching() and replacing().
    """
    if not secrets:
        return ""
    key = blake2b(_encoded(secrets)).digest()
    return blake2b(subject.encode(), key=key, digest_size=_KEY_BYTES).hexdigest()


def is_proof(claimed: Any, secrets: Mapping[str, Any], subject: str) -> bool:
    """Return whether `claimed` proves that the process of this subject knows the secrets."""
    expected = proof(secrets, subject)
    return isinstance(claimed, str) and claimed.isascii() and compare_digest(claimed, expected)


def attaching(challenge: str, arena_fd: int, pid: int | None) -> str:
    """Return the subject of a front-end that attaches with this arena.

    challenge   what the sender has sent on this connection
    pid         its process id; None at a sender that it names, which may be in another PID namespace. This is not 0,
                which the kernel tells a sender of each process in a PID namespace that the sender does not see.
    """
    status = os.fstat(arena_fd)
    return f"attach {challenge} {status.st_dev} {status.st_ino} {pid}"


def replacing(challenge: str, pid: int) -> str:
    """Return the subject of a process that takes over from a sender."""
    return f"replace {challenge} {pid}"


def new_challenge() -> str:
    """Return a challenge, which a sender accepts once, on one connection."""
    return os.urandom(_CHALLENGE_BYTES).hex()
