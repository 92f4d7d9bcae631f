"""Answers the messages of the processes that are connected to the sender's control socket; see host/messages.py."""

import hmac
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.host.messages import InvalidMessageError, parse_command, parse_front_end, parse_want
from cyproducer.sender.cluster.metadata import Metadata
from cyproducer.sender.cluster.queries import Queries
from cyproducer.sender.cluster.telemetry import Telemetry
from cyproducer.sender.cluster.transactions import Transactions
from cyproducer.sender.control.attaching import Attaching
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, RefusedError, refusal
from cyproducer.sender.control.quotas import UserLimits
from cyproducer.sender.control.status import Status
from cyproducer.sender.control.takeover import Takeover
from cyproducer.sender.control.token_suppliers import TokenSuppliers
from cyproducer.sender.engine.native import FrontEnds

__all__ = ["Requests"]

Message = dict[str, Any]


class Operation(NamedTuple):
    """What is done for an "op". of_front_end: whether only attached front-ends send it, or only others; None: both."""

    answer: Callable[[Peer, Message, list[int]], None]
    of_front_end: bool | None = None


class Requests:
    """Has the answer to each "op" in one table: `operations`."""

    def __init__(
        self,
        front_ends: FrontEnds,
        metadata: Metadata,
        telemetry: Telemetry,
        queries: Queries,
        transactions: Transactions,
        table: PeerTable,
        limits: UserLimits,
        ending: Ending,
        attaching: Attaching,
        tokens: TokenSuppliers,
        takeover: Takeover,
        status: Status,
    ) -> None:
        self._front_ends = front_ends
        self._metadata = metadata
        self._telemetry = telemetry
        self._queries = queries
        self._transactions = transactions
        self._table = table
        self._quotas = limits.quotas
        self._budget = limits.budget
        self._refusals = limits.refusals
        self._ending = ending
        self._attaching = attaching
        self._status = status
        self.operations = {
            "attach": Operation(attaching.attach, of_front_end=False),
            "want": Operation(self._ignore, of_front_end=True),  # want() has handled it
            "close": Operation(self._close, of_front_end=True),
            "purge": Operation(self._purge, of_front_end=False),
            "token": Operation(lambda peer, message, fds: tokens.on_token(peer, message), of_front_end=False),
            "transaction": Operation(self._command_transaction, of_front_end=False),
            "transactions": Operation(self._ask_about_transactions, of_front_end=False),
            "client_instance_id": Operation(self._client_instance_id),
            "status": Operation(self._describe),
            "health": Operation(self._health),
            "stop": Operation(self._stop),
            "replace": Operation(lambda peer, message, fds: takeover.answer(peer, message)),
        }

    def answer(self, peer: Peer, message: Message, fds: list[int]) -> None:
        """Handle one message. Code that takes over one of `fds` removes it from the list."""
        op = message.get("op")
        operation = self.operations.get(op) if isinstance(op, str) else None
        if operation is None or operation.of_front_end not in (None, bool(peer.attach_id)):
            peer.send(refusal("MALFORMED", f"unexpected message: {str(op)[:40]!r}"))
            self._table.end(peer, "it sent an unexpected message")
            return
        operation.answer(peer, message, fds)

    def refuse(self, peer: Peer, error: RefusedError) -> None:
        """Refuse a peer whose message could not be read for lack of resources."""
        self._attaching.refuse(peer, error)

    # ------------------------------------------------------------------ front-ends

    def want(self, peer: Peer, message: Message) -> bool:
        """Handle a "want" before it is taken from the socket: a successor finds it there or in the state region.

        Return whether it is the front-end's first request for this topic; the number of these is limited.
        """
        try:
            wanted = parse_want(message) if message.get("op") == "want" else None
        except InvalidMessageError as error:
            peer.send({"op": "warning", "message": str(error)})  # cyproducer's own front-ends check the name before
            return False
        if wanted is None:
            return False
        name, is_new_topic = wanted.topic, False
        try:
            if name not in peer.wanted:
                self._quotas.check_topic(peer, self._table.front_ends.values())
            is_new_topic = peer.add_wanted(name)
            self._metadata.want(peer.attach_id, name, wanted.partition)
        except (OverflowError, ValueError) as error:
            peer.send({"op": "refused", "topic": name, "message": str(error)})
            if not peer.refusal_logged:
                peer.refusal_logged = True
                text = "cannot request metadata of a topic"
                self._refusals.log(peer, logging.WARNING, text, app=peer.app, topic=name, why=error)
        return is_new_topic

    def _ignore(self, peer: Peer, message: Message, fds: list[int]) -> None:
        pass

    def _close(self, peer: Peer, message: Message, fds: list[int]) -> None:
        peer.orderly = True

    def _purge(self, peer: Peer, message: Message, fds: list[int]) -> None:
        """Drop what a front-end has queued. It asks on another connection, which an earlier version only hangs up."""
        try:
            attach_id, key = parse_front_end(message)
        except InvalidMessageError as error:
            peer.send(refusal("MALFORMED", f"a purge has no valid {error}"))
            return
        if not self._may_command(peer, attach_id, key):
            return
        try:
            self._front_ends.purge(attach_id)
        except ValueError as error:
            peer.send(refusal("MALFORMED", str(error)))
        else:
            peer.send({"ok": True})

    def _may_command(self, peer: Peer, attach_id: int, key: str | None) -> bool:
        """Return whether the peer is the process of an attached front-end, and refuse it otherwise."""
        front_end = self._table.front_ends.get(attach_id)
        if front_end is not None and _is_process_of(peer, front_end, key):
            return True
        text = f"process {peer.pid} has no attached front-end with attach_id {attach_id}"
        peer.send(refusal("REFUSED", text))
        return False

    # ------------------------------------------------------------------ transactions

    def _command_transaction(self, peer: Peer, message: Message, fds: list[int]) -> None:
        """Begin a command, or refuse it. A hang-up of the connection does not end the command.

        The answer comes on the connection on which the command came, which may bring further ones of the same
        front-end. The connection has no time limit. It ends with its front-end, or after its answer if a command of the
        front-end has come on another connection.
        """
        try:
            attach_id, key, command = parse_command(message)
        except InvalidMessageError as error:
            peer.send(refusal("MALFORMED", f"a command about a transaction has no valid {error}"))
            return
        if not self._may_command(peer, attach_id, key):
            return
        if peer.commands_of not in (0, attach_id):
            text = f"this connection has brought commands of the front-end {peer.commands_of}"
            peer.send(refusal("MALFORMED", text))
            return
        self._table.finish(peer)
        self._table.add_command(peer, attach_id)
        asks_brokers = False

        def respond(result: Message) -> None:
            if not self._table.has(peer):
                return  # it has hung up
            peer.send(result)
            if asks_brokers:  # such commands cannot come in a flood
                self._budget.give_back(peer.fd, peer.account)
            self._table.end_command(peer)

        self._transactions.command(attach_id, command, respond)
        asks_brokers = True  # of an answer that comes later

    def _ask_about_transactions(self, peer: Peer, question: Message, fds: list[int]) -> None:
        """Answer once the brokers have answered. The connection has no time limit until then."""
        if question.get("do") == "abort" and not peer.is_owner:
            text = f"uid {peer.uid} may not abort transactions with this sender, only its owner and root may"
            peer.send(refusal("REFUSED", text))
            return

        def respond(result: Message) -> None:
            if not self._table.has(peer):
                return  # it has hung up
            try:
                self._table.send_document(peer, "transactions", lambda: result)
            except (OSError, MemoryError) as error:
                text = "a process gets no answer about transactions"
                self._refusals.log(peer, logging.WARNING, text, why=error or "no memory")
                self._table.end(peer, "its answer could not be sent")

        try:
            self._queries.ask(question, respond)
        except ValueError as error:
            peer.send(refusal("MALFORMED", str(error)))
        else:
            self._table.finish(peer)

    # ------------------------------------------------------------------ the sender

    def _describe(self, peer: Peer, message: Message, fds: list[int]) -> None:
        self._table.send_document(peer, "status", self._status.describe)

    def _health(self, peer: Peer, message: Message, fds: list[int]) -> None:
        peer.send(self._status.health())

    def _client_instance_id(self, peer: Peer, message: Message, fds: list[int]) -> None:
        known = self._telemetry.client_instance_id()
        peer.send({"ok": True, "id": known, "pushes": self._telemetry.enabled})

    def _stop(self, peer: Peer, message: Message, fds: list[int]) -> None:
        if not peer.is_owner:
            peer.send(refusal("REFUSED", f"uid {peer.uid} may not stop this sender, only its owner and root may"))
            return
        self._table.await_end(peer)
        peer.send({"ok": True})
        self._ending.drain(f"stop request from pid {peer.pid}")


def _is_process_of(peer: Peer, front_end: Peer, key: str | None) -> bool:
    """Return whether the peer is the process of the front-end. Uids and pids are the kernel's.

    In a PID namespace that is not visible from here every pid is 0. So the process also shows the key that it has got
    in the answer to its attach.
    """
    known = front_end.meta.get("command_key")
    if (peer.uid, peer.pid) != (front_end.uid, front_end.pid) or known is None or key is None:
        return False
    return hmac.compare_digest(key.encode(errors="replace"), known.encode())
