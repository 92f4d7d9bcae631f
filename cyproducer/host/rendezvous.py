"""Computes where a front-end finds its sender: runtime directory, identity of the sender, paths of its files.

Front-end, sender and command line compute these separately and must get the same result. So everything depends only on
the effective user, the namespaces, the cgroup and the sender's settings. credentials.py says how secrets count.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cyproducer.config.secrets import is_secret_name
from cyproducer.config.table import SENDER, SETTINGS
from cyproducer.host.interrupts import pass_on
from cyproducer.host.trust import why_untrusted
from cyproducer.shm.native import process_environment

try:  # hashlib loads OpenSSL, which costs 1.4 MB and 7 ms in a process that does not use it otherwise
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "ProcessEnvironment",
    "Rendezvous",
    "RendezvousError",
    "at_socket",
    "blake2b",
    "cgroup_name",
    "comparable_servers",
    "create_private",
    "current_environment",
    "default_directories",
    "existing_directories",
    "identity",
    "of_sender",
    "open_private",
    "places_in_use",
    "private_directory",
    "public_settings",
    "runtime_directory",
    "searched_directories",
    "secret_settings",
    "senders_in",
    "set_socket_mode",
]

# A UNIX socket's address has space for 108 bytes, with the terminating zero (unix(7)).
SOCKET_PATH_BYTES_MAX = 107
_SOCKET_SUFFIX = ".sock"
_VARIABLE = "CYPRODUCER_RUNTIME_DIR"
_NAME_LENGTH = 16
_LOGIN_SESSION = re.compile(r"/session-[^/]+\.scope(/.*)?$")
_LOCALHOST = re.compile(r"^localhost:")
_SLURM_TASK = re.compile(r"(/job_\d+/step_[^/]+)/.*$")
_NOT_IDENTITY = frozenset(row.name for row in SETTINGS if row.side != SENDER)


class RendezvousError(Exception):
    """No directory or path can be used for the sender's files; the text names it and says what to do."""


class ProcessEnvironment(NamedTuple):
    """The properties of a process that decide, besides the settings, which sender serves it.

    uid                the effective user
    pid_namespace      its end kills the sender
    time_namespace     decides which time the clocks show
    network_namespace  decides to which broker an address leads
    mount_namespace, root_directory
                       decide the content of /etc/hosts and /etc/resolv.conf, and so the addresses of names
    cgroup_namespace   decides to what the paths in `cgroup` are relative
    cgroup             the text of /proc/self/cgroup; the end and the limits of a cgroup also apply to the sender
    """

    uid: int
    pid_namespace: int
    time_namespace: int
    network_namespace: int
    mount_namespace: int
    cgroup_namespace: int
    root_directory: tuple[int, int]
    cgroup: bytes

    @classmethod
    def of(cls, where: tuple[Any, ...]) -> "ProcessEnvironment":
        """Return the environment from the result of process_environment()."""
        return cls(*where[: len(cls._fields)])


class Rendezvous(NamedTuple):
    """The files of one sender. `stem` is the path of most of them without the suffix.

    `description` describes the sender as JSON without secrets. It is in the runtime directory, wherever the socket is.
    """

    stem: str
    socket: str
    description: str

    @property
    def is_private(self) -> bool:
        """Whether all files are in the runtime directory; else a user has chosen the path of the socket."""
        return self.description == self.stem + ".json"

    @property
    def lock(self) -> str:
        """The lock file, which the sender holds with flock(); only its holder binds and unlinks the socket."""
        return self.stem + ".lock"

    @property
    def spawn_lock(self) -> str:
        """The lock file, which the one front-end that starts a sender holds with flock()."""
        return self.stem + ".spawn"

    @property
    def log(self) -> str:
        """The log of the sender; its older part has the suffix `.1` in addition."""
        return self.stem + ".log"

    @property
    def failures(self) -> str:
        """The ledger of failures, written by the supervisor. It remains after the end of the sender."""
        return self.description.removesuffix(".json") + ".failures"


def runtime_directory(make: bool = True) -> str:
    """Return the directory for this user's sockets, and create it if it is missing and `make` is true.

    It is CYPRODUCER_RUNTIME_DIR, or the first of default_directories() that can be used. It belongs to the effective
    user and has mode 0700. Raise RendezvousError if there is none, also if it is missing and `make` is false.
    """
    uid = os.geteuid()
    explicit = os.environ.get(_VARIABLE, "")
    if explicit:
        path = os.path.abspath(explicit)
        problem = _ensure_private(path, uid, make, default=False)
        if problem:
            raise RendezvousError(f"{_VARIABLE}={explicit}: {problem}")
        return path
    problems = []
    for path in default_directories(uid):
        problem = _ensure_private(path, uid, make, default=True)
        if not problem:
            return path
        problems.append(f"{path}: {problem}")
    raise RendezvousError(
        "no directory can be used for the sender's socket: "
        + "; ".join(problems)
        + f". Set {_VARIABLE} to a directory for this user alone; it is created if its parent exists"
    )


