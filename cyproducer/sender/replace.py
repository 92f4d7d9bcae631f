"""One build's supervisor takes over from another's of the same layout: descriptors, state, lock and listener.

    heir -> sender       {"op": "replace", "layout", "settings"}: refused, or passed on to the supervisor,
                         which kills its sender, and then
    supervisor -> heir   {"op": "post"} [LOCK, LISTENER], {"op": "regions"} [STATE, SNAPSHOT],
                         {"op": "hold" | "quarantined", "attach_id", "meta", "answered", "ended"} [descriptors],
                         {"op": "waiting"} [connection], {"op": "facts", "ledger", ...} once or more, {"op": "all"}
    heir -> supervisor   {"op": "taken"}
    supervisor -> heir   {"op": "yours"}: the supervisor never starts a sender again, the heir may

Until "yours" the heir starts nothing, and without "taken" the supervisor goes on: there are never two senders.
"""

import os
import socket
import time
from typing import Any

from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.sender.custody import HELD, Custody, Held, close
from cyproducer.shm import handshake
from cyproducer.shm.arena import LAYOUT_VERSION
from cyproducer.shm.rendezvous import public_settings

__all__ = ["Estate", "hand_over", "take_over", "why_not"]

_STEP_S = 10.0
_TRIES_S = 10.0
_PAUSE_S = 0.05


def why_not(message: dict[str, Any], settings: dict[str, Any]) -> tuple[str, str] | None:
    """Why the sender of these (public) settings is not replaced by who asks so: (error name, text), or None."""
    if message.get("layout") != LAYOUT_VERSION:
        asked = str(message.get("layout"))[:20]
        return "LAYOUT", (
            f"its memory has layout {LAYOUT_VERSION}, this build's is {asked}; "
            "end it with `cyproducer stop`, and its producers will find the next one"
        )
    asked_settings = message.get("settings")
    if not isinstance(asked_settings, dict):
        return "MALFORMED", "the settings are missing"
    for name in sorted(settings.keys() & asked_settings.keys()):
        if settings[name] != asked_settings[name]:
            return "SETTINGS", f"{name} is {settings[name]!r} there and {asked_settings[name]!r} here"
    return None


# ---------------------------------------------------------------------- the supervisor that leaves


def hand_over(heir: socket.socket, post: Any, custody: Custody) -> bool:
    """Gives everything to the heir; True once it is the heir's. The sender has ended."""
    heir.settimeout(_STEP_S)
    try:
        handshake.send(heir, {"op": "post"}, (post.election.lock_fd, post.listener.fileno()))
        handshake.send(heir, {"op": "regions"}, custody.regions)
        for op, helds in (("hold", custody.held), ("quarantined", custody.quarantined)):
            for held in helds.values():
                _send_held(heir, op, held)
        for fd in custody.waiting:
            handshake.send(heir, {"op": "waiting"}, (fd,))
        facts = {"op": "facts", "draining": custody.draining, "deaths": list(custody.deaths.items())}
        for ledger in list(handshake.pieces(custody.ledger.rows())) or [[]]:
            handshake.send(heir, {**facts, "ledger": ledger})
        handshake.send(heir, {"op": "all"})
        answer, fds = handshake.receive(heir)
        for fd in fds:
            close(fd)
        if answer is None or answer.get("op") != "taken":
            return False
        handshake.send(heir, {"op": "yours"})
    except (OSError, handshake.HandshakeError):
        return False
    return True


def _send_held(heir: socket.socket, op: str, held: Held) -> None:
    fds = [fd for fd in held.fds if fd >= 0]
    message = {
        "op": op,
        "attach_id": held.attach_id,
        "meta": held.meta,
        "answered": held.answered,
        "ended": held.ended,
    }
    handshake.send(heir, message, fds)


# ---------------------------------------------------------------------- the supervisor that comes


class Estate:
    """What was taken over: the lock, the listener, and the custody."""

    def __init__(self, custody: Custody) -> None:
        self.custody = custody
        self.lock_fd = -1
        self.listener: socket.socket | None = None

    def note(self, message: dict[str, Any], fds: list[int]) -> None:
        op = message.get("op")
        if op == "post" and len(fds) == 2:
            self.lock_fd, listener = fds
            self.listener = socket.socket(fileno=listener)
        elif op in ("hold", "quarantined"):
            held = Held(message["attach_id"], message["meta"], fds if len(fds) == HELD else [-1, -1, *fds])
            held.answered, held.ended = message["answered"], message["ended"]
            holders = self.custody.held if op == "hold" else self.custody.quarantined
            holders[held.attach_id] = held
        elif op == "facts":
            self.custody.draining = message["draining"]
            self.custody.deaths = dict(message["deaths"])
            for row in message["ledger"]:
                self.custody.ledger.restore(row)
        else:
            self.custody.note(message, fds)

    def drop(self) -> None:
        """Lets go of what another supervisor still holds."""
        close(self.lock_fd)
        if self.listener is not None:
            self.listener.close()
        self.custody.forget()


def take_over(path: str, settings: dict[str, Any], idle_timeout_s: float | None) -> Estate | None:
    """Takes over from the sender at `path` whatever it has; None if there is none.

    Raises KafkaConfigurationError for one of other settings or another layout, SenderUnavailableError if it
    does not let go.
    """
    give_up = time.monotonic() + _TRIES_S
    why = ""
    while True:
        estate = Estate(Custody(idle_timeout_s))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(_STEP_S)
            try:
                sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except OSError as error:
                raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error}") from None
            try:
                _check_owner(sock, path)
                handshake.send(
                    sock, {"op": "replace", "layout": LAYOUT_VERSION, "settings": public_settings(settings)}
                )
                if _receive_all(sock, estate, path):
                    return estate
                why = "it hung up"
            except (OSError, handshake.HandshakeError) as error:
                why = str(error) or type(error).__name__
            except BaseException:
                estate.drop()
                raise
        estate.drop()
        if time.monotonic() >= give_up:
            raise SenderUnavailableError(f"the sender at {path} is not replaced: {why}")
        time.sleep(_PAUSE_S)


def _check_owner(sock: socket.socket, path: str) -> None:
    _, uid, _ = handshake.peer_credentials(sock)
    if uid not in (0, os.geteuid()):
        raise SenderUnavailableError(f"the sender at {path} belongs to uid {uid}, not to this user")


def _receive_all(sock: socket.socket, estate: Estate, path: str) -> bool:
    """False if the other side hung up or put us off: again."""
    while True:
        message, fds = handshake.receive(sock)
        if message is None:
            return False
        op = message.get("op")
        if message.get("ok") is False:
            return _refused(message, path)
        if op == "all":
            handshake.send(sock, {"op": "taken"})
        elif op == "yours":
            return estate.listener is not None and bool(estate.custody.regions)
        else:
            estate.note(message, fds)


def _refused(message: dict[str, Any], path: str) -> bool:
    name, text = str(message.get("error")), str(message.get("message"))
    if name == "DRAINING":
        return False
    if name in ("LAYOUT", "SETTINGS"):
        raise KafkaConfigurationError(f"the sender at {path} is not replaced: {text}")
    raise SenderUnavailableError(f"the sender at {path} refuses to be replaced ({name}): {text}")
