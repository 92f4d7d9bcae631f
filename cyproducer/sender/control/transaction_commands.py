"""Checks the commands of transactional producers and passes them to the engine, whose answer comes later."""

import hmac
from typing import Any

from cyproducer.config.kinds import is_topic_name
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, refusal

__all__ = ["TransactionCommands", "parse_command"]

COMMANDS = ("init", "fail", "share", "commit", "abort", "offsets")
INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
TEXT_BYTES_MAX = INT16_MAX  # what a string of Kafka's protocol can have


class _InvalidError(Exception):
    """The field with this name is missing or has an invalid value."""


class TransactionCommands:
    """Answers each command on the connection on which it came, which may bring further ones of the same front-end.

    The connection has no time limit. It ends with its front-end, or after its answer if a command of the front-end has
    come on another connection.
    """

    def __init__(self, engine: Any, table: PeerTable) -> None:
        self._engine = engine
        self._table = table

    def do(self, peer: Peer, message: dict[str, Any]) -> None:
        """Begin a command, or refuse it. A hang-up of the connection does not end the command."""
        try:
            attach_id, fields = parse_command(message)
        except _InvalidError as error:
            peer.send(refusal("MALFORMED", f"a command about a transaction has no valid {error}"))
            return
        front_end = self._table.front_ends.get(attach_id)
        if front_end is None or not _may_command(peer, front_end, message.get("key")):
            text = f"process {peer.pid} has no attached front-end with attach_id {attach_id}"
            peer.send(refusal("REFUSED", text))
            return
        if peer.commands_of not in (0, attach_id):
            text = f"this connection has brought commands of the front-end {peer.commands_of}"
            peer.send(refusal("MALFORMED", text))
            return
        self._table.finish(peer)
        self._table.add_command(peer, attach_id)
        reply = _Reply(self._table, peer)
        self._engine.command_transaction(attach_id, fields, reply)
        reply.has_waited = True


class _Reply:
    """Sends the answer to one command. has_waited: it did not come at once, since brokers are asked."""

    def __init__(self, table: PeerTable, peer: Peer) -> None:
        self._table = table
        self._peer = peer
        self.has_waited = False

    def __call__(self, result: dict[str, Any]) -> None:
        peer = self._peer
        if self._table.peers.get(peer.fd) is not peer:
            return  # it has hung up
        peer.send(result)
        if self.has_waited:  # such commands cannot come in a flood
            self._table.budget.give_back(peer.fd, peer.account)
        self._table.end_command(peer)


def _may_command(peer: Peer, front_end: Peer, key: Any) -> bool:
    """Return whether the peer is the process of the front-end. Uids and pids are the kernel's.

    In a PID namespace that is not visible from here every pid is 0. So the process also shows the key that it has got
    in the answer to its attach.
    """
    known = front_end.meta.get("command_key")
    if (peer.uid, peer.pid) != (front_end.uid, front_end.pid) or known is None or not isinstance(key, str):
        return False
    return hmac.compare_digest(key.encode(errors="replace"), known.encode())


def parse_command(message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return (attach id, fields of a TransactionCommand of sender/cluster/transactions.py), all of them checked.

    Raise _InvalidError with the name of the first invalid field.
    """
    attach_id = _integer(message, "attach_id", 1, INT64_MAX)
    fields: dict[str, Any] = {
        "number": _integer(message, "number", 1, INT64_MAX),
        "do": message.get("do"),
        "producer_id": _integer(message, "producer_id", -1, INT64_MAX),
        "epoch": _integer(message, "epoch", -1, INT16_MAX),
        "group": {},
        "offsets": [],
    }
    if fields["do"] not in COMMANDS:
        raise _InvalidError("do")
    if fields["do"] == "offsets":
        fields["group"] = _group(message.get("group"))
        fields["offsets"] = _offsets(message.get("offsets"))
    return attach_id, fields


def _group(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _InvalidError("group")
    instance = value.get("group_instance_id")
    return {
        "group_id": _text(value.get("group_id"), "group_id"),
        "generation_id": _integer(value, "generation_id", -1, INT32_MAX),
        "member_id": _text(value.get("member_id"), "member_id"),
        "group_instance_id": None if instance is None else _text(instance, "group_instance_id"),
    }


def _offsets(value: Any) -> list[tuple[str, int, int, int, str]]:
    """Return the rows (topic, partition, offset, leader epoch, metadata), each partition once."""
    if not isinstance(value, list) or not value:
        raise _InvalidError("offsets")
    found: dict[tuple[str, int], tuple[str, int, int, int, str]] = {}
    for row in value:
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[0], str) or not is_topic_name(row[0]):
            raise _InvalidError("offsets")
        limits = ((row[1], 0, INT32_MAX), (row[2], 0, INT64_MAX), (row[3], -1, INT32_MAX))
        if not all(_is_in(number, least, most) for number, least, most in limits):
            raise _InvalidError("offsets")
        topic, partition, offset, leader_epoch, metadata = row
        found[topic, partition] = topic, partition, offset, leader_epoch, _text(metadata, "offsets")
    if len(found) != len(value):
        raise _InvalidError("offsets")
    return list(found.values())


def _integer(message: dict[str, Any], name: str, least: int, most: int) -> int:
    value: Any = message.get(name)
    if not _is_in(value, least, most):
        raise _InvalidError(name)
    number: int = value
    return number


def _is_in(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _text(value: Any, name: str) -> str:
    """Return a text that a request can contain."""
    try:
        if isinstance(value, str) and len(value.encode()) <= TEXT_BYTES_MAX:
            return value
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        pass
    raise _InvalidError(name)