def default_directories(uid: int) -> list[str]:
    """Return where the directory of a user may be without CYPRODUCER_RUNTIME_DIR, in the order of preference.

    It does not depend on other environment variables or a login: all processes of the user, from a service, cron or a
    shell, must find the same directory. /run/user/UID exists only while the user is logged in, so it is the last: it is
    used if another user has taken the names in the other directories.
    """
    return [f"{parent}/cyproducer-{uid}" for parent in ("/tmp", "/dev/shm", f"/run/user/{uid}")]


def existing_directories() -> list[str]:
    """Return the existing runtime directories of this user, the preferred one first. Create and change none.

    Raise RendezvousError if CYPRODUCER_RUNTIME_DIR names one that cannot be used.
    """
    uid = os.geteuid()
    explicit = os.environ.get(_VARIABLE, "")
    if not explicit:
        return [path for path in default_directories(uid) if os.path.lexists(path) and _is_ours(path, uid)]
    path = os.path.abspath(explicit)
    if not os.path.lexists(path):
        return []
    problem = _why_not_private(path, uid, default=False)
    if problem:
        raise RendezvousError(f"{_VARIABLE}={explicit}: {problem}")
    return [path]


def searched_directories() -> list[str]:
    """Return the directories in which senders of this user are searched, existing or not."""
    explicit = os.environ.get(_VARIABLE, "")
    return [os.path.abspath(explicit)] if explicit else default_directories(os.geteuid())


def _ensure_private(path: str, uid: int, make: bool, default: bool) -> str:
    """Create the directory if it is missing and `make` is true; return what is wrong with it, or ""."""
    if not make and not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        raise RendezvousError(f"{path}: it does not exist yet")
    if len(os.fsencode(path)) + 1 + _NAME_LENGTH + len(_SOCKET_SUFFIX) > SOCKET_PATH_BYTES_MAX:
        return f"the path is too long for a socket in it (at most {SOCKET_PATH_BYTES_MAX} bytes); use a shorter one"
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
    except OSError as error:
        pass_on(error)
        return f"{error.strerror}; use a directory that this user can create and write to"
    return _why_not_private(path, uid, default)


