"""Draws control messages that no correct process sends: valid ones, then changed as JSON or as bytes, with descriptors.

hypothesis draws them, so that a message that breaks something is reduced to a small one, and is tried again first.
"""

import copy
import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from cyproducer.shm.native import LAYOUT_VERSION, create_arena

__all__ = [
    "ANSWERS",
    "COMMAND_KEY",
    "DESCRIPTORS",
    "GOOD_TOKEN",
    "REQUESTS",
    "Step",
    "actions",
    "answers",
    "changed",
    "handovers",
    "open_all",
]

#: A token that a broker accepts.
GOOD_TOKEN = "good"

FRONT_END_SETTINGS = {
    "acks": -1,
    "enable_idempotence": True,
    "linger_ms": 5,
    "delivery_timeout_ms": 1000,
    "retries": 3,
    "batch_size": 65_536,
    "sender_idle_timeout_ms": 1000,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000,
}
TRANSACTIONAL = {"transactional_id": "t", "transaction_timeout_ms": 1000, "joined_transaction": None}
ARENA_BYTES = 1 << 20


def _arena() -> int:
    region, _ = create_arena(ARENA_BYTES)
    fd = os.dup(region.fd)
    region.close()
    return fd


def _slots() -> int:
    region, slots = create_arena(ARENA_BYTES)
    region.close()
    return slots


def _wake() -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.close()
    return theirs.detach()


def _epoll() -> int:
    with select.epoll() as made:
        return os.dup(made.fileno())


def _pipe_end() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _memfd(size: int) -> int:
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def _document(content: bytes) -> int:
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


#: Makers of descriptors by name. The first three are those of a correct attach.
DESCRIPTORS: dict[str, Callable[[], int]] = {
    "arena": _arena,
    "pidfd": lambda: os.pidfd_open(os.getpid()),
    "wake": _wake,
    "unsealed": lambda: _memfd(1 << 21),
    "sparse": lambda: _memfd(1 << 62),
    "pidfd of pid 1": lambda: os.pidfd_open(1),
    "eventfd": lambda: os.eventfd(0),
    "epoll": _epoll,
    "pipe": _pipe_end,
    "null": lambda: os.open("/dev/null", os.O_RDWR),
    "file": lambda: os.open(__file__, os.O_RDONLY),
    "directory": lambda: os.open("/", os.O_RDONLY),
    "path": lambda: os.open("/", os.O_PATH),
    "tcp": lambda: socket.socket().detach(),
    "stream": lambda: socket.socket(socket.AF_UNIX).detach(),
    "zero": lambda: os.open("/dev/zero", os.O_RDONLY),
    "document": lambda: _document(b'{"ok": true}'),
    "list": lambda: _document(b"[1]"),
    "nested": lambda: _document(b"[" * 100_000),
}
_HEALTHY = ("arena", "pidfd", "wake")
_HELD = ("stream", "pidfd", "arena", "unsealed", "wake", "eventfd")


class Step(NamedTuple):
    """One message of a peer: its bytes, the names of its descriptors, and how many seconds pass after it."""

    data: bytes
    fds: tuple[str, ...]
    pause_s: float = 0.0


def open_all(names: tuple[str, ...]) -> list[int]:
    """Return new descriptors, which the caller owns."""
    return [DESCRIPTORS[name]() for name in names]


