"""Attaches front-ends to the sender, or refuses them with the reason."""

import logging
import os
from collections.abc import Callable
from typing import Any

from cyproducer.host import limits
from cyproducer.host.credential_files import CredentialFileError, credential_files, unproven_file
from cyproducer.host.credentials import attaching, is_proof
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, RefusedError, parse_attach, refusal, resource_refusal
from cyproducer.sender.control.sender_info import Facts
from cyproducer.sender.handover.handover import Line
from cyproducer.shm.native import DEBUG, LAYOUT_VERSION, crashpoint, network_namespace, time_namespace
from cyproducer.version import VERSION

__all__ = ["Attaching"]

_KEY_BYTES = 16


class Attaching:
    """Answers the requests of processes that want to attach.

    settings           the sender's public settings, with which a front-end has to agree
    on_idle_timeout    called with the `sender_idle_timeout_ms` of each front-end that has one
    attached_any       whether a front-end was ever attached
    needs_token        whether a front-end must show a valid OAuth token first
    standing_warnings  warnings that each new front-end gets
    """

    def __init__(
        self,
        engine: Any,
        line: Line,
        table: PeerTable,
        facts: Facts,
        settings: dict[str, Any],
        on_idle_timeout: Callable[[int], None],
    ) -> None:
        self.attached_any = False
        self.needs_token = False
        self.standing_warnings: list[str] = []
        self._engine = engine
        self._line = line
        self._table = table
        self._facts = facts
        self._settings = settings
        self._on_idle_timeout = on_idle_timeout
        self._waiting_pids: set[int] = set()
        self._shortage_logged = False
        self._time_namespace = time_namespace()
        self._network_namespace = network_namespace()

    def attach(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        """Attach a peer, refuse it, or challenge it first. What is used of `fds` is removed from the list."""
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
        self.attached_any = True
        if not self.answer(peer, outcomes, wake):
            return
        self._table.watch_process(peer)
        asked = settings.get("sender_idle_timeout_ms")
        if isinstance(asked, int):
            self._on_idle_timeout(asked)
        self._table.refusals.note(peer, logging.INFO, "attached", attach_id=peer.attach_id, app=peer.app)
        for text in self.standing_warnings:
            peer.send({"op": "warning", "message": text})

    def _try(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> tuple[int, int, dict[str, Any]]:
        """Attach the peer to the engine. Return (outcomes, wake, its settings); raise RefusedError."""
        if message.get("time_namespace", self._time_namespace) != self._time_namespace:
            text = "the sender is in another time namespace; start one in the time namespace of this process"
            raise RefusedError("REFUSED", text)
        request = parse_attach(message, fds, peer.pid)
        # Before the settings are compared: a process without the secrets learns none of them.
        if self.needs_token and not peer.vouched:
            text = "this process has shown no OAuth token; give its producer the setting sasl_oauth_token_provider"
            raise RefusedError("CREDENTIALS", text)
        self._check_credentials(peer, message, request.arena_fd)
        request.check_agreement(self._settings)
        request.check_network(message.get("network_namespace", self._network_namespace), self._network_namespace)
        self._table.quotas.check_front_end(peer)
        peer.take(request, self._table.front_ends.values())
        request.settings["other_user"] = not peer.is_owner
        fds.clear()
        if DEBUG:
            crashpoint("attach.request-read")
        attach_id, outcomes, wake = self._engine_attach(request)
        peer.meta = request.meta(peer.pid)
        if request.settings.get("transactional_id") is not None:
            peer.meta["command_key"] = os.urandom(_KEY_BYTES).hex()
        self._register_for_handover(peer, attach_id, (outcomes, wake))
        if DEBUG:
            crashpoint("attach.in-handover")
        peer.attach_id, peer.app = attach_id, request.app
        peer.claimed_pid = request.pid
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

    def _engine_attach(self, request: Any) -> tuple[int, int, int]:
        """Return (attach id, outcomes, wake). The engine owns the request's arena and socket even if it refuses."""
        try:
            attached: tuple[int, int, int] = self._engine.attach(
                request.arena_fd, request.slots, request.settings, request.wake_fd
            )
            return attached
        except ValueError as error:
            raise RefusedError("MALFORMED", str(error)) from None
        except OverflowError as error:
            raise RefusedError("REFUSED", f"{error}; use fewer transactional producers on this host") from None
        except PermissionError:
            raise RefusedError("MALFORMED", "the arena's memfd does not allow a writable mapping") from None
        except (OSError, MemoryError) as error:
            raise resource_refusal(error) from None

    def _register_for_handover(self, peer: Peer, attach_id: int, opened: tuple[int, int]) -> None:
        """Register a front-end with the supervisor, before it gets its answer: a successor has to know of it."""
        message = {"op": "hold", "attach_id": attach_id, "meta": peer.meta}
        if self._line.give(message, (peer.fd, peer.pidfd, *self._engine.descriptors(attach_id))):
            return
        self._engine.detach(attach_id)
        for fd in opened:
            os.close(fd)
        if self._line.refusal is not None and limits.shortage_of(self._line.refusal):
            raise resource_refusal(self._line.refusal)
        raise RefusedError("REFUSED", "the sender's supervisor accepts no messages at the moment; try again")

    def answer(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Send the answer and close the descriptors. False: the front-end cannot receive it and is detached."""
        try:
            snapshot = self._engine.snapshot_fd()
        except OSError as error:
            os.close(outcomes)
            os.close(wake)
            self.refuse(peer, resource_refusal(error))
            return False
        answer: dict[str, Any] = {
            "ok": True,
            "attach_id": peer.attach_id,
            "sender_pid": os.getpid(),
            "max_request_size": self._settings["max_request_size"],
        }
        if "command_key" in peer.meta:
            answer["command_key"] = peer.meta["command_key"]
        if peer.meta["settings"].get("joined_transaction") is not None:
            # Participants of a transaction that have the same number continue the same sequences.
            answer["sender_state"] = os.fstat(self._engine.regions()[0]).st_ino
        if DEBUG:
            crashpoint("attach.before-answer")
        taken = peer.send(answer, (outcomes, snapshot, wake))
        self._table.unread.note(peer)
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
        self._table.refusals.note(peer, level, "an attach was refused", why=error)
        self._table.end(peer, "refused")

    def refuse_during_drain(self, peer: Peer) -> None:
        """Refuse an attach during the drain. The hang-up at the sender's end notifies the process to try again."""
        self._table.finish(peer)
        peer.awaits_retry = True
        if not peer.send(refusal("DRAINING", "the sender is ending")):
            self._table.end(peer, "it does not read the answer")
        elif peer.pid not in self._waiting_pids:
            self._waiting_pids.add(peer.pid)
            self._table.refusals.note(peer, logging.INFO, "a process waits for the end of this sender")


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
