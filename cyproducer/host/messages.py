"""Defines the messages that processes of one host send each other, as their receivers check them.

Each is a JSON object, see control_messages.py. The process that sends it may be hostile, or of another version. So a
field that this version does not know is ignored, a field that an earlier version did not have is optional, and numbers
and texts have ranges.

    front-end -> sender   {"op": "attach", "layout", "version", "challenge": true} -> {"ok": true, "challenge"}, first,
                          if its settings have credentials
                          {"op": "attach", "layout", "version", "pid", "time_namespace", "network_namespace", "app",
                           "slots", "settings", "sender_settings"[, "proof"][, "files"]}; "proof" is that of
                          credentials.py, "files" those of credential_files.py
                          with descriptors ARENA, PIDFD, WAKE (datagram socket that the sender writes)
    sender -> front-end   {"ok": true, "attach_id", "sender_pid", "max_request_size"[, "command_key"]}; the key is for
                          "transaction" and "purge"
                          with descriptors OUTCOMES (read-only), SNAPSHOT (read-only),
                          WAKE (eventfd that the front-end writes)
                          or {"ok": false, "error": code name, "message"[, "shortage", "limits", "replaceable"
                          [, "needs_token"]]}: the optional fields if the sender has too few resources (limits.py)
    before an attach,     {"op": "token", "token", "expires_at", "extensions", "serve"}: an OAuth token, which a broker
    or on another         checks; "serve": this connection stays, and the sender asks on it for further tokens
    connection            or {"op": "token", "error"}: there is none
    sender                {"ok": true}, or {"ok": false, "error": code name, "message"}; with the code UNCHECKED the
                          same token may be taken later
                          {"op": "token"}: asks for a token
    later, front-end      {"op": "want", "topic": name, "partition": index}
                                                                requests a wake-up when the snapshot has the topic's
                                                                metadata, or newer metadata if it lacks the partition
                          {"op": "close"}                       everything is acknowledged: detach
    sender                {"op": "warning", "message"}          for the logger cyproducer.sender
                          {"op": "refused", "topic", "message"} a "want" is refused: the table of topics has no space
                          {"op": "ended"}                       the sender ends: it sends no more batches and hangs up
                          {"op": "detached", "message"}         the front-end is detached; the sender continues and may
                                                                still deliver the batches that it knows
    A hang-up without "ended" or "detached" means that sender and supervisor are gone. The front-end then owns its
    unsent batches again.
    front-end, on another {"op": "transaction", "attach_id", "key", "number", "do", "producer_id", "epoch"
    connection            [, "group", "offsets"]}: "do" is one of COMMANDS. A hang-up does not end the command; a
                          repeated number gets the result of the first one. The answer comes when it is known. The
                          connection may bring the next command of this front-end:
                          {"ok": true, "producer_id", "epoch"}
                          or {"ok": false, "kind": "abortable" | "fatal" | "retriable", "code", "message"}
                          or {"ok": false, "error": code name, "message"}: the sender does not take the command
                          {"op": "purge", "attach_id", "key"} -> {"ok": true}: what this front-end has queued and is in
                          no log has its outcome now; or a refusal, as that of an older sender, which hangs up
    any process           {"op": "status"} -> the status as JSON; {"op": "stop"} -> drain and end
                          {"op": "health"} -> {"ok", "state", ...}: see Status.health in sender/control/status.py.
                          "ok": false alone says that the sender does not work now. With "error" it is a refusal, as
                          that of an older sender, which does not know this message and hangs up
                          {"op": "transactions", "do": "list" | "describe" | "abort" | "metadata", ...} -> the answer of
                          sender/cluster/queries.py as JSON
                          {"op": "client_instance_id"} -> {"ok": true, "id": text or null, "pushes": whether the sender
                          pushes metrics}; without an id, the sender requests one

The messages between a supervisor and its sender (sender/handover/handover.py) are not checked: one of them was forked
from the other, so both run the same code. Those between two supervisors are in sender/handover/upgrade.py.
"""

import math
import os
import stat
from typing import Any, NamedTuple

from cyproducer.config.kinds import is_topic_name
from cyproducer.config.table import BUFFER_MEMORY_MAX, COMPRESSION_LEVELS, SENT