def _why_not_private(path: str, uid: int, default: bool) -> str:
    """Return why a directory may not be used; "" if it may. Correct the mode of a default directory of this user."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return "it is not a directory (a symbolic link is not followed); use a directory"
        if status.st_uid != uid:
            return f"it belongs to uid {status.st_uid}, not to the effective uid {uid}; use another directory"
        if default:
            problem = why_untrusted(path, os.lstat("/").st_uid, uid)
            if problem:
                return f"{problem}; use another directory"
        if stat.S_IMODE(status.st_mode) != 0o700:
            if not default:
                # Do not advise "chmod": the directory may be /tmp, which other users need.
                mode = stat.S_IMODE(status.st_mode)
                return (
                    f"its mode is {mode:04o}, but only 0700 keeps other users from the senders' files. Use a separate "
                    f"directory, such as {os.path.join(path, 'cyproducer')}; it is created if it is missing"
                )
            os.chmod(path, 0o700)  # created a moment ago with an unusual umask, by this or another process
    except OSError as error:
        pass_on(error)
        return f"{error.strerror}; use a directory that this user can create and write to"
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return "this user may not write to it; use a directory that this user can create and write to"
    return ""


def _is_ours(path: str, uid: int) -> bool:
    """Return whether only this user and root can have put files into a default directory."""
    try:
        status = os.lstat(path)
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022
        return ours and not why_untrusted(path, os.lstat("/").st_uid, uid)
    except OSError as error:
        pass_on(error)
        return False


def private_directory(path: str) -> str:
    """Create a runtime directory again if it is missing; return what is wrong with it, or ""."""
    return _ensure_private(path, os.geteuid(), make=True, default=False)


def open_private(path: str, flags: int) -> int:
    """Open or create a file of a sender with mode 0600, independent of the umask.

    Raise OSError if the file is not a regular file of this user with one name. The lock of a sender with a socket path
    of its own may be in a directory that other users can write: there another user could have made the file, to hold
    its lock, or could have linked it to another file of this user, whose mode would be changed.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            text = "not a regular file of this user with one name; remove it, or use a directory of this user"
            raise OSError(errno.EPERM, text, path)
        if stat.S_IMODE(status.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_private(path: str) -> int:
    """Create a file with mode 0600 for writing, and remove one that an ended process has left at the path.

    Raise OSError, also if another user has created a file there.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def set_socket_mode(path: str, mode: int) -> None:
    """Set the mode of a socket of this user. Raise OSError, also if the path names another file by then."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "not a socket of this user", path)
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def cgroup_name(cgroup: str) -> str:
    """Return the cgroups from the text of /proc/self/cgroup whose members share a sender: paths, or an empty string.

    A sender stays in the cgroup of the process that started it. If that cgroup is killed, frozen or limited (a systemd
    service or scope, a Slurm step, a container), so is the sender. So processes of other cgroups must not depend on it.
    Two kinds of cgroups share a sender: the login sessions of a user, after which processes may by default continue,
    and the tasks of a Slurm step, which ends as a whole.
    """
    paths = set()
    for line in cgroup.splitlines():
        path = line.partition(":")[2].partition(":")[2]
        path = _LOGIN_SESSION.sub("", _SLURM_TASK.sub(r"\1", path))
        if path not in ("", "/"):
            paths.add(path)
    return " ".join(sorted(paths))


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that distinguish senders, without secrets, in the form in which they are compared."""
    found = {
        name: value
        for name, value in sorted(settings.items())
        if name not in _NOT_IDENTITY and not is_secret_name(name)
    }
    if "bootstrap_servers" in found:
        found["bootstrap_servers"] = comparable_servers(found["bootstrap_servers"], settings)
    return found


def comparable_servers(servers: Any, settings: Mapping[str, Any]) -> Any:
    """Return a sender's bootstrap servers in the form in which they are compared: `localhost` is 127.0.0.1.

    With TLS and Kerberos the name matters, because the broker has to prove it. Then, and if `settings` do not say what
    protocol the sender uses, return the servers as they are.
    """
    protocol, mechanism = settings.get("security_protocol"), settings.get("sasl_mechanism")
    if protocol != "PLAINTEXT" and (protocol != "SASL_PLAINTEXT" or mechanism == "GSSAPI"):
        return servers
    if not isinstance(servers, list | tuple) or not all(isinstance(server, str) for server in servers):
        return servers
    return sorted({_LOCALHOST.sub("127.0.0.1:", server) for server in servers})


def secret_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the secrets among a sender's settings."""
    return {name: value for name, value in sorted(settings.items()) if is_secret_name(name)}


def current_environment() -> ProcessEnvironment:
    """Return the present environment of this process."""
    return ProcessEnvironment.of(process_environment())


def identity(
    layout_version: int, settings: Mapping[str, Any], where: ProcessEnvironment | None = None, credentials: str = ""
) -> dict[str, Any]:
    """Return everything that decides which sender serves a process (`where` None: this one), for JSON.

    credentials: the tag of the secrets (credentials.py), "" without secrets.
    """
    where = where or current_environment()
    return {
        **({"credentials": credentials} if credentials else {}),
        "layout": layout_version,
        "uid": where.uid,
        "pid_namespace": where.pid_namespace,
        "time_namespace": where.time_namespace,
        "network_namespace": where.network_namespace,
        "mount_namespace": where.mount_namespace,
        "cgroup_namespace": where.cgroup_namespace,
        "root_directory": list(where.root_directory),
        "cgroup": cgroup_name(where.cgroup.decode(errors="replace")),
        "settings": public_settings(settings),
    }


def of_sender(directory: str, description: Mapping[str, Any]) -> Rendezvous:
    """Return the files of the sender with this identity(), in a runtime directory."""
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    stem = os.path.join(directory, _short_name(canonical.encode()))
    return Rendezvous(stem, stem + _SOCKET_SUFFIX, stem + ".json")


def places_in_use(describe: Callable[[str], Mapping[str, Any]]) -> list[Rendezvous]:
    """Return the files of a sender in each runtime directory that has its socket.

    describe: returns the identity() of the sender in a directory, or raises RendezvousError if there can be none.
    """
    places = []
    for directory in existing_directories():
        with contextlib.suppress(RendezvousError):
            places.append(of_sender(directory, describe(directory)))
    return [place for place in places if os.path.lexists(place.socket)]


def at_socket(path: str, directory: str) -> Rendezvous:
    """Return the files of a sender with a chosen socket path; description and ledger are in `directory`.

    Raise RendezvousError if the path is too long for a socket.
    """
    path = os.path.abspath(path)
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise RendezvousError(
            f"{path}: too long for the path of a UNIX socket (at most {SOCKET_PATH_BYTES_MAX} bytes); use a shorter one"
        )
    name = _short_name(b"socket\0" + os.fsencode(path))
    return Rendezvous(path.removesuffix(_SOCKET_SUFFIX), path, os.path.join(directory, name + ".json"))


def _short_name(data: bytes) -> str:
    return blake2b(data).hexdigest()[:_NAME_LENGTH]


def senders_in(directory: str) -> list[dict[str, Any]]:
    """Return the descriptions of the senders of a runtime directory; killed senders may be among them."""
    found = []
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        pass_on(error)
        return []
    for name in names:
        if not name.endswith(".json"):
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, encoding="utf-8") as file:
                description = json.load(file)
        except (OSError, ValueError) as error:
            pass_on(error)
            continue
        if isinstance(description, dict) and isinstance(description.get("socket"), str):
            found.append(description)
    return found
