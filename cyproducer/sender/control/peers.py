"""Handles the connections to the sender's control socket: identifies each peer and checks what it sends."""

import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cyproducer.config.concealed import shown
from cyproducer.config.kinds import is_topic_name
from cyproducer.config.settings import COMPRESSION_LEVELS
from cyproducer.host import control_messages, limits
from cyproducer.host.credentials import new_challenge
from cyproducer.record.compression import CODES
from cyproducer.sender.system import dropped

__all__ = [
    "OWNER",
    "STRANGERS",
    "AttachRequest",
    "Peer",
    "RefusedError",
    "has_ended",
    "parse_attach",
    "read_only",
    "refusal",
    "resource_refusal",
    "topic_name",
]

#: The accounts of quotas.py: whose connections count together. Any other account is the uid of an admitted user.
OWNER, STRANGERS = -1, -2
_SO_PEERGROUPS = 59  # socket(7); Python has no name for it
_GROUPS_BYTES_MAX = 1024  # the largest buffer that Python's getsockopt allows: 256 groups
_FDINFO_BYTES_MAX = 4096
SLOTS_MAX = (4 << 30) // 4096
TRANSACTIONAL_ID_BYTES_MAX = 255
#: To make a byte of a long answer costs as much time as to read so many of a message.
ANSWER_COST = 4
TRANSACTION_TIMEOUT_MS = 60_000  # if the front-end does not say it
#: Half of the topics that a sender can know.
TOPICS_PER_FRONT_END = 8192
_INT_MAX = 2**31 - 1
#: (name, types, minimum, maximum)
_SETTINGS: tuple[tuple[str, tuple[type, ...], int, int], ...] = (
    ("acks", (int,), -1, 1),
    ("enable_idempotence", (bool,), 0, 1),
    ("linger_ms", (int, float), 0, _INT_MAX),
    ("delivery_timeout_ms", (int,), 0, _INT_MAX),
    ("retries", (int,), 0, _INT_MAX),
    ("batch_size", (int,), 0, _INT_MAX),
    ("sender_idle_timeout_ms", (int,), 0, _INT_MAX),
    ("metrics_num_samples", (int,), 1, 10),
    ("metrics_sample_window_ms", (int,), 1, _INT_MAX),
)


class RefusedError(Exception):
    """Refuses an attach. `name` is the error name in the answer, `shortage` is as in host/limits.py."""

    def __init__(self, name: str, text: str, shortage: str = "") -> None:
        super().__init__(text)
        self.name = name
        self.shortage = shortage

    def answer(self, replaceable: bool) -> dict[str, Any]:
        """Return the answer to the front-end. If resources are short, it contains the limits of this process."""
        answer = refusal(self.name, str(self))
        if self.shortage:
            answer |= {"shortage": self.shortage, "limits": limits.current(), "replaceable": replaceable}
        return answer


def resource_refusal(error: BaseException) -> RefusedError:
    """Return the refusal for lack of resources; it names the limits of this process that may be the reason."""
    shortage = limits.shortage_of(error)
    text = f"the sender has too few resources for another front-end: {str(error) or type(error).__name__}"
    if shortage:
        text += f"; its limit is {limits.describe(shortage, limits.current())}"
    return RefusedError("REFUSED", text, shortage)


def refusal(name: str, text: str) -> dict[str, Any]:
    """Return the answer that refuses a request: `name` is the reason for programs, `text` for readers."""
    return {"ok": False, "error": name, "message": text}


