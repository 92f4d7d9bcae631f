"""Where a front-end and its sender meet: the runtime directory, a sender's identity, its files' names.

Both sides and the command line compute these for themselves and have to agree, so all of it is a function of
the effective user, the PID namespace, the systemd service and the sender's settings. No secret is part of a
name or of what is hashed.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from cyproducer.shm.whereabouts import whereabouts

try:  # hashlib loads OpenSSL, which is 1.4 MB and 7 ms for every process that has no other use of it
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "Rendezvous",
    "RendezvousError",
    "Surroundings",
    "at_socket",
    "identity",
    "of_sender",
    "open_private",
    "public_settings",
    "runtime_directory",
    "senders_in",
    "service_name",
    "surroundings",
]

# A UNIX socket's address holds 108 bytes with the terminating zero (unix(7)).
SOCKET_PATH_BYTES_MAX = 107
_SOCKET_SUFFIX = ".sock"
_NAME_LENGTH = 16
_SECRET = re.compile(r"passw|secret|token|credential|jaas|private|(^|_)key($|_)", re.IGNORECASE)
# These belong to a front-end's wishes rather than to what the sender does: the largest one asked for counts.
_NOT_IDENTITY = frozenset({"sender", "sender_idle_timeout_ms"})


class RendezvousError(Exception):
    """There is no place to meet; the text names the directory and says what to do."""


class Surroundings(NamedTuple):
    """What besides the settings decides which sender serves a process. `cgroup`: the text of /proc/self/cgroup."""

    uid: int
    pid_namespace: int
    time_namespace: int
    cgroup: bytes


class Rendezvous(NamedTuple):
    """The files of one sender. `stem` is the path of most without a suffix.

    `description` says what the sender is, as JSON without secrets; it lies in the runtime directory, wherever
    the socket is.
    """

    stem: str
    socket: str
    description: str

    @property
    def lock(self) -> str:
        """Held with flock by the sender; only its holder unlinks, binds and ends."""
        return self.stem + ".lock"

    @property
    def spawn_lock(self) -> str:
        """Held with flock by the one front-end that is starting a sender."""
        return self.stem + ".spawn"

    @property
    def log(self) -> str:
        """Written by the sender; the former part has `.1` behind it."""
        return self.stem + ".log"


def runtime_directory(environ: Mapping[str, str] | None = None, make: bool = True) -> str:
    """The directory of this user's sockets: the effective user's, mode 0700, made if it is missing.

    CYPRODUCER_RUNTIME_DIR, or `cyproducer-UID` in the first of /run/user/UID, $TMPDIR or /tmp, and /dev/shm
    that can be written. Raises RendezvousError, also for one that is missing if it is not to be made.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid()
    explicit = environ.get("CYPRODUCER_RUNTIME_DIR", "")
    if explicit:
        path = os.path.abspath(explicit)
        problem = _ensure_private(path, uid, make, repair=False)
        if problem:
            raise RendezvousError(f"CYPRODUCER_RUNTIME_DIR={explicit}: {problem}")
        return path
    problems = []
    for parent in (f"/run/user/{uid}", environ.get("TMPDIR") or "/tmp", "/dev/shm"):
        path = os.path.join(os.path.abspath(parent), f"cyproducer-{uid}")
        problem = _ensure_private(path, uid, make, repair=make)
        if not problem:
            return path
        problems.append(f"{path}: {problem}")
    raise RendezvousError(
        "no directory for the sender's socket: "
        + "; ".join(problems)
        + ". Set CYPRODUCER_RUNTIME_DIR to a directory that this user owns (mode 0700)"
    )


def _ensure_private(path: str, uid: int, make: bool, repair: bool) -> str:
    """Makes the directory if it is missing; what is wrong with it, or an empty string."""
    if not make and not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        raise RendezvousError(f"{path}: it is not there yet")
    if len(os.fsencode(path)) + 1 + _NAME_LENGTH + len(_SOCKET_SUFFIX) > SOCKET_PATH_BYTES_MAX:
        return f"too long a path for a socket in it ({SOCKET_PATH_BYTES_MAX} bytes); use a shorter directory"
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return "it is not a directory (a symbolic link is not followed); remove it or use another"
        if status.st_uid != uid:
            return f"it belongs to uid {status.st_uid}, not to the effective uid {uid}; use another directory"
        if stat.S_IMODE(status.st_mode) != 0o700:
            if not repair:
                return f"its mode is {stat.S_IMODE(status.st_mode):04o}; run: chmod 700 {path}"
            os.chmod(path, 0o700)  # made a moment ago under an unusual umask, by us or a neighbour
    except OSError as error:
        return f"{error.strerror}; make it writable or use another directory"
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return "it cannot be written; make it writable or use another directory"
    return ""


def open_private(path: str, flags: int) -> int:
    """Opens, or makes, a file of the runtime directory for this user alone, whatever the umask is."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
        os.fchmod(fd, 0o600)
    return fd


def service_name(cgroup: str) -> str:
    """The systemd service in the text of /proc/self/cgroup, or an empty string.

    Stopping a service ends all that its cgroup holds, the sender too, so a service has a sender of its own. A
    user's manager (`user@1000.service`) is no service in this sense: its sessions share a sender.
    """
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "name=systemd"):
            continue
        for part in reversed(path.split("/")):
            if part.endswith(".service") and not part.startswith("user@"):
                return part
    return ""


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make one sender differ from another, without secrets."""
    return {
        name: value
        for name, value in sorted(settings.items())
        if name not in _NOT_IDENTITY and not _SECRET.search(name)
    }


def surroundings() -> Surroundings:
    """Of this process, now."""
    return Surroundings(*whereabouts()[:4])


def identity(
    layout_version: int, settings: Mapping[str, Any], where: Surroundings | None = None
) -> dict[str, Any]:
    """All that decides which sender serves a process (None: this one), for JSON."""
    where = where or surroundings()
    return {
        "layout": layout_version,
        "uid": where.uid,
        "pid_namespace": where.pid_namespace,
        "time_namespace": where.time_namespace,
        "service": service_name(where.cgroup.decode(errors="replace")),
        "settings": public_settings(settings),
    }


def of_sender(directory: str, description: Mapping[str, Any]) -> Rendezvous:
    """The files of the sender of an `identity()`, in a runtime directory."""
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    stem = os.path.join(directory, _short_name(canonical.encode()))
    return Rendezvous(stem, stem + _SOCKET_SUFFIX, stem + ".json")


def at_socket(path: str, directory: str) -> Rendezvous:
    """The files of a sender that was given the path of its socket; only the description is in `directory`.

    Raises RendezvousError if the path is too long for a socket.
    """
    path = os.path.abspath(path)
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise RendezvousError(
            f"{path}: longer than a UNIX socket's path may be ({SOCKET_PATH_BYTES_MAX} bytes)"
        )
    name = _short_name(b"socket\0" + os.fsencode(path))
    return Rendezvous(path.removesuffix(_SOCKET_SUFFIX), path, os.path.join(directory, name + ".json"))


def _short_name(data: bytes) -> str:
    return blake2b(data).hexdigest()[:_NAME_LENGTH]


def senders_in(directory: str) -> list[dict[str, Any]]:
    """The descriptions of the senders of a runtime directory; one that was killed may be among them."""
    found = []
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    for name in names:
        if not name.endswith(".json"):
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, encoding="utf-8") as file:
                description = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(description, dict) and isinstance(description.get("socket"), str):
            found.append(description)
    return found
