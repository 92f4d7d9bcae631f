"""A connection to the sender's control socket: who is there, and what it may pass to us."""

import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cyproducer.config import COMPRESSION_LEVELS
from cyproducer.kinds import is_topic_name
from cyproducer.record.compression import CODES
from cyproducer.shm import handshake

__all__ = ["AttachRequest", "Peer", "RefusedError", "has_ended", "parse_attach", "read_only", "topic_name"]

_SO_PEERGROUPS = 59  # socket(7); Python has no name for it
_GROUPS_BYTES_MAX = 1024  # the most that Python's getsockopt asks for: 256 groups
_FDINFO_BYTES_MAX = 4096
SLOTS_MAX = (4 << 30) // 4096
#: Half of those that a sender can know.
TOPICS_PER_FRONT_END = 8192
_INT_MAX = 2**31 - 1
#: (name, types, least, most)
_SETTINGS: tuple[tuple[str, tuple[type, ...], int, int], ...] = (
    ("acks", (int,), -1, 1),
    ("enable_idempotence", (bool,), 0, 1),
    ("linger_ms", (int, float), 0, _INT_MAX),
    ("delivery_timeout_ms", (int,), 0, _INT_MAX),
    ("retries", (int,), 0, _INT_MAX),
    ("sender_idle_timeout_ms", (int,), 0, _INT_MAX),
)


class RefusedError(Exception):
    """An attach is refused; `name` is what the front-end's answer carries."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Peer:
    """The other end of one connection, from accept to hang-up; a front-end once `attach_id` is not 0."""

    def __init__(self, sock: socket.socket, deadline: float | None) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.pid, self.uid, self.gid = handshake.peer_credentials(sock)
        self.deadline = deadline
        self.attach_id = 0
        self.pidfd = -1
        self.app = ""
        self.meta: dict[str, Any] = {}
        self.orderly = False
        self.awaits_end = False
        self.passed_on = False
        self.arena = (0, 0)
        self.wanted: set[str] = set()

    def note_want(self, name: str) -> None:
        """A topic that it asks for. Raises OverflowError if it asks for too many: others need some, too."""
        if len(self.wanted) >= TOPICS_PER_FRONT_END and name not in self.wanted:
            raise OverflowError(f"a front-end may ask for {TOPICS_PER_FRONT_END} topics")
        self.wanted.add(name)

    def take(self, request: "AttachRequest", others: Iterable["Peer"]) -> None:
        """Takes the pidfd over. Raises RefusedError if the arena is that of another front-end."""
        status = os.fstat(request.arena_fd)
        arena = status.st_dev, status.st_ino
        if any(other.arena == arena for other in others):
            raise RefusedError("MALFORMED", "the arena is attached already")
        self.arena, self.pidfd = arena, request.pidfd

    def groups(self) -> set[int]:
        """The peer's groups when it connected; of more than 256 supplementary ones none is seen."""
        try:
            data = self.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX)
        except OSError:
            data = b""
        return {self.gid, *struct.unpack(f"{len(data) // 4}I", data)}

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Sends without waiting; False if the peer does not take it."""
        try:
            handshake.send(self.socket, message, fds)
        except (OSError, handshake.HandshakeError):
            return False
        return True

    def hang_up(self) -> None:
        """Ends the connection for all who hold it, the supervisor too."""
        handshake.drain(self.socket)

    def close(self) -> None:
        """Closes the connection and the pidfd. Again: nothing."""
        if not (self.awaits_end or self.passed_on):  # whoever holds it last hangs up
            self.hang_up()
        self.socket.close()
        if self.pidfd >= 0:
            fd, self.pidfd = self.pidfd, -1
            os.close(fd)


class AttachRequest(NamedTuple):
    """A front-end's message, checked; the descriptors are still the caller's."""

    layout: int
    pid: int
    app: str
    slots: int
    settings: dict[str, Any]
    sender_settings: dict[str, Any]
    arena_fd: int
    pidfd: int
    wake_fd: int

    def check_agreement(self, settings: Mapping[str, Any]) -> None:
        """Raises RefusedError("SETTINGS") if the front-end expects another sender than one of these settings."""
        for name, value in sorted(self.sender_settings.items()):
            if name not in settings:
                raise RefusedError("SETTINGS", f"{name[:100]} is no setting of the sender")
            if settings[name] != value:
                text = f"{name} is {settings[name]!r} there and {value!r} here"
                raise RefusedError("SETTINGS", text[:1000])


def parse_attach(message: dict[str, Any], fds: list[int], peer_pid: int) -> AttachRequest:
    """Checks what needs no mapping of memory. Raises RefusedError with what is wrong."""
    if len(fds) != 3:
        raise RefusedError("MALFORMED", f"{len(fds)} descriptors came, 3 are needed")
    layout, pid, slots = (_integer(message, name) for name in ("layout", "pid", "slots"))
    if not 0 < slots <= SLOTS_MAX:
        raise RefusedError("MALFORMED", f"{slots} slots")
    settings, sender_settings = message.get("settings"), message.get("sender_settings")
    if not isinstance(settings, dict) or not isinstance(sender_settings, dict):
        raise RefusedError("MALFORMED", "the settings are missing")
    app = message.get("app")
    app = "".join(c for c in app if c.isprintable())[:100] if isinstance(app, str) else ""
    settings = _checked(settings)
    arena_fd, pidfd, wake_fd = fds
    try:
        _check_arena(arena_fd)
        _check_pidfd(pidfd, peer_pid)
        _check_wake(wake_fd)
    except OSError as error:
        raise RefusedError("REFUSED", f"the sender has no room for another front-end: {error}") from None
    return AttachRequest(layout, pid, app or "?", slots, settings, sender_settings, arena_fd, pidfd, wake_fd)


def topic_name(message: dict[str, Any]) -> str | None:
    """The topic that a "want" names; None if there is none. Raises ValueError for what Kafka calls no topic's name."""
    name = message.get("topic")
    if not isinstance(name, str):
        return None
    if not is_topic_name(name):
        raise ValueError(f"InvalidTopicError: {name[:40]!r} is no topic's name")
    return name


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd is no more (a stopped one is)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def read_only(fd: int) -> int:
    """Another descriptor of a memfd of ours that cannot be mapped writable; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _integer(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError("MALFORMED", f"{name} is no integer")
    return value


def _check_arena(fd: int) -> None:
    """A memfd at least: closing anything else, as a refusal does, may last. Its seals and size are checked later."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise RefusedError("MALFORMED", "the first descriptor is no memfd that is sealed") from None