class Peer:
    """The other end of one connection, from accept to hang-up. It is a front-end if `attach_id` is not 0.

    pid           from the kernel; 0: the process is in a PID namespace that is not visible from here
    claimed_pid   what the front-end's attach request says; only for logs and the status
    commands_of   attach id of the transactional front-end whose commands come on this connection; 0: none has come
    commands      how many of them have no answer yet
    cost_bytes    what its last answer counts, as bytes of a message: see message_budget.py
    """

    def __init__(self, sock: socket.socket, deadline: float | None) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.pid, self.uid, self.gid = control_messages.peer_credentials(sock)
        self.claimed_pid = 0
        self.deadline = deadline
        self.account = OWNER if self.is_owner else self.uid
        self.attach_id = 0
        self.pidfd = -1
        self.app = ""
        self.meta: dict[str, Any] = {}
        self.orderly = False
        self.awaits_end = False
        self.passed_on = False
        self.awaits_retry = False
        self.vouched = False  # it has shown a valid OAuth token
        self.challenge = ""  # what its next proof must be about; "": it has asked for none
        self.arena = (0, 0)
        self.wanted: set[str] = set()
        self.refusal_logged = False
        self.unread_descriptors = 0  # at most so many; unread.py
        self.cost_bytes = 0
        self.commands_of = 0
        self.commands = 0

    @property
    def is_owner(self) -> bool:
        """Whether the peer belongs to the user of this process, or to root."""
        return self.uid in (0, os.geteuid())

    @property
    def shown_pid(self) -> int:
        """The process id for logs and the status."""
        return self.pid or self.claimed_pid

    def send_challenge(self) -> None:
        """Send what its next proof must be about."""
        self.challenge = new_challenge()
        self.send({"ok": True, "challenge": self.challenge})

    def take_challenge(self) -> str:
        """Return the challenge, which is good for one proof; "" if it has asked for none."""
        challenge, self.challenge = self.challenge, ""
        return challenge

    def note_want(self, name: str) -> bool:
        """Note a topic that it requests; True for the first request. Raise OverflowError for too many topics."""
        if name in self.wanted:
            return False
        if len(self.wanted) >= TOPICS_PER_FRONT_END:
            raise OverflowError(
                f"a process may send to at most {TOPICS_PER_FRONT_END} topics: use fewer names in one process"
            )
        self.wanted.add(name)
        return True

    def take(self, request: "AttachRequest", others: Iterable["Peer"]) -> None:
        """Take the pidfd over. Raise RefusedError if the arena belongs to another front-end already."""
        status = os.fstat(request.arena_fd)
        arena = status.st_dev, status.st_ino
        if any(other.arena == arena for other in others):
            raise RefusedError("MALFORMED", "the arena is attached already")
        self.arena, self.pidfd = arena, request.pidfd

    def groups(self) -> set[int]:
        """Return the peer's groups when it connected; only `gid` if it has more than 256 supplementary groups."""
        try:
            data = self.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX)
        except OSError:
            data = b""
        return {self.gid, *struct.unpack(f"{len(data) // 4}I", data)}

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Send without waiting; False if the message could not be sent."""
        try:
            control_messages.send(self.socket, message, fds)
        except (OSError, control_messages.HandshakeError):
            return False
        self.unread_descriptors += len(fds)
        return True

    def send_file(self, name: str, data: bytes) -> None:
        """Send {"ok": true} with a memfd of the data. Raise OSError."""
        self.cost_bytes += ANSWER_COST * len(data)
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            with open(os.dup(fd), "wb") as file:
                file.write(data)
            self.send({"ok": True}, (fd,))
        finally:
            os.close(fd)

    def has_message(self) -> bool:
        """Return whether a message has arrived, not the end of the connection. Raise BlockingIOError for neither."""
        data, _, flags, _ = self.socket.recvmsg(1, 0, socket.MSG_PEEK)
        return bool(data or flags)

    def hang_up(self) -> None:
        """End the connection for all processes that hold it, also for the supervisor."""
        dropped.shut(self.socket)

    def close(self) -> None:
        """Close the connection and the pidfd. A second call does nothing."""
        if self.awaits_end or self.passed_on:  # such a connection ends when its last holder closes it
            self.socket.close()
        else:
            dropped.drop(self.socket)
        if self.pidfd >= 0:
            fd, self.pidfd = self.pidfd, -1
            os.close(fd)


class AttachRequest(NamedTuple):
    """The checked attach message of a front-end. The caller still owns the descriptors."""

    layout: int
    pid: int
    app: str
    slots: int
    settings: dict[str, Any]
    sender_settings: dict[str, Any]
    arena_fd: int
    pidfd: int
    wake_fd: int

    def meta(self, peer_pid: int) -> dict[str, Any]:
        """Return what a successor needs to know of the front-end. `peer_pid` 0: its pid is not visible from here."""
        return {"app": self.app, "pid": peer_pid or self.pid, "slots": self.slots, "settings": self.settings}

    def check_agreement(self, settings: Mapping[str, Any]) -> None:
        """Raise RefusedError("SETTINGS") if the front-end expects a sender with other settings."""
        for name, value in sorted(self.sender_settings.items()):
            if name not in settings:
                raise RefusedError("SETTINGS", f"the sender has no setting {name[:100]}")
            if settings[name] != value:
                theirs, ours = shown(name, settings[name]), shown(name, value)
                text = f"{name} is {theirs} in the running sender and {ours} in this process"
                raise RefusedError("SETTINGS", text[:1000])

    def check_network(self, theirs: Any, ours: int) -> None:
        """Raise RefusedError("NETWORK") if the front-end's broker addresses may mean other brokers here."""
        if theirs != ours and "bootstrap_servers" in self.sender_settings:
            raise RefusedError(
                "NETWORK",
                "there the addresses in bootstrap_servers may lead to other brokers; leave bootstrap_servers out to "
                "use the brokers of that sender, or start a sender in the network namespace of this process",
            )


