"""Lets a new supervisor take over from another one of the same layout: descriptors, state, lock and listener.

The new one is another build (`cyproducer sender --replace`), or was started by a process with higher resource limits,
for which the old sender had too few resources. Then the request has "limits", and the old sender agrees only if its own
limits are lower.

    successor -> sender       {"op": "replace", "layout", "settings", "time_namespace", "network_namespace"[,
                              "limits"][, "proof", "files"]}:
                         the sender refuses, or passes it on to the supervisor, which kills the sender and then sends.
                         With credentials in the settings, the same request with "challenge" comes first, see
                         control_messages.py
    supervisor -> successor   {"op": "post"} [LOCK, LISTENER], {"op": "regions"} [STATE, SNAPSHOT],
                         {"op": "hold" | "quarantined", "attach_id", "meta", "answered", "ended"} [descriptors],
                         {"op": "waiting"} [connection], {"op": "facts", "ledger", ...} once or more, {"op": "all"}
    successor -> supervisor   {"op": "taken"}
    supervisor -> successor   {"op": "yours"}: the supervisor never starts a sender again, the successor may

Before "yours" the successor starts no sender. Without "taken" the supervisor starts its sender again. So there are
never two senders.
"""

import errno
import os
import socket
import time
from typing import Any, NoReturn

from cyproducer.config.secrets import shown
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.host import control_messages, limits
from cyproducer.host.credential_files import CredentialFileError, credential_files, file_proofs
from cyproducer.host.credentials import proof, replacing
from cyproducer.host.messages import HELD, InvalidMessageError, check_descriptors, parse_facts, parse_held
from cyproducer.host.rendezvous import public_settings, secret_settings
from cyproducer.sender.handover.handover import Handover, Held, Post, close
from cyproducer.sender.system import dropped
from cyproducer.shm.native import LAYOUT_VERSION, network_namespace, time_namespace
from cyproducer.version import VERSION

__all__ = ["NotLowerError", "Predecessor", "hand_over", "refusal_reason", "take_over"]

_STEP_S = 10.0
_TRIES_S = 10.0
_PAUSE_S = 0.05
_IN_FLIGHT_S = 3.0


class _TryAgainError(Exception):
    """The sender is not replaced now, but may be later; the text is the reason."""


class NotLowerError(SenderUnavailableError):
    """The sender is not replaced for its limits: they are not lower, or `cyproducer sender` started it."""


def refusal_reason(message: dict[str, Any], settings: dict[str, Any]) -> tuple[str, str] | None:
    """Return why a request to replace a sender of these public settings is refused: (error name, text); or None."""
    if message.get("layout") != LAYOUT_VERSION:
        asked = str(message.get("layout"))[:20]
        return "LAYOUT", (
            f"it is cyproducer {VERSION} with memory layout {LAYOUT_VERSION}, and this build has layout {asked}; "
            "end it with `cyproducer stop`, then its producers find the next sender"
        )
    asked_settings = message.get("settings")
    if not isinstance(asked_settings, dict):
        return "MALFORMED", "the request has no settings"
    for name in sorted(settings.keys() & asked_settings.keys()):
        if settings[name] != asked_settings[name]:
            return "SETTINGS", (
                f"{name} is {shown(name, settings[name])} in the running sender and "
                f"{shown(name, asked_settings[name])} in this process"
            )
    # The state contains addresses of the sender's network and times of its clock.
    for kind, ours in (("network", network_namespace()), ("time", time_namespace())):
        if message.get(f"{kind}_namespace", ours) != ours:
            return "NAMESPACE", f"it is in another {kind} namespace; start its replacement in that namespace"
    return None


# ---------------------------------------------------------------------- the former supervisor


def hand_over(successor: socket.socket, post: Post, handover: Handover) -> bool:
    """Hand everything over to the successor; True once the successor owns it. The sender must have ended before."""
    successor.settimeout(_STEP_S)
    try:
        _give(successor, post, {"op": "post"}, [post.election.lock_fd, post.listener.fileno()])
        _give(successor, post, {"op": "regions"}, handover.regions)
        for op, helds in (("hold", handover.held), ("quarantined", handover.quarantined)):
            for held in helds.values():
                _give_held(successor, post, op, held)
        for fd in handover.waiting:
            _give(successor, post, {"op": "waiting"}, [fd])
        facts: dict[str, Any] = {"op": "facts", "draining": handover.draining, "deaths": list(handover.deaths.items())}
        facts["cluster_id"] = handover.cluster_id
        facts["idle_timeout_s"] = handover.idle_timeout_s
        if handover.watchdog_s:
            facts["watchdog_s"] = handover.watchdog_s
        for ledger in list(control_messages.pieces(handover.ledger.rows())) or [[]]:
            control_messages.send(successor, {**facts, "ledger": ledger})
        control_messages.send(successor, {"op": "all"})
        answer = control_messages.receive_alone(successor)
        if answer is None or answer.get("op") != "taken":
            return False
        control_messages.send(successor, {"op": "yours"})
    except (OSError, control_messages.HandshakeError):
        return False
    return True