__all__ = [
    "ARENA",
    "COMMANDS",
    "CONTROL",
    "HELD",
    "OUTCOMES",
    "PIDFD",
    "SENDER_WAKE",
    "WAKE",
    "AttachRequest",
    "HandoverFacts",
    "HeldFrontEnd",
    "InvalidMessageError",
    "SuppliedToken",
    "TransactionCommand",
    "Want",
    "check_descriptors",
    "parse_attach",
    "parse_command",
    "parse_facts",
    "parse_front_end",
    "parse_held",
    "parse_token",
    "parse_want",
]

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1


class InvalidMessageError(Exception):
    """A message lacks a field, or has one with an invalid value; the text says which."""


# ---------------------------------------------------------------------- attach

ATTACH_DESCRIPTORS = 3
SLOTS_MAX = BUFFER_MEMORY_MAX // 4096  # a front-end has no more slots than pages
APP_CHARACTERS_MAX = 100


class AttachRequest(NamedTuple):
    """A front-end's request to be attached.

    settings         those of the front-end
    sender_settings  those that it expects the sender to have
    """

    pid: int
    app: str
    slots: int
    settings: dict[str, Any]
    sender_settings: dict[str, Any]


def parse_attach(message: dict[str, Any], descriptor_count: int) -> AttachRequest:
    """Return an attach request. Raise InvalidMessageError."""
    if descriptor_count != ATTACH_DESCRIPTORS:
        raise InvalidMessageError(f"{descriptor_count} descriptors came, an attach needs {ATTACH_DESCRIPTORS}")
    _attach_integer(message, "layout")  # the caller has compared it: it may be 13.0
    pid, slots = _attach_integer(message, "pid"), _attach_integer(message, "slots")
    if not 0 < slots <= SLOTS_MAX:
        raise InvalidMessageError(f"slots is {slots}, allowed are 1 to {SLOTS_MAX}")
    settings, sender_settings = message.get("settings"), message.get("sender_settings")
    if not isinstance(settings, dict) or not isinstance(sender_settings, dict):
        raise InvalidMessageError("settings or sender_settings is missing")
    app = message.get("app")
    app = "".join(c for c in app if c.isprintable())[:APP_CHARACTERS_MAX] if isinstance(app, str) else ""
    return AttachRequest(pid, app or "?", slots, _front_end_settings(settings), sender_settings)


def _attach_integer(message: dict[str, Any], name: str) -> int:
    value: Any = message.get(name)
    if type(value) is not int:
        raise InvalidMessageError(f"{name} is not an integer")
    number: int = value
    return number