def parse_attach(message: dict[str, Any], fds: list[int], peer_pid: int) -> AttachRequest:
    """Check an attach message without mapping memory, and return it. Raise RefusedError that names the defect."""
    if len(fds) != 3:
        raise RefusedError("MALFORMED", f"{len(fds)} descriptors came, an attach needs 3")
    layout, pid, slots = (_integer(message, name) for name in ("layout", "pid", "slots"))
    if not 0 < slots <= SLOTS_MAX:
        raise RefusedError("MALFORMED", f"slots is {slots}, allowed are 1 to {SLOTS_MAX}")
    settings, sender_settings = message.get("settings"), message.get("sender_settings")
    if not isinstance(settings, dict) or not isinstance(sender_settings, dict):
        raise RefusedError("MALFORMED", "settings or sender_settings is missing")
    app = message.get("app")
    app = "".join(c for c in app if c.isprintable())[:100] if isinstance(app, str) else ""
    settings = _checked(settings)
    arena_fd, pidfd, wake_fd = fds
    try:
        _check_arena(arena_fd)
        _check_pidfd(pidfd, peer_pid)
        _check_wake(wake_fd)
    except OSError as error:
        raise resource_refusal(error) from None
    return AttachRequest(layout, pid, app or "?", slots, settings, sender_settings, arena_fd, pidfd, wake_fd)


def topic_name(message: dict[str, Any]) -> str | None:
    """Return the topic of a "want"; None if it has none. Raise ValueError if Kafka does not allow the name."""
    name = message.get("topic")
    if not isinstance(name, str):
        return None
    if not is_topic_name(name):
        raise ValueError(f"InvalidTopicError: {name[:40]!r} is not a valid topic name")
    return name


def wanted_partition(message: dict[str, Any]) -> int:
    """Return the partition of a "want"; 0 if it has none."""
    partition = message.get("partition")
    if not isinstance(partition, int) or isinstance(partition, bool):
        return 0
    return max(partition, 0)


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended; a stopped process has not ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def read_only(fd: int) -> int:
    """Return a new descriptor of this sender's memfd that cannot be mapped writable; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _integer(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError("MALFORMED", f"{name} is not an integer")
    return value


def _check_arena(fd: int) -> None:
    """Refuse a descriptor that is not a memfd.

    The engine closes the arena if it refuses the attach, and close() of another kind of file may take long. The engine
    checks seals and size later.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise RefusedError("MALFORMED", "the first descriptor is no memfd that is sealed") from None


