"""Attaches front-ends to the sender, or refuses them with the reason."""

import fcntl
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from cyproducer.config.secrets import shown
from cyproducer.host import limits
from cyproducer.host.credential_files import CredentialFileError, credential_files, unproven_file
from cyproducer.host.credentials import attaching, is_proof
from cyproducer.host.messages import AttachRequest, InvalidMessageError, parse_attach
from cyproducer.host.rendezvous import comparable_servers
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, RefusedError, read_only, refusal, resource_refusal
from cyproducer.sender.control.quotas import UserLimits
from cyproducer.sender.engine.native import FrontEnds
from cyproducer.sender.handover.handover import Line
from cyproducer.shm.native import DEBUG, LAYOUT_VERSION, crashpoint, network_namespace, time_namespace
from cyproducer.version import VERSION

__all__ = ["Attaching"]

_KEY_BYTES = 16
_FDINFO_BYTES_MAX = 4096


class Attaching:
    """Answers the requests of processes that want to attach.

    regions      the descriptors of the state and the snapshot, which the engine owns
    needs_token  whether a front-end must show a valid OAuth token first
    """

    def __init__(
        self,
        front_ends: FrontEnds,
        regions: tuple[int, int],
        line: Line,
        table: PeerTable,
        limits: UserLimits,
        ending: Ending,
        facts: Facts,
        needs_token: bool,
    ) -> None:
        self.needs_token = needs_token
        self._standing_warnings: list[str] = []
        self._front_ends = front_ends
        self._state_fd, self._snapshot_fd = regions
        self._line = line
        self._table = table
        self._quotas = limits.quotas
        self._unread = limits.unread
        self._refusals = limits.refusals
        self._ending = ending
        self._facts = facts
        self._waiting_pids: set[int] = set()
        self._shortage_logged = False
        self._time_namespace = time_namespace()
        self._network_namespace = network_namespace()

    def add_warning(self, text: str) -> None:
        """Let each front-end that is attached from now on get a warning."""
        self._standing_warnings.append(text)

    def attach(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        """Attach a peer, refuse it, or challenge it first. What is used of `fds` is removed from the list."""
        if self._ending.is_draining:
            self._refuse_during_drain(peer)
            return
        try:
            _check_layout(message)
            if "challenge" in message:
                peer.send_challenge()
                return
            outcomes, wake, settings = self._try(peer, message, fds)
        except RefusedError as error:
            self.refuse(peer, error)
            return
        self._table.finish(peer)
        self._table.add_front_end(peer)
        self._ending.on_attached()
        if not self.answer(peer, outcomes, wake):
            return
        self._table.watch_process(peer)
        self._ending.extend_idle_timeout(settings["sender_idle_timeout_ms"])
        self._refusals.log(peer, logging.INFO, "attached", attach_id=peer.attach_id, app=peer.app)
        for text in self._standing_warnings:
            peer.send({"op": "warning", "message": text})

    def _try(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> tuple[int, int, dict[str, Any]]:
        """Attach the peer to the engine. Return (outcomes, wake, its settings); raise RefusedError."""
        if message.get("time_namespace", self._time_namespace) != self._time_namespace:
            text = "the sender is in another time namespace; start one in the time namespace of this process"
            raise RefusedError("REFUSED", text)
        try:
            request = parse_attach(message, len(fds))
        except InvalidMessageError as error:
            raise RefusedError("MALFORMED", str(error)) from None
        _check_descriptors(fds, peer.pid)
        arena_fd, pidfd, wake_fd = fds
        # Before the settings are compared: a process without the secrets learns none of them.
        if self.needs_token and not peer.vouched:
            text = "this process has shown no OAuth token; give its producer the setting sasl_oauth_token_provider"
            raise RefusedError("CREDENTIALS", text)
        self._check_credentials(peer, message, arena_fd)
        _check_agreement(request, self._facts.public_settings)
        self._check_network(request, message.get("network_namespace", self._network_namespace))
        self._quotas.check_front_end(peer)
        peer.keep_process(arena_fd, pidfd, self._table.front_ends.values())
        request.settings["other_user"] = not peer.is_owner
        fds.clear()
        if DEBUG:
            crashpoint("attach.request-read")
        attach_id, outcomes, wake = self._attach_to_engine(request, arena_fd, wake_fd)
        pid = peer.pid or request.pid  # 0: its pid is not visible from here
        meta = {
            "app": request.app,
            "pid": pid,
            "slots": request.slots,
            "settings": request.settings,
            "command_key": os.urandom(_KEY_BYTES).hex(),
        }
        self._register_for_handover(peer, attach_id, meta, (outcomes, wake))
        if DEBUG:
            crashpoint("attach.in-handover")
        peer.become_front_end(attach_id, meta)
        return outcomes, wake, request.settings

    def _check_credentials(self, peer: Peer, message: dict[str, Any], arena_fd: int) -> None:
        """Raise RefusedError unless the front-end has the credentials. It may have none at a socket that it names."""
        facts, proof, challenge = self._facts, message.get("proof"), peer.take_challenge()
        subject = attaching(challenge, arena_fd, peer.pid if facts.private else None)
        is_needed = proof is not None or (facts.secrets and facts.private)
        if is_needed and not (challenge and is_proof(proof, facts.secrets, subject)):
            text = "the secrets in the settings of this process (passwords, keys) are not those of the sender; " + (
                "use the same ones" if facts.private else "leave them out to use the sender's"
            )
            raise RefusedError("CREDENTIALS", text)
        files = credential_files(facts.settings) if facts.private else {}
        if files:
            self._check_files(files, message.get("files") if challenge else None, subject)

    @staticmethod
    def _check_files(files: dict[str, str], claimed: Any, subject: str) -> None:
        """Raise RefusedError unless the front-end can read the files with credentials."""
        try:
            name = unproven_file(files, claimed, subject)
        except CredentialFileError as error:
            raise RefusedError("CREDENTIALS", f"the sender cannot use its credentials: {error}") from None
        if not name:
            return
        if not isinstance(claimed, dict) or name not in claimed:
            text = f"this process has not proved that it can read the file with credentials of {name}"
            raise RefusedError("CREDENTIALS", f"{text}; give its producer the settings of the sender, without `sender`")
        text = f"the file of {name}, {files[name]}, had another content for the sender than for this process"
        raise RefusedError("FILES", f"{text}; try again when it is replaced completely")

    def _check_network(self, request: AttachRequest, theirs: Any) -> None:
        """Raise RefusedError("NETWORK") if the front-end's broker addresses may mean other brokers here."""
        if theirs != self._network_namespace and "bootstrap_servers" in request.sender_settings:
            raise RefusedError(
                "NETWORK",
                "there the addresses in bootstrap_servers may lead to other brokers; leave bootstrap_servers out to "
                "use the brokers of that sender, or start a sender in the network namespace of this process",
            )

    def _attach_to_engine(self, request: AttachRequest, arena_fd: int, wake_fd: int) -> tuple[int, int, int]:
        """Return (attach id, outcomes, wake). The engine owns the arena and the socket even if it refuses."""
        try:
            return self._front_ends.attach(arena_fd, request.slots, request.settings, wake_fd)
        except ValueError as error:
            raise RefusedError("MALFORMED", str(error)) from None
        except OverflowError as error:
            raise RefusedError("REFUSED", f"{error}; use fewer transactional producers on this host") from None
        except PermissionError:
            raise RefusedError("MALFORMED", "the arena's memfd does not allow a writable mapping") from None
        except (OSError, MemoryError) as error:
            raise resource_refusal(error) from None

    def _register_for_handover(self, peer: Peer, attach_id: int, meta: dict[str, Any], opened: tuple[int, int]) -> None:
        """Register a front-end with the supervisor, before it gets its answer: a successor has to know of it."""
        message = {"op": "hold", "attach_id": attach_id, "meta": meta}
        if self._line.give(message, (peer.fd, peer.pidfd, *self._front_ends.descriptors(attach_id))):
            return
        self._table.detach(attach_id)
        for fd in opened:
            os.close(fd)
        if self._line.refusal is not None and limits.shortage_of(self._line.refusal):
            raise resource_refusal(self._line.refusal)
        raise RefusedError("REFUSED", "the sender's supervisor accepts no messages at the moment; try again")

    def answer(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Send the answer and close the descriptors. False: the front-end cannot receive it and is detached."""
        try:
            snapshot = read_only(self._snapshot_fd)
        except OSError as error:
            os.close(outcomes)
            os.close(wake)
            self.refuse(peer, resource_refusal(error))
            return False
        answer: dict[str, Any] = {
            "ok": True,
            "attach_id": peer.attach_id,
            "sender_pid": os.getpid(),
            "max_request_size": self._facts.public_settings["max_request_size"],
        }
        if "command_key" in peer.meta:  # a sender of an earlier version has given none, unless it is transactional
            answer["command_key"] = peer.meta["command_key"]
        if peer.meta["settings"].get("joined_transaction") is not None:
            # Participants of a transaction that have the same number continue the same sequences.
            answer["sender_state"] = os.fstat(self._state_fd).st_ino
        if DEBUG:
            crashpoint("attach.before-answer")
        taken = peer.send(answer, (outcomes, snapshot, wake))
        self._unread.add(peer)
        if DEBUG:
            crashpoint("attach.answered")
        for fd in (outcomes, snapshot, wake):
            os.close(fd)
        if taken:
            self._line.tell({"op": "answered", "attach_id": peer.attach_id})
        else:
            self._table.end(peer, "it does not read the answer")
        return taken

    def refuse(self, peer: Peer, error: RefusedError) -> None:
        """Refuse a peer that is not attached or cannot be. It gets the answer before the warning that is logged."""
        answer = error.answer(self._facts.replaceable)
        if error.shortage and self.needs_token:
            answer["needs_token"] = True
        peer.send(answer)
        # Front-ends receive every warning. If each new process is refused for lack of resources, one warning is enough.
        level = logging.INFO if error.shortage and self._shortage_logged else logging.WARNING
        self._shortage_logged |= bool(error.shortage)
        self._refusals.log(peer, level, "an attach was refused", why=error)
        self._table.end(peer, "refused")

    def _refuse_during_drain(self, peer: Peer) -> None:
        """Refuse an attach during the drain. The hang-up at the sender's end notifies the process to try again."""
        self._table.finish(peer)
        peer.awaits_retry = True
        if not peer.send(refusal("DRAINING", "the sender is ending")):
            self._table.end(peer, "it does not read the answer")
        elif peer.pid not in self._waiting_pids:
            self._waiting_pids.add(peer.pid)
            self._refusals.log(peer, logging.INFO, "a process waits for the end of this sender")


def _check_layout(message: dict[str, Any]) -> None:
    """Raise RefusedError if the process has another memory layout: then it has another protocol, too."""
    layout, version = message.get("layout"), message.get("version")
    if layout != LAYOUT_VERSION:
        theirs = "another version" if version is None else str(version)[:40]
        raise RefusedError(
            "LAYOUT",
            f"the sender is cyproducer {VERSION} with memory layout {LAYOUT_VERSION}, this process has {theirs} with "
            f"memory layout {str(layout)[:20]}; use the same version of cyproducer on both sides",
        )


def _check_agreement(request: AttachRequest, settings: Mapping[str, Any]) -> None:
    """Raise RefusedError("SETTINGS") if the front-end expects a sender with other settings."""
    for name, value in sorted(request.sender_settings.items()):
        if name not in settings:
            raise RefusedError("SETTINGS", f"the sender has no setting {name[:100]}")
        if name == "bootstrap_servers":
            value = comparable_servers(value, settings)
        if settings[name] != value:
            theirs, ours = shown(name, settings[name]), shown(name, value)
            text = f"{name} is {theirs} in the running sender and {ours} in this process"
            raise RefusedError("SETTINGS", text[:1000])


def _check_descriptors(fds: list[int], peer_pid: int) -> None:
    """Check the descriptors of an attach without mapping memory. Raise RefusedError that names the defect."""
    arena_fd, pidfd, wake_fd = fds
    try:
        _check_arena(arena_fd)
        _check_pidfd(pidfd, peer_pid)
        _check_wake(wake_fd)
    except OSError as error:
        raise resource_refusal(error) from None


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