def _give(successor: socket.socket, post: Post, message: dict[str, Any], fds: list[int]) -> None:
    """Send a message with descriptors, also if the limit of descriptors in unread messages is reached.

    The kernel limits these for each user, to the RLIMIT_NOFILE of this process. Most of them are in messages of
    processes that have connected and wait for the next sender. This function hangs up on these processes, and they try
    again. Raise OSError if that does not help in time.
    """
    give_up = time.monotonic() + _IN_FLIGHT_S
    while True:
        try:
            control_messages.send(successor, message, fds)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() >= give_up:
                raise
        _empty_queue(post.listener)
        time.sleep(_PAUSE_S)


def _empty_queue(listener: socket.socket) -> None:
    try:
        while True:
            sock, _ = listener.accept()
            dropped.drop(sock)
    except OSError:
        pass  # the queue is empty, or no descriptor is free


def _give_held(successor: socket.socket, post: Post, op: str, held: Held) -> None:
    fds = [fd for fd in held.fds if fd >= 0]
    message = {
        "op": op,
        "attach_id": held.attach_id,
        "meta": held.meta,
        "answered": held.answered,
        "ended": held.ended,
    }
    _give(successor, post, message, fds)


# ---------------------------------------------------------------------- the new supervisor


class Predecessor:
    """Collects what the former supervisor sends: the lock, the listener, and the handover."""

    def __init__(self, handover: Handover, by_limits: bool = False) -> None:
        self.handover = handover
        self.by_limits = by_limits
        self.lock_fd = -1
        self.listener: socket.socket | None = None

    def apply(self, message: dict[str, Any], fds: list[int]) -> None:
        """Take over what a message says, and its descriptors. Raise SenderUnavailableError for one of a wrong form.

        The former supervisor may be of another build. A message of a wrong form would otherwise end this one, or its
        senders, with an error that says nothing about the cause.
        """
        try:
            check_descriptors(message.get("op"), fds)
            self._apply(message, fds)
        except InvalidMessageError as error:
            control_messages.discard(fds)
            raise SenderUnavailableError(
                "the running sender is not replaced: its supervisor has sent a message "
                f'"{message["op"]}" that cannot be used: {error}; end that sender with `cyproducer stop`, then the '
                "producers find the next one"
            ) from None
        except BaseException:
            control_messages.discard(fds)
            raise

    def _apply(self, message: dict[str, Any], fds: list[int]) -> None:
        """Raise InvalidMessageError before anything is taken over."""
        op, handover = message.get("op"), self.handover
        if op == "post":
            _require(self.listener is None)
            self.listener = socket.socket(fileno=fds[1])
            self.lock_fd = fds[0]
        elif op in ("hold", "quarantined"):
            front_end = parse_held(message, fds)
            _require(front_end.attach_id not in handover.held.keys() | handover.quarantined)
            held = Held(front_end.attach_id, front_end.meta, fds if len(fds) == HELD else [-1, -1, *fds])
            held.answered, held.ended = front_end.answered, front_end.ended
            holders = handover.held if op == "hold" else handover.quarantined
            holders[held.attach_id] = held
        elif op in ("regions", "waiting"):
            _require(op != "regions" or not handover.regions)
            handover.apply(message, fds)
        elif op == "facts":
            facts = parse_facts(message, fds)
            handover.draining, handover.deaths, handover.cluster_id = facts.draining, facts.deaths, facts.cluster_id
            handover.watchdog_s = facts.watchdog_s
            self._keep_idle_timeout(facts.idle_timeout_s)
            for row in facts.ledger:
                handover.ledger.restore(row)
        else:
            control_messages.discard(fds)

    def _keep_idle_timeout(self, theirs: float | None) -> None:
        """Keep the larger idle timeout: the front-ends requested theirs from the former sender.

        A sender that was started with `cyproducer sender` keeps its own timeout.
        """
        if self.by_limits and theirs is not None and self.handover.idle_timeout_s is not None:
            self.handover.idle_timeout_s = max(theirs, self.handover.idle_timeout_s)

    def drop(self) -> None:
        """Close everything that was received; the former supervisor still holds it."""
        close(self.lock_fd)
        if self.listener is not None:
            self.listener.close()
        self.handover.forget()