def _front_end_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the sender uses. Raise InvalidMessageError for what Settings refuses.

    A setting that an older front-end does not know has its default.
    """
    found: dict[str, Any] = {row.name: settings.get(row.name, row.default) for row in SENT}
    for row in SENT:
        if not row.kind.has(found[row.name]):
            raise _invalid(row.name, found[row.name])
    codec, level = found["compression_type"], found["compression_level"]
    if codec is None:
        found["compression_level"] = None
    elif level is not None and not _is_in(level, *COMPRESSION_LEVELS.get(codec, (0, -1))):
        raise _invalid("compression_level", level)
    name, joined = found["transactional_id"], settings.get("joined_transaction")
    if name is not None and (found["acks"] != -1 or not found["enable_idempotence"]):
        raise InvalidMessageError("acks or enable_idempotence has a value that transactional_id does not allow")
    if joined is not None and (name is None or not _is_transaction(joined)):
        raise _invalid("joined_transaction", joined)
    return {**found, "joined_transaction": joined}


def _invalid(name: str, value: Any) -> InvalidMessageError:
    return InvalidMessageError(f"{name} has an invalid value: {str(value)[:40]!r}")


def _is_transaction(value: Any) -> bool:
    """Return whether it is [producer id, epoch, whether it uses KIP-890]."""
    if not isinstance(value, list) or [type(each) for each in value] != [int, int, bool]:
        return False
    return _is_in(value[0], 0, INT64_MAX) and _is_in(value[1], 0, INT16_MAX)


# ---------------------------------------------------------------------- other messages of a front-end


class Want(NamedTuple):
    """A request for metadata of a topic in which a partition exists."""

    topic: str
    partition: int


def parse_want(message: dict[str, Any]) -> Want | None:
    """Return a request for a topic; None if the message names none. Raise InvalidMessageError for an invalid name."""
    name: Any = message.get("topic")
    if not isinstance(name, str):
        return None
    if not is_topic_name(name):
        raise InvalidMessageError(f"InvalidTopicError: {name[:40]!r} is not a valid topic name")
    partition: Any = message.get("partition")
    return Want(name, max(partition, 0) if type(partition) is int else 0)


TOKEN_CHARACTERS_MAX = 65_536
TROUBLE_CHARACTERS_MAX = 500


class SuppliedToken(NamedTuple):
    """An OAuth token of a front-end. trouble: why there is none, else None. serve: it supplies further ones."""

    value: str
    expires_at: float | None
    extensions: dict[str, str]
    serve: bool
    trouble: str | None = None


def parse_token(message: dict[str, Any]) -> SuppliedToken:
    """Return a token, or why there is none. Raise InvalidMessageError."""
    trouble = message.get("error")
    if isinstance(trouble, str):
        shown = "".join(each if each.isprintable() else "?" for each in trouble[:TROUBLE_CHARACTERS_MAX])
        return SuppliedToken("", None, {}, False, shown)
    value, expires_at, extensions = message.get("token"), message.get("expires_at"), message.get("extensions")
    if (
        not isinstance(value, str)
        or not value.isascii()
        or not 0 < len(value) <= TOKEN_CHARACTERS_MAX
        or not (expires_at is None or (type(expires_at) in (int, float) and math.isfinite(expires_at)))
        or not isinstance(extensions, dict)
        or not all(isinstance(each, str) for each in extensions.values())
    ):
        raise InvalidMessageError("the message has no valid OAuth token")
    return SuppliedToken(value, expires_at, extensions, message.get("serve") is True)


# ---------------------------------------------------------------------- commands of transactional producers

COMMANDS = ("init", "fail", "share", "commit", "abort", "offsets")
TEXT_BYTES_MAX = INT16_MAX  # what a string of Kafka's protocol can have


class TransactionCommand(NamedTuple):
    """A command of a transactional front-end.

    number     counts the commands of the front-end
    do         one of COMMANDS
    producer_id, epoch  what the front-end knows, -1 at first
    group      {"group_id", "generation_id", "member_id", "group_instance_id"}; empty unless `do` is "offsets"
    offsets    [(topic, partition, offset, leader epoch, metadata)], each partition once
    """

    number: int
    do: str
    producer_id: int
    epoch: int
    group: dict[str, Any]
    offsets: list[tuple[str, int, int, int, str]]


def parse_command(message: dict[str, Any]) -> tuple[int, str | None, TransactionCommand]:
    """Return (attach id, key, command). Raise InvalidMessageError with the name of the first invalid field."""
    attach_id, key = parse_front_end(message)
    number = _integer(message, "number", 1, INT64_MAX)
    producer_id = _integer(message, "producer_id", -1, INT64_MAX)
    epoch = _integer(message, "epoch", -1, INT16_MAX)
    do = message.get("do")
    if not isinstance(do, str) or do not in COMMANDS:
        raise InvalidMessageError("do")
    has_offsets = do == "offsets"
    group = _group(message.get("group")) if has_offsets else {}
    offsets = _offsets(message.get("offsets")) if has_offsets else []
    return attach_id, key, TransactionCommand(number, do, producer_id, epoch, group, offsets)


def parse_front_end(message: dict[str, Any]) -> tuple[int, str | None]:
    """Return (attach id, key) of the front-end for which a process asks. Raise InvalidMessageError: "attach_id".

    The key shows that the process is the front-end's; None: it has shown none.
    """
    key = message.get("key")
    return _integer(message, "attach_id", 1, INT64_MAX), key if isinstance(key, str) else None


def _group(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidMessageError("group")
    instance = value.get("group_instance_id")
    return {
        "group_id": _text(value.get("group_id"), "group_id"),
        "generation_id": _integer(value, "generation_id", -1, INT32_MAX),
        "member_id": _text(value.get("member_id"), "member_id"),
        "group_instance_id": None if instance is None else _text(instance, "group_instance_id"),
    }


def _offsets(value: Any) -> list[tuple[str, int, int, int, str]]:
    if not isinstance(value, list) or not value:
        raise InvalidMessageError("offsets")
    found: dict[tuple[str, int], tuple[str, int, int, int, str]] = {}
    for row in value:
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[0], str) or not is_topic_name(row[0]):
            raise InvalidMessageError("offsets")
        limits = ((row[1], 0, INT32_MAX), (row[2], 0, INT64_MAX), (row[3], -1, INT32_MAX))
        if not all(_is_in(number, least, most) for number, least, most in limits):
            raise InvalidMessageError("offsets")
        topic, partition, offset, leader_epoch, metadata = row
        found[topic, partition] = topic, partition, offset, leader_epoch, _text(metadata, "offsets")
    if len(found) != len(value):
        raise InvalidMessageError("offsets")
    return list(found.values())


def _integer(message: dict[str, Any], name: str, least: int, most: int) -> int:
    value: Any = message.get(name)
    if not _is_in(value, least, most):
        raise InvalidMessageError(name)
    number: int = value
    return number


def _is_in(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _text(value: Any, name: str) -> str:
    """Return a text that a request can contain."""
    if not _is_text(value, TEXT_BYTES_MAX):
        raise InvalidMessageError(name)
    text: str = value
    return text


def _is_text(value: Any, bytes_max: int) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= bytes_max
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        return False


# ---------------------------------------------------------------------- between two supervisors

#: The descriptors of a front-end in the messages "hold" and "quarantined".
CONTROL, PIDFD, ARENA, OUTCOMES, WAKE, SENDER_WAKE = range(6)
HELD = 6
#: Those of a front-end that has ended, which are the ones without CONTROL and PIDFD.
HELD_ENDED = HELD - 2
_LEDGER_ROW = {"app": str, "topic": str, "cause": str, "count": int, "first": (int, float), "last": (int, float)}
_META = {"app": str, "pid": int, "slots": int, "settings": dict}


class HeldFrontEnd(NamedTuple):
    """A front-end that is handed over. meta: app, pid, slots and settings of its attach request."""

    attach_id: int
    meta: dict[str, Any]
    answered: bool
    ended: bool


class HandoverFacts(NamedTuple):
    """The state of a supervisor. The rows of a long ledger come in several messages, which are the same otherwise."""

    draining: str
    deaths: dict[int, int]
    cluster_id: str | None
    idle_timeout_s: float | None
    watchdog_s: float
    ledger: list[dict[str, Any]]


def parse_held(message: dict[str, Any], fds: list[int]) -> HeldFrontEnd:
    """Return the front-end of a message with its descriptors. Raise InvalidMessageError."""
    attach_id, meta = message.get("attach_id"), message.get("meta")
    answered, ended = message.get("answered"), message.get("ended")
    if (
        type(attach_id) is not int
        or not isinstance(meta, dict)
        or not _has(meta, _META)
        or type(answered) is not bool
        or type(ended) is not bool
        or len(fds) != (HELD_ENDED if ended else HELD)
        or not (ended or (_is_socket(fds[CONTROL]) and _is_pidfd(fds[PIDFD])))
    ):
        raise _other_form(fds)
    return HeldFrontEnd(attach_id, meta, answered, ended)


def parse_facts(message: dict[str, Any], fds: list[int]) -> HandoverFacts:
    """Return the state of the former supervisor. Raise InvalidMessageError."""
    draining, deaths, ledger = message.get("draining"), message.get("deaths"), message.get("ledger")
    cluster_id, timeout_s = message.get("cluster_id"), message.get("idle_timeout_s")
    watchdog_s = message.get("watchdog_s", 0.0)
    if (
        fds
        or not isinstance(draining, str)
        or not (cluster_id is None or isinstance(cluster_id, str))
        or not (timeout_s is None or type(timeout_s) in (int, float))
        or not (type(watchdog_s) in (int, float) and 0 <= watchdog_s < math.inf)
        or not isinstance(deaths, list)
        or not all(isinstance(pair, list) and [type(number) for number in pair] == [int, int] for pair in deaths)
        or not isinstance(ledger, list)
        or not all(_has(row, _LEDGER_ROW) for row in ledger)
    ):
        raise _other_form(fds)
    return HandoverFacts(draining, dict(deaths), cluster_id, timeout_s, watchdog_s, ledger)


def check_descriptors(op: object, fds: list[int]) -> None:
    """Raise InvalidMessageError if a message that consists of its descriptors has others. Unknown messages pass."""
    if (
        (op == "post" and not (len(fds) == 2 and _is_socket(fds[1])))
        or (op == "regions" and len(fds) not in (0, 2))  # none: no sender has started yet
        or (op == "waiting" and not (fds and all(map(_is_socket, fds))))
    ):
        raise _other_form(fds)


def _other_form(fds: list[int]) -> InvalidMessageError:
    return InvalidMessageError(f"it has another form than this build knows, with {len(fds)} descriptors")


def _has(value: object, fields: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) and not isinstance(value.get(name), bool) for name, kind in fields.items()
    )


def _is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def _is_pidfd(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:[pidfd]", "pidfd:"))