def _check_pidfd(fd: int, peer_pid: int) -> None:
    """Refuse a descriptor that is not the front-end's own pidfd.

    Without it the sender would not notice the death of a front-end whose socket another process has inherited.
    """
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(info, _FDINFO_BYTES_MAX).split(b"\n")
    finally:
        os.close(info)
    found = next((int(line[4:]) for line in lines if line.startswith(b"Pid:")), None)
    if found is None:
        raise RefusedError("MALFORMED", "the second descriptor is not a pidfd")
    # 0 on either side: the process is in another PID namespace, so the pids cannot be compared. -1: it has ended.
    if found > 0 and peer_pid > 0 and found != peer_pid:
        raise RefusedError("MALFORMED", f"the pidfd is that of process {found}, but process {peer_pid} has connected")


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the sender uses. Raise RefusedError for types and ranges that Settings refuses."""
    for name, kinds, minimum, maximum in _SETTINGS:
        value: Any = settings.get(name)
        if type(value) not in kinds or not minimum <= value <= maximum:
            raise RefusedError("MALFORMED", f"{name} has an invalid value: {str(value)[:40]!r}")
    codec, level = settings.get("compression_type"), settings.get("compression_level")
    if codec is not None and (not isinstance(codec, str) or codec not in CODES):
        raise RefusedError("MALFORMED", f"compression_type has an invalid value: {str(codec)[:40]!r}")
    minimum, maximum = COMPRESSION_LEVELS.get(codec or "", (0, -1))
    if level is not None and (type(level) is not int or (codec is not None and not minimum <= level <= maximum)):
        raise RefusedError("MALFORMED", f"compression_level has an invalid value: {str(level)[:40]!r}")
    return {
        **{name: settings[name] for name, *_ in _SETTINGS},
        "compression_type": codec,
        "compression_level": level if codec else None,
        **_checked_transactional(settings),
    }


def _checked_transactional(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a transactional producer. An older front-end has none of them."""
    name, timeout_ms = settings.get("transactional_id"), settings.get("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
    if name is not None and not _is_transactional_id(name):
        raise RefusedError("MALFORMED", f"transactional_id has an invalid value: {ascii(name)[:40]}")
    if type(timeout_ms) is not int or not 1 <= timeout_ms <= _INT_MAX:
        raise RefusedError("MALFORMED", f"transaction_timeout_ms has an invalid value: {str(timeout_ms)[:40]!r}")
    if name is not None and (settings["acks"] != -1 or not settings["enable_idempotence"]):
        raise RefusedError("MALFORMED", "acks or enable_idempotence has a value that transactional_id does not allow")
    joined: Any = settings.get("joined_transaction")
    if joined is not None and (name is None or not _is_transaction(joined)):
        raise RefusedError("MALFORMED", f"joined_transaction has an invalid value: {str(joined)[:40]!r}")
    return {"transactional_id": name, "transaction_timeout_ms": timeout_ms, "joined_transaction": joined}


def _is_transaction(value: Any) -> bool:
    """Return whether it is [producer id, epoch, whether it uses KIP-890]."""
    if not isinstance(value, list) or [type(each) for each in value] != [int, int, bool]:
        return False
    producer_id, epoch, _ = value
    return bool(0 <= producer_id < 1 << 63 and 0 <= epoch < 1 << 15)


def _is_transactional_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and 0 < len(value.encode()) <= TRANSACTIONAL_ID_BYTES_MAX
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        return False


def _check_wake(fd: int) -> None:
    """Refuse a descriptor that is not an empty UNIX datagram socket.

    Writing to such a socket with MSG_DONTWAIT never waits, and neither does closing it. Any other descriptor could make
    the sender wait, even an eventfd: the front-end shares its O_NONBLOCK flag and may clear it.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        raise RefusedError("MALFORMED", "the third descriptor is not a socket") from None
    try:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
            raise RefusedError("MALFORMED", "the third descriptor is not a UNIX datagram socket")
        sock.shutdown(socket.SHUT_RD)  # from here on no datagram can arrive
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        raise RefusedError("MALFORMED", "the socket of the third descriptor is not empty")
    except BlockingIOError:
        pass
    except OSError as error:
        raise RefusedError("MALFORMED", f"the third descriptor cannot be checked: {error.strerror}") from None
    finally:
        sock.detach()