_NUMBERS = st.one_of(
    st.integers(-2, 3),
    st.sampled_from([2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.sampled_from([float("inf"), float("-inf"), float("nan"), 0.5, -1.0, 1e308]),
)
_TEXTS = st.one_of(
    st.sampled_from(["", "t", ".", "..", "\0", "\n", "\ud800", "x" * 300, "b" * 40_000, "Ongoing", "-Infinity"]),
    st.text(max_size=8),
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=8,
)
_OFFSETS = [["t", 0, 5, -1, ""], ["t", 1, 6, 0, "m"]]
_GROUP = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}


def _attach() -> dict[str, Any]:
    return {
        "op": "attach",
        "layout": LAYOUT_VERSION,
        "pid": os.getpid(),
        "app": "fuzz",
        "slots": _slots(),
        "settings": {**FRONT_END_SETTINGS, "compression_type": "lz4", "compression_level": None},
        "sender_settings": {},
    }


def _token(value: str, **more: Any) -> dict[str, Any]:
    return {"op": "token", "token": value, "expires_at": None, "extensions": {}, "serve": False, **more}


#: What the front-end 2 shows with its commands.
COMMAND_KEY = "0123456789abcdef" * 2


def _command(do: str, attach_id: int = 2, **more: Any) -> dict[str, Any]:
    """Return a command for a transaction. The front-end 2 is a transactional one that goes on attached."""
    fields = {"attach_id": attach_id, "key": COMMAND_KEY, "number": 1, "do": do, "producer_id": 1, "epoch": 0}
    return {"op": "transaction", **fields, **more}


#: Requests that a control server knows, and one that it does not.
REQUESTS: list[Callable[[], dict[str, Any]]] = [
    _attach,
    lambda: {**_attach(), "settings": {**FRONT_END_SETTINGS, **TRANSACTIONAL}},
    lambda: {**_attach(), "proof": "a" * 64, "time_namespace": 1, "network_namespace": 2},
    lambda: {"op": "want", "topic": "t", "partition": 0},
    lambda: {"op": "close"},
    lambda: {"op": "status"},
    lambda: {"op": "health"},
    lambda: {"op": "stop"},
    lambda: {"op": "client_instance_id"},
    lambda: _token(GOOD_TOKEN),
    lambda: _token(GOOD_TOKEN + "2", extensions={"a": "b"}, serve=True),
    lambda: _token(GOOD_TOKEN + "3", expires_at=1.9e9, serve=True),
    lambda: _token("bad", serve=True),
    lambda: _token("late"),
    lambda: _token("asks the helper", extensions={"a": "b"}),
    lambda: _token(GOOD_TOKEN, serve=True),
    lambda: _token("e30.eyJzdWIiOiJtZSIsImV4cCI6MjAwMDAwMDAwMH0.x", serve=True),
    lambda: {"op": "token", "error": "the provider has raised ValueError"},
    lambda: _command("init", attach_id=1, producer_id=-1, epoch=-1),
    lambda: _command("init", producer_id=-1, epoch=-1),
    lambda: _command("share", number=2),
    lambda: _command("offsets", number=3, group=_GROUP, offsets=_OFFSETS),
    lambda: _command("commit", number=4),
    lambda: _command("fail", number=5),
    lambda: _command("abort", number=6),
    lambda: {"op": "purge", "attach_id": 2, "key": COMMAND_KEY},
    lambda: {"op": "transactions", "do": "list", "states": ["Ongoing"], "older_than_ms": -1},
    lambda: {"op": "transactions", "do": "describe", "ids": ["t"]},
    lambda: {"op": "transactions", "do": "abort", "id": "t"},
    lambda: {"op": "transactions", "do": "offset", "group": "g", "partition": ["t", 0]},
    lambda: {"op": "transactions", "do": "sequences", "producer_id": 1, "partitions": [["t", 0]]},
    lambda: {"op": "transactions", "do": "metadata", "topic": "t"},
    lambda: {"op": "replace", "layout": LAYOUT_VERSION, "settings": {}, "limits": {"RLIMIT_NOFILE": 5}},
    lambda: {"op": "dance"},
]  # fmt: skip
#: What a sender says, by the one that gets it. The name "attach" includes what an attached front-end is told.
ANSWERS: dict[str, list[Callable[[], dict[str, Any]]]] = {
    "attach": [
        lambda: {
            "ok": True,
            "attach_id": 1,
            "sender_pid": 1,
            "max_request_size": 1 << 20,
            "sender_state": 1,
            "command_key": COMMAND_KEY,
        },
        lambda: {"ok": False, "error": "REFUSED", "message": "m", "shortage": "memory", "limits": {"RLIMIT_AS": 1}},
        lambda: {"ok": False, "error": "SETTINGS", "message": "m"},
        lambda: {"op": "warning", "message": "m"},
        lambda: {"op": "refused", "topic": "t", "message": "m"},
        lambda: {"op": "refused", "topic": "new", "message": "m"},
        lambda: {"op": "detached", "message": "m"},
        lambda: {"op": "ended"},
    ],
    "token": [
        lambda: {"op": "token"},
        lambda: {"ok": True},
        lambda: {"ok": False, "error": "TOKEN", "message": "m"},
        lambda: {"ok": False, "error": "CREDENTIALS", "message": "m"},
        lambda: {"ok": False, "error": "UNCHECKED", "message": "m"},
    ],
    "command": [
        lambda: {"ok": True, "producer_id": 7, "epoch": 0},
        lambda: {"ok": True, "producer_id": 7, "epoch": 0, "failed": 51, "v2": True},
        lambda: {"ok": False, "kind": "abortable", "code": 22, "message": "m"},
        lambda: {"ok": False, "kind": "fatal", "code": 47, "message": "m"},
        lambda: {"ok": False, "kind": "retriable", "code": 51, "message": "m"},
        lambda: {"ok": False, "error": "DRAINING", "message": "m"},
        lambda: {"ok": False, "error": "MALFORMED", "message": "m"},
    ],
    "request": [
        lambda: {"ok": True},
        lambda: {"ok": True, "id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "pushes": True},
        lambda: {"ok": True, "id": None, "pushes": False},
        lambda: {"ok": False, "error": "REFUSED", "message": "m"},
    ],
}
_META = {"app": "fuzz", "pid": 1, "slots": 256, "settings": FRONT_END_SETTINGS}
_LEDGER_ROW = {"app": "a", "topic": "t", "cause": "c", "count": 1, "first": 1.0, "last": 2.0}
#: What a supervisor sends to the one that takes over, and the descriptors with it.
HANDOVER: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"op": "post"}, ("file", "stream")),
    ({"op": "regions"}, ("arena", "arena")),
    ({"op": "hold", "attach_id": 1, "meta": _META, "answered": True, "ended": False}, _HELD),
    ({"op": "hold", "attach_id": 2, "meta": _META, "answered": True, "ended": True}, _HELD[2:]),
    ({"op": "quarantined", "attach_id": 3, "meta": _META, "answered": True, "ended": True}, _HELD[2:]),
    ({"op": "waiting"}, ("stream",)),
    (
        {
            "op": "facts",
            "draining": "",
            "deaths": [[1, 2]],
            "cluster_id": None,
            "idle_timeout_s": 1.0,
            "watchdog_s": 30.0,
            "ledger": [_LEDGER_ROW],
        },
        (),
    ),
    ({"op": "all"}, ()),
    ({"op": "yours"}, ()),
]