def _require(is_first: bool) -> None:
    """Raise InvalidMessageError for a message that comes again: what it brought before would be lost."""
    if not is_first:
        raise InvalidMessageError("it came before")


def take_over(
    path: str, settings: dict[str, Any], idle_timeout_s: float | None, by_limits: bool = False
) -> Predecessor | None:
    """Take over from the sender at `path`; return None if there is no sender.

    With `by_limits`, raise NotLowerError unless the limits of that sender are lower than those of this process. Raise
    KafkaConfigurationError if its settings, layout or namespaces differ, SenderUnavailableError if the takeover fails
    for another reason.
    """
    give_up = time.monotonic() + _TRIES_S
    why = ""
    while True:
        predecessor = Predecessor(Handover(idle_timeout_s), by_limits)
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
                if _ask(sock, path, settings, by_limits) and _receive_all(sock, predecessor, path):
                    return predecessor
                why = "it closed the connection before the handover was complete"
            except _TryAgainError as error:
                why = str(error)
            except (OSError, control_messages.HandshakeError) as error:
                why = str(error) or type(error).__name__
            except BaseException:
                predecessor.drop()
                raise
        predecessor.drop()
        if time.monotonic() >= give_up:
            raise SenderUnavailableError(
                f"the sender at {path} was not replaced within {_TRIES_S:g} s: {why}; try again"
            )
        time.sleep(_PAUSE_S)


def _ask(sock: socket.socket, path: str, settings: dict[str, Any], by_limits: bool) -> bool:
    """Request the handover, with a proof if the settings have credentials; False if the sender has hung up."""
    request: dict[str, Any] = {
        **({"limits": limits.current()} if by_limits else {}),
        "op": "replace",
        "layout": LAYOUT_VERSION,
        "settings": public_settings(settings),
        "time_namespace": time_namespace(),
        "network_namespace": network_namespace(),
    }
    secrets, files = secret_settings(settings), credential_files(settings)
    if secrets or files:
        control_messages.send(sock, {**request, "challenge": True})
        answer = control_messages.receive_alone(sock)
        if answer is None:
            return False
        if not answer.get("ok"):
            _raise_refusal(answer, path)
        subject = replacing(str(answer.get("challenge")), os.getpid())
        request["proof"] = proof(secrets, subject)
        try:
            request["files"] = file_proofs(files, subject)
        except CredentialFileError as error:
            raise KafkaConfigurationError(str(error)) from None
    control_messages.send(sock, request)
    return True


def _check_owner(sock: socket.socket, path: str) -> None:
    _, uid, _ = control_messages.peer_credentials(sock)
    if uid not in (0, os.geteuid()):
        raise SenderUnavailableError(f"the sender at {path} belongs to uid {uid}; run this command as that user")


def _receive_all(sock: socket.socket, predecessor: Predecessor, path: str) -> bool:
    """Receive the whole handover; False if the sender hung up or is not ready, and the caller should try again."""
    while True:
        message, fds = control_messages.receive(sock)
        if message is None:
            return False
        op = message.get("op")
        if message.get("ok") is not False and op not in ("all", "yours"):
            predecessor.apply(message, fds)
            continue
        control_messages.discard(fds)
        if message.get("ok") is False:
            _raise_refusal(message, path)
        if op == "yours":
            return predecessor.listener is not None and bool(predecessor.handover.regions)
        control_messages.send(sock, {"op": "taken"})


def _raise_refusal(message: dict[str, Any], path: str) -> NoReturn:
    name, text = str(message.get("error")), str(message.get("message"))
    if name in ("DRAINING", "FILES"):
        raise _TryAgainError(text)
    if name == "LIMITS":
        raise NotLowerError(text)
    if name in ("LAYOUT", "SETTINGS", "NAMESPACE"):
        raise KafkaConfigurationError(f"the sender at {path} is not replaced: {text}")
    raise SenderUnavailableError(f"the sender at {path} refuses to be replaced ({name}): {text}")
