"""Limits what the processes of other users can take of a sender, so that its owner's processes can always attach.

A user owns the sender, is admitted (`--allow-uid`, `--allow-gid`), or is a stranger. The arithmetic, with D for the
sender's limit of descriptors (RLIMIT_NOFILE):

    connections without a front-end   owner and root: 256 that have not finished their handshake
                                      each admitted user: 32, but at most D/64
                                      all admitted users together: D/16
                                      strangers: 16, of all strangers together
    front-ends                        each admitted user: D/28, a quarter of D with 7 descriptors each
                                      all admitted users together: 5D/56, five eighths of D
    topics that are requested         each admitted user: 4096; all admitted users together: 12,288 of 16,384
    descriptors in unread answers     each admitted user: D/32; all admitted users together: D/16
    lines of the log                  each user: one each minute for each reason
    messages                          each connection of the owner, each admitted user: 64, then 1000 each second

The connection for the commands of a transactional front-end is one of its descriptors, and no connection without a
front-end. A connection with unread descriptors is kept after its end, and counts until they are read: the kernel lets
the sender's user have D of them. So a quarter of D is left for the owner.

If there is a connection too many, the oldest one of the same user ends, or of the admitted user that has the most. A
front-end or a topic too many is refused. From a user with too many unread descriptors nothing is read, and neither is
from a connection with too many messages, for a while: a flood of messages delays only the one who sends it.
"""

import fcntl
import logging
import resource
import socket
import struct
import termios
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.peers import OWNER, STRANGERS, Peer, RefusedError
from cyproducer.sender.engine.native import Loop
from cyproducer.sender.system import dropped

__all__ = ["UNREAD_POLL_S", "MessageBudget", "Quotas", "RefusalLog", "UnreadDescriptors", "UserLimits"]

OWNER_UNFINISHED_MAX = 256
STRANGERS_MAX = 16
USER_CONNECTIONS_MAX = 32  # half of the queries about transactions that are answered at once
#: A part of the descriptors for the connections of one admitted user.
CONNECTIONS_SHARE = 64
#: The most that the supervisor and the sender each hold for a front-end: one is the connection for its commands.
FRONT_END_DESCRIPTORS = 7
USER_TOPICS_MAX = 4096
TOPICS_MAX = 12_288
LOG_PAUSE_S = 60.0
LOG_KEYS_MAX = 256
BURST = 64  # messages that a connection may send at once
MESSAGES_PER_S = 1000  # messages that it may send per second after the burst; each takes some 30 microseconds
MESSAGE_BYTES = 2048  # a larger message counts as several
PAUSE_MESSAGES = 32  # messages that it may send after a pause; some loop iterations pass during a pause
#: The parts of RLIMIT_NOFILE for the descriptors that one admitted user, and all of them, have not read.
USER_SHARE = 32
ALL_SHARE = 16
#: Pause between two looks at the connections that are kept because of them.
UNREAD_POLL_S = 1.0
_UNLIMITED = 1 << 20