@st.composite
def changed(draw: st.DrawFn, message: dict[str, Any]) -> bytes:
    """Draw the bytes of a message after some changes of its fields, and perhaps of its bytes."""
    message = copy.deepcopy(message)
    for _ in range(draw(st.integers(0, 3))):
        place: Any = message
        name = draw(st.sampled_from(sorted(place) or ["op"]))
        if isinstance(place.get(name), dict) and place[name] and draw(st.booleans()):
            place = place[name]
            name = draw(st.sampled_from(sorted(place)))
        how = draw(st.integers(0, 3))
        if how == 0:
            place.pop(name, None)
        elif how == 1:
            place[draw(_TEXTS)] = draw(_VALUES)
        else:
            place[name] = draw(_VALUES)
    data = bytearray(json.dumps(message).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        how = draw(st.integers(0, 3))
        if how == 0:
            del data[at:]
        elif how == 1:
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif how == 2:
            data[at:at] = b"[" * draw(st.sampled_from([1, 10_000]))
        elif data:
            data[at] = draw(st.integers(0, 255))
    return bytes(data)


def _descriptors() -> st.SearchStrategy[tuple[str, ...]]:
    some = st.lists(st.sampled_from(sorted(DESCRIPTORS)), max_size=12).map(tuple)
    one = st.sampled_from(sorted(DESCRIPTORS)).map(lambda name: (name,))
    return st.one_of(st.just(_HEALTHY), st.just(()), some, one, st.permutations(_HEALTHY).map(tuple))


@st.composite
def _step(draw: st.DrawFn, known: list[Callable[[], dict[str, Any]]]) -> Step:
    data = draw(changed(draw(st.sampled_from(known))()))
    return Step(data, draw(_descriptors()), draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 300.0])))


def actions() -> st.SearchStrategy[list[list[Step]]]:
    """Return the messages of up to three connections to a sender."""
    return st.lists(st.lists(_step(REQUESTS), min_size=1, max_size=4), min_size=1, max_size=3)


def answers(kind: str) -> st.SearchStrategy[list[Step]]:
    """Return what a sender says, see ANSWERS."""
    return st.lists(_step(ANSWERS[kind]), min_size=1, max_size=4)


@st.composite
def _changed_handovers(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = []
    for message, fds in HANDOVER:
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]))):
            is_right = draw(st.sampled_from([True, True, True, False]))
            data = json.dumps(message).encode() if is_right else draw(changed(message))
            steps.append(Step(data, fds if is_right or draw(st.booleans()) else draw(_descriptors())))
    return steps


def handovers() -> st.SearchStrategy[list[Step]]:
    """Return what a supervisor sends to the one that takes over: all is right, or some is not, or is missing."""
    right = [Step(json.dumps(message).encode(), fds) for message, fds in HANDOVER]
    return st.one_of(st.just(right), _changed_handovers())
