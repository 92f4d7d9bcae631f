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

from cyproducer.shm.arena_region import LAYOUT_VERSION, create_arena
from hypothesis import strategies as st

__all__ = ["DESCRIPTORS", "Step", "actions", "answers", "changed", "open_all"]

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
}
_HEALTHY = ("arena", "pidfd", "wake")


class Step(NamedTuple):
    """One message of a peer: its bytes, and the names of its descriptors."""

    data: bytes
    fds: tuple[str, ...]


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


#: Requests that a control server knows, and one that it does not.
REQUESTS: list[Callable[[], dict[str, Any]]] = [
    _attach,
    lambda: {**_attach(), "settings": {**FRONT_END_SETTINGS, **TRANSACTIONAL}},
    lambda: {**_attach(), "proof": "a" * 64, "time_namespace": 1, "network_namespace": 2},
    lambda: {"op": "want", "topic": "t", "partition": 0},
    lambda: {"op": "close"},
    lambda: {"op": "status"},
    lambda: {"op": "stop"},
    lambda: {"op": "client_instance_id"},
    lambda: {"op": "transaction", "attach_id": 1, "number": 1, "do": "init", "producer_id": -1, "epoch": -1},
    lambda: {"op": "transaction", "attach_id": 2, "number": 2, "do": "offsets", "producer_id": 1, "epoch": 0,
             "group": _GROUP, "offsets": _OFFSETS},
    lambda: {"op": "transactions", "do": "list", "states": ["Ongoing"], "older_than_ms": -1},
    lambda: {"op": "transactions", "do": "describe", "ids": ["t"]},
    lambda: {"op": "transactions", "do": "abort", "id": "t"},
    lambda: {"op": "transactions", "do": "offset", "group": "g", "partition": ["t", 0]},
    lambda: {"op": "transactions", "do": "sequences", "producer_id": 1, "partitions": [["t", 0]]},
    lambda: {"op": "replace", "layout": LAYOUT_VERSION, "settings": {}, "limits": {"RLIMIT_NOFILE": 5}},
    lambda: {"op": "dance"},
]  # fmt: skip
#: What a sender answers to an attach, and tells an attached front-end.
ANSWERS: list[Callable[[], dict[str, Any]]] = [
    lambda: {"ok": True, "attach_id": 1, "sender_pid": 1, "max_request_size": 1 << 20, "sender_state": 1},
    lambda: {"ok": False, "error": "REFUSED", "message": "m", "shortage": "memory", "limits": {"RLIMIT_AS": 1}},
    lambda: {"ok": False, "error": "SETTINGS", "message": "m"},
    lambda: {"op": "warning", "message": "m"},
    lambda: {"op": "refused", "topic": "t", "message": "m"},
    lambda: {"op": "refused", "topic": "new", "message": "m"},
    lambda: {"op": "detached", "message": "m"},
    lambda: {"op": "ended"},
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
    return st.one_of(st.just(_HEALTHY), st.just(()), some, st.permutations(_HEALTHY).map(tuple))


@st.composite
def _step(draw: st.DrawFn, known: list[Callable[[], dict[str, Any]]]) -> Step:
    data = draw(changed(draw(st.sampled_from(known))()))
    return Step(data, draw(_descriptors()))


def actions() -> st.SearchStrategy[list[list[Step]]]:
    """Return the messages of up to three connections to a sender."""
    return st.lists(st.lists(_step(REQUESTS), min_size=1, max_size=4), min_size=1, max_size=3)


def answers() -> st.SearchStrategy[list[Step]]:
    """Return what a sender says to a front-end."""
    return st.lists(_step(ANSWERS), min_size=1, max_size=4)