class Quotas:
    """Counts connections and front-ends by account. `descriptors`: the sender's RLIMIT_NOFILE; None: read it."""

    def __init__(self, descriptors: int | None = None) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if descriptors is None else descriptors
        limit = limit if 0 <= limit < _UNLIMITED else _UNLIMITED
        self.descriptors = limit
        self.user_connections_max = max(1, min(USER_CONNECTIONS_MAX, limit // CONNECTIONS_SHARE))
        self.user_front_ends_max = max(1, limit // (4 * FRONT_END_DESCRIPTORS))
        self.connections_max = max(1, limit // 16)
        self.front_ends_max = max(1, 5 * limit // (8 * FRONT_END_DESCRIPTORS))
        self._connections: dict[int, dict[int, Peer]] = {}
        self._front_ends: Counter[int] = Counter()

    def connect(self, peer: Peer) -> Peer | None:
        """Count a connection. Return the one that has to end for it, or None."""
        held = self._connections.setdefault(peer.account, {})
        held[peer.fd] = peer
        if peer.account == OWNER:
            # A process of the owner may wait for an answer for long. The others send their request at once.
            waiting = [each for each in held.values() if each.deadline is not None]
            return waiting[0] if len(waiting) > OWNER_UNFINISHED_MAX else None
        most = STRANGERS_MAX if peer.account == STRANGERS else self.user_connections_max
        if len(held) > most:
            return next(iter(held.values()))
        admitted = [each for account, each in self._connections.items() if account not in (OWNER, STRANGERS)]
        if sum(map(len, admitted)) > self.connections_max:
            return next(iter(max(admitted, key=len).values()))
        return None

    def check_front_end(self, peer: Peer) -> None:
        """Raise RefusedError if the peer's user has too many front-ends."""
        if peer.account == OWNER:
            return
        of_all = sum(count for account, count in self._front_ends.items() if account != OWNER)
        for count, most, whose in (
            (self._front_ends[peer.account], self.user_front_ends_max, f"uid {peer.uid}"),
            (of_all, self.front_ends_max, "users other than its owner"),
        ):
            if count >= most:
                text = f"the sender serves {count} producers of {whose}, and its limit is {most}"
                raise RefusedError("REFUSED", f"{text}; close some, or start it with a higher limit (`ulimit -n`)")

    def attach(self, peer: Peer) -> None:
        """Count a front-end, which is no connection without a front-end from here on."""
        self._forget_connection(peer)
        self._front_ends[peer.account] += 1

    def begin_commands(self, peer: Peer) -> None:
        """Count a connection as a part of the front-end whose commands it brings."""
        self._forget_connection(peer)

    def end_commands(self, peer: Peer) -> None:
        """Count a connection again as one without a front-end: it waits for an answer, but was replaced.

        The one that replaces it was counted until now, so the number stays the same.
        """
        self._connections.setdefault(peer.account, {})[peer.fd] = peer

    def counts(self, peer: Peer) -> bool:
        """Return whether a connection is counted as one without a front-end."""
        return self._connections.get(peer.account, {}).get(peer.fd) is peer

    def end(self, peer: Peer) -> None:
        """Forget a connection or a front-end that has ended."""
        if peer.attach_id:
            self._front_ends[peer.account] -= 1
            if not self._front_ends[peer.account]:
                del self._front_ends[peer.account]
        else:
            self._forget_connection(peer)

    def _forget_connection(self, peer: Peer) -> None:
        held = self._connections.get(peer.account, {})
        held.pop(peer.fd, None)
        if not held:
            self._connections.pop(peer.account, None)

    @staticmethod
    def check_topic(peer: Peer, front_ends: Iterable[Peer]) -> None:
        """Raise OverflowError if the peer's user has requested too many topics to request another one."""
        if peer.account == OWNER:
            return
        counts: Counter[int] = Counter()
        for each in front_ends:
            counts[each.account] += len(each.wanted)
        others = sum(count for account, count in counts.items() if account != OWNER)
        if counts[peer.account] >= USER_TOPICS_MAX or others >= TOPICS_MAX:
            raise OverflowError(
                f"uid {peer.uid} may send to at most {USER_TOPICS_MAX} topics through this sender, and all users other "
                f"than its owner to {TOPICS_MAX}: use fewer topics"
            )


class RefusalLog:
    """Logs what the connections of other users cause, at most once a minute for each user and reason.

    Attaches and detaches are among it. So a user cannot fill the log with connections.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[tuple[int, str], tuple[float, int]] = {}

    def log(self, peer: Peer, level: int, reason: str, **more: Any) -> None:
        """Log `reason` about a peer. For the owner log it always."""
        extra = {"peer": peer.shown_pid, "uid": peer.uid, **more}
        if peer.account != OWNER:
            now = self._clock()
            key = peer.account, reason
            if key not in self._logged and len(self._logged) >= LOG_KEYS_MAX:
                self._logged = {known: seen for known, seen in self._logged.items() if now < seen[0]}
                if len(self._logged) >= LOG_KEYS_MAX:
                    return
            until, unlogged = self._logged.get(key, (now, 0))
            if now < until:
                self._logged[key] = until, unlogged + 1
                return
            self._logged[key] = now + LOG_PAUSE_S, 0
            if unlogged:
                extra["before"] = f"{unlogged} more of this kind"
        self._log.log(level, reason, extra=fields(**extra))


class MessageBudget:
    """Pauses connections that have sent too much: until the end of the pause the sender reads nothing from them.

    Messages that they send meanwhile stay in their sockets.
    """

    def __init__(self, loop: Loop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        #: By descriptor, or by ("user", account): (messages that may be sent, at which time).
        self._credits: dict[int | tuple[str, int], tuple[float, float]] = {}
        self.until: dict[int, float] = {}  # by descriptor: the end of its pause

    def may_begin(self, fd: int, account: int) -> bool:
        """Return whether a message may be read from the connection now; False if it is paused from now on.

        A new connection of a user who has sent too much waits as well, also for its first message.
        """
        payer = _payer(fd, account)
        credit, since = self._credits.get(payer, (float(BURST), 0.0))
        missing = 1 - credit - (self._clock() - since) * MESSAGES_PER_S
        if missing <= 0:
            return True
        self.pause(fd, missing / MESSAGES_PER_S)
        return False

    def may_go_on(self, fd: int, account: int, size: int) -> bool:
        """Count one message that was read from the connection; False if the connection is paused from now on.

        account   as in peers.py
        size      the bytes of the message, and what its answer counts
        """
        now = self._clock()
        payer = _payer(fd, account)
        credit, since = self._credits.get(payer, (float(BURST), now))
        credit = min(credit + (now - since) * MESSAGES_PER_S, BURST) - max(1, -(-size // MESSAGE_BYTES))
        self._credits[payer] = credit, now
        if credit >= 1:
            return True
        # A large message, or another connection of the user, may have used more than there was.
        self.pause(fd, (PAUSE_MESSAGES - min(0.0, credit)) / MESSAGES_PER_S)
        return False

    def pause(self, fd: int, seconds: float = PAUSE_MESSAGES / MESSAGES_PER_S) -> None:
        """Read nothing from a connection for a while."""
        self._loop.unwatch(fd)
        self.until[fd] = self._clock() + seconds

    def forget_full(self) -> None:
        """Forget the users that may send as many messages at once as a new one."""
        now = self._clock()
        for payer, (credit, since) in list(self._credits.items()):
            if isinstance(payer, tuple) and credit + (now - since) * MESSAGES_PER_S >= BURST:
                del self._credits[payer]

    def give_back(self, fd: int, account: int) -> None:
        """Do not count a message of the connection."""
        payer = _payer(fd, account)
        if payer in self._credits:
            credit, since = self._credits[payer]
            self._credits[payer] = min(credit + 1, float(BURST)), since

    def wake(self) -> None:
        """Resume the connections whose pause is over."""
        now = self._clock()
        for fd in [fd for fd, until in self.until.items() if until <= now]:
            del self.until[fd]
            self._loop.watch(fd)

    def drop(self, fd: int) -> None:
        """Forget a connection that has ended."""
        self._credits.pop(fd, None)
        self.forget_full()
        self.until.pop(fd, None)


def _payer(fd: int, account: int) -> int | tuple[str, int]:
    """Return whose messages those of the connection are."""
    return fd if account == OWNER else ("user", account)


class UnreadDescriptors:
    """Counts the descriptors in answers that other users have not read yet.

    The kernel counts them for the sender's user, and refuses more than RLIMIT_NOFILE. They stay in the peer's socket
    after the sender has closed its end, so a user could use up the owner's number. A connection with unread ones is
    kept open after its end.

    `limit`: the sender's RLIMIT_NOFILE.
    """

    def __init__(self, limit: int) -> None:
        self.user_max = max(1, limit // USER_SHARE)
        self.all_max = max(1, limit // ALL_SHARE)
        self._peers: dict[int, dict[Peer, None]] = {}  # by account
        self._kept: dict[int, list[tuple[socket.socket, int]]] = {}  # by account: (connection, descriptors)

    @property
    def keeps_any(self) -> bool:
        """Whether it keeps a connection that has ended."""
        return bool(self._kept)

    def add(self, peer: Peer) -> None:
        """Watch a peer to which an answer with descriptors was sent."""
        if peer.account != OWNER and peer.unread_descriptors:
            self._peers.setdefault(peer.account, {})[peer] = None

    def may_ask(self, peer: Peer) -> bool:
        """Return whether the next request of the peer may be answered: its user has read enough of the answers."""
        if peer.account == OWNER or not (self._peers or self._kept):
            return True
        counts = {account: sum(self._unread(account)) for account in {*self._peers, *self._kept}}
        return counts.get(peer.account, 0) < self.user_max and sum(counts.values()) < self.all_max

    def _unread(self, account: int) -> Iterator[int]:
        """Yield the numbers of descriptors of the connections of an account that has not read all."""
        for peer in list(self._peers.get(account, ())):
            if _is_read(peer.socket):
                self._forget(peer)
            else:
                yield peer.unread_descriptors
        yield from (count for _, count in self._kept.get(account, ()))

    def _forget(self, peer: Peer) -> None:
        peer.unread_descriptors = 0
        held = self._peers.get(peer.account, {})
        held.pop(peer, None)
        if not held:
            self._peers.pop(peer.account, None)

    def end(self, peer: Peer) -> None:
        """Take the connection of a peer that ends over, if it has unread descriptors."""
        count = peer.unread_descriptors
        if peer in self._peers.get(peer.account, ()) and not _is_read(peer.socket):
            peer.hang_up()
            kept = socket.socket(fileno=peer.socket.detach())
            self._kept.setdefault(peer.account, []).append((kept, count))
        self._forget(peer)

    def close_read(self) -> None:
        """Close the kept connections whose answers are read, or whose peer has closed its end."""
        for account, held in list(self._kept.items()):
            for sock, _ in [each for each in held if _is_read(each[0])]:
                dropped.drop(sock)
            held[:] = [each for each in held if each[0].fileno() >= 0]
            if not held:
                del self._kept[account]

    def close(self) -> None:
        """Close the kept connections."""
        for held in self._kept.values():
            for sock, _ in held:
                dropped.drop(sock)
        self._kept.clear()


class UserLimits(NamedTuple):
    """All that limits the processes of other users.

    quotas    what each user has
    budget    the messages that each may send
    unread    the descriptors in answers that other users have not read
    refusals  the log of what other users than the owner cause
    """

    quotas: Quotas
    budget: MessageBudget
    unread: UnreadDescriptors
    refusals: RefusalLog

    @classmethod
    def of(cls, loop: Loop, log: logging.Logger, clock: Callable[[], float]) -> "UserLimits":
        """Return those of a sender with this loop."""
        quotas = Quotas()
        return cls(quotas, MessageBudget(loop, clock), UnreadDescriptors(quotas.descriptors), RefusalLog(log, clock))


def _is_read(sock: socket.socket) -> bool:
    """Return whether the peer has read every message, or has closed its end."""
    (unread,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    return bool(unread == 0)
