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
    descriptors in unread answers     each admitted user: D/32; all admitted users together: D/16; see unread.py
    lines of the log                  each user: one each minute for each reason

The connection for the commands of a transactional front-end is one of its descriptors, and no connection without a
front-end. A connection with unread descriptors is kept after its end, and counts until they are read: the kernel lets
the sender's user have D of them. So a quarter of D is left for the owner.

If there is a connection too many, the oldest one of the same user ends, or of the admitted user that has the most. A
front-end or a topic too many is refused. From a user with too many unread descriptors nothing is read.
"""

import logging
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.peers import OWNER, STRANGERS, Peer, RefusedError

__all__ = ["Quotas", "RefusalLog"]

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
        self._noted: dict[tuple[int, str], tuple[float, int]] = {}

    def note(self, peer: Peer, level: int, reason: str, **more: Any) -> None:
        """Log `reason` about a peer. For the owner log it always."""
        extra = {"peer": peer.shown_pid, "uid": peer.uid, **more}
        if peer.account != OWNER:
            now = self._clock()
            key = peer.account, reason
            if key not in self._noted and len(self._noted) >= LOG_KEYS_MAX:
                self._noted = {known: seen for known, seen in self._noted.items() if now < seen[0]}
                if len(self._noted) >= LOG_KEYS_MAX:
                    return
            until, unlogged = self._noted.get(key, (now, 0))
            if now < until:
                self._noted[key] = until, unlogged + 1
                return
            self._noted[key] = now + LOG_PAUSE_S, 0
            if unlogged:
                extra["before"] = f"{unlogged} more of this kind"
        self._log.log(level, reason, extra=fields(**extra))
