"""Represents the connections to the sender's control socket: who is at the other end, and what it is sent."""

import os
import select
import socket
import struct
from collections.abc import Iterable
from typing import Any

from cyproducer.config.table import BY_NAME
from cyproducer.host import control_messages, limits
from cyproducer.host.credentials import new_challenge
from cyproducer.sender.system import dropped
from cyproducer.shm.native import TOPICS_MAX

__all__ = [
    "OWNER",
    "STRANGERS",
    "Peer",
    "RefusedError",
    "has_ended",
    "read_only",
    "refusal",
    "resource_refusal",
]

#: The accounts of quotas.py: whose connections count together. Any other account is the uid of an admitted user.
OWNER, STRANGERS = -1, -2
_SO_PEERGROUPS = 59  # socket(7); Python has no name for it
_GROUPS_BYTES_MAX = 1024  # the largest buffer that Python's getsockopt allows: 256 groups
#: To make a byte of a long answer costs as much time as to read so many of a message.
ANSWER_COST = 4
#: Half of the topics that a sender can know.
TOPICS_PER_FRONT_END = TOPICS_MAX // 2


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
    meta          what the supervisor keeps of a front-end; empty if it is none
    commands_of   attach id of the transactional front-end whose commands come on this connection; 0: none has come
    commands      how many of them have no answer yet
    cost_bytes    what its last answer counts, as bytes of a message: see quotas.py
    """

    def __init__(self, sock: socket.socket, deadline: float | None) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.pid, self.uid, self.gid = control_messages.peer_credentials(sock)
        self.deadline = deadline
        self.account = OWNER if self.is_owner else self.uid
        self.attach_id = 0
        self.pidfd = -1
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
        self.unread_descriptors = 0  # at most so many; quotas.py
        self.cost_bytes = 0
        self.commands_of = 0
        self.commands = 0

    @property
    def app(self) -> str:
        """The application of a front-end; "" if it is none."""
        return str(self.meta.get("app", ""))

    @property
    def client_id(self) -> str:
        """The setting client_id of a front-end. One that a former version has attached has sent none."""
        return str(self.meta["settings"].get("client_id", BY_NAME["client_id"].default))

    @property
    def is_owner(self) -> bool:
        """Whether the peer belongs to the user of this process, or to root."""
        return self.uid in (0, os.geteuid())

    @property
    def shown_pid(self) -> int:
        """The process id for logs and the status."""
        return self.pid or self.meta.get("pid", 0)

    def become_front_end(self, attach_id: int, meta: dict[str, Any]) -> None:
        """Record that it is attached, and what the supervisor keeps of it."""
        self.attach_id, self.meta = attach_id, meta

    def begin_command(self, attach_id: int) -> None:
        """Count a command of a front-end."""
        self.commands_of = attach_id
        self.commands += 1

    def end_command(self) -> None:
        """Count the answer to a command."""
        self.commands -= 1

    def send_challenge(self) -> None:
        """Send what its next proof must be about."""
        self.challenge = new_challenge()
        self.send({"ok": True, "challenge": self.challenge})

    def take_challenge(self) -> str:
        """Return the challenge, which is good for one proof; "" if it has asked for none."""
        challenge, self.challenge = self.challenge, ""
        return challenge

    def add_wanted(self, name: str) -> bool:
        """Add a topic that it requests; True for the first request. Raise OverflowError for too many topics."""
        if name in self.wanted:
            return False
        if len(self.wanted) >= TOPICS_PER_FRONT_END:
            raise OverflowError(
                f"a process may send to at most {TOPICS_PER_FRONT_END} topics: use fewer names in one process"
            )
        self.wanted.add(name)
        return True

    def take_cost(self) -> int:
        """Return what its last answer counts, as bytes of a message, once."""
        cost, self.cost_bytes = self.cost_bytes, 0
        return cost

    def keep_process(self, arena_fd: int, pidfd: int, others: Iterable["Peer"]) -> None:
        """Keep the pidfd. Raise RefusedError if the arena belongs to another front-end already."""
        status = os.fstat(arena_fd)
        arena = status.st_dev, status.st_ino
        if any(other.arena == arena for other in others):
            raise RefusedError("MALFORMED", "the arena is attached already")
        self.arena, self.pidfd = arena, pidfd

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

    def let_go(self) -> None:
        """Forget the descriptors, which belong to the supervisor from here on."""
        self.socket.detach()
        self.pidfd = -1

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


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended; a stopped process has not ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def read_only(fd: int) -> int:
    """Return a new descriptor of this sender's memfd that cannot be mapped writable; the caller owns it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