def _check_pidfd(fd: int, peer_pid: int) -> None:
    """Without a pidfd of its own a front-end that dies with its socket inherited would never end."""
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(info, _FDINFO_BYTES_MAX).split(b"\n")
    finally:
        os.close(info)
    found = next((int(line[4:]) for line in lines if line.startswith(b"Pid:")), None)
    if found is None:
        raise RefusedError("MALFORMED", "the second descriptor is no pidfd")
    # 0 on either side: another PID namespace, whose numbers mean nothing here; -1: it is dead already.
    if found > 0 and peer_pid > 0 and found != peer_pid:
        raise RefusedError(
            "MALFORMED", f"the pidfd is of process {found}, not of {peer_pid}, which connected"
        )


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the sender computes with: of the types and ranges that Settings allows."""
    for name, kinds, least, most in _SETTINGS:
        value = settings.get(name)
        if type(value) not in kinds or not least <= value <= most:
            raise RefusedError("MALFORMED", f"{name} is {str(value)[:40]!r}")
    codec, level = settings.get("compression_type"), settings.get("compression_level")
    if codec is not None and (not isinstance(codec, str) or codec not in CODES):
        raise RefusedError("MALFORMED", f"compression_type is {str(codec)[:40]!r}")
    least, most = COMPRESSION_LEVELS.get(codec or "", (0, -1))
    if level is not None and (type(level) is not int or (codec is not None and not least <= level <= most)):
        raise RefusedError("MALFORMED", f"compression_level is {str(level)[:40]!r}")
    return {
        **{name: settings[name] for name, *_ in _SETTINGS},
        "compression_type": codec,
        "compression_level": level if codec else None,
    }


def _check_wake(fd: int) -> None:
    """A UNIX datagram socket with nothing in it: writing to it never waits if the writer says so, nor does closing.

    Anything else could make the sender wait; an eventfd too, since its O_NONBLOCK is shared with the front-end.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        raise RefusedError("MALFORMED", "the third descriptor is no socket") from None
    try:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
            raise RefusedError("MALFORMED", "the third descriptor is no UNIX datagram socket")
        sock.shutdown(socket.SHUT_RD)  # from here on nothing can be put into it
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        raise RefusedError("MALFORMED", "something lies in the third descriptor's socket")
    except BlockingIOError:
        pass
    except OSError as error:
        raise RefusedError("MALFORMED", f"the third descriptor: {error.strerror}") from None
    finally:
        sock.detach()
