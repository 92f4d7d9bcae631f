"""Tests attach requests that no correct front-end sends: wrong descriptors, expensive messages, too many of them.

The control plane runs around the fake engine, in this process; the loop's own function checks the arenas.
"""

import array
import fcntl
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import control_rig
import pytest
from control_rig import LINGER_S, Sender, attach_message, close_all, hung_up
from support import layout
from support.process import wait_until
from support.tcp_server import lingering_socket
from support.whole_engine import Engine

from cyproducer.config.settings import Settings
from cyproducer.host import control_messages
from cyproducer.sender.control import peers
from cyproducer.sender.engine.native import FrontEnds
from cyproducer.shm.native import Region, create_arena

LOOP_SETTINGS = {
    "max_request_size": 1 << 20,
    "max_in_flight_requests_per_connection": 5,
    "request_timeout_ms": 1000,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 100,
    "client_id": "c",
}
FRONT_END = {"acks": -1, "enable_idempotence": True, "linger_ms": 0, "delivery_timeout_ms": 1000, "retries": 5}
MFD_HUGE_2MB = os.MFD_HUGETLB | 21 << 26
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def sender(short_tmp: Path) -> Iterator[Sender]:
    made = Sender(short_tmp)
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def refused(sender: Sender, replace: Callable[[list[int]], list[int]]) -> str:
    """Attach with other descriptors; check that all received ones are closed. Return the answer's text."""
    fds, message = attach_message()
    given = replace(fds)
    before = descriptors()
    answer, received, client = sender.ask(message, given)
    assert (answer["error"], received) == ("MALFORMED", [])
    client.close()
    wait_until(lambda: descriptors() == before, what="the closing of what was received")
    close_all(list({*fds, *given}))
    return answer["message"]


# ---------------------------------------------------------------- descriptors of other kinds


def null() -> int:
    return os.open("/dev/null", os.O_RDWR)


def path_only(fds: list[int]) -> list[int]:
    return [os.open(f"/proc/self/fd/{fds[0]}", os.O_PATH), *fds[1:]]


def directory(fds: list[int]) -> list[int]:
    return [os.open("/", os.O_RDONLY | os.O_DIRECTORY), *fds[1:]]


def file_on_disk(fds: list[int]) -> list[int]:
    return [os.open(__file__, os.O_RDONLY), *fds[1:]]


def shared_memory_file(fds: list[int]) -> list[int]:
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(fd, os.fstat(fds[0]).st_size)
    return [fd, *fds[1:]]


def short(fds: list[int]) -> list[int]:
    return [sealed_memfd(os.fstat(fds[0]).st_size - 4096), *fds[1:]]


def long(fds: list[int]) -> list[int]:
    return [sealed_memfd(os.fstat(fds[0]).st_size + 4096), *fds[1:]]


def half_sealed(fds: list[int]) -> list[int]:
    return [sealed_memfd(os.fstat(fds[0]).st_size, fcntl.F_SEAL_SHRINK), *fds[1:]]


def sealed_memfd(size: int, seals: int = SEALS) -> int:
    fd = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("replace", "text"),
    [
        (lambda fds: [], "0 descriptors"),
        (lambda fds: fds[:2], "2 descriptors"),
        (lambda fds: [*fds, fds[0]], "4 descriptors"),
        (lambda fds: [null(), fds[1], fds[2]], "sealed"),
        (lambda fds: [os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), *fds[1:]], "sealed"),
        (lambda fds: [fds[0], null(), fds[2]], "not a pidfd"),
        (path_only, "no memfd"),
        (directory, "no memfd"),
        (file_on_disk, "no memfd"),
        (shared_memory_file, "no memfd"),
        (short, "were announced"),
        (long, "were announced"),
        (half_sealed, "no memfd that is sealed"),
        (lambda fds: [fds[0], fds[1], os.eventfd(0)], "not a socket"),
        (lambda fds: [fds[0], fds[1], null()], "not a socket"),
        (lambda fds: [fds[0], fds[1], socket.socket().detach()], "not a UNIX datagram socket"),
        (lambda fds: [fds[0], fds[1], socket.socket(socket.AF_UNIX).detach()], "not a UNIX datagram socket"),
        (lambda fds: [fds[2], fds[1], fds[0]], "no memfd"),
    ],
)
def test_descriptor_of_another_kind_is_refused(sender: Sender, replace: Any, text: str) -> None:
    assert text in refused(sender, replace)
    assert sender.attach()[0]["ok"]


def test_pages_that_can_go_away_are_refused() -> None:
    """A memfd of huge pages, even sealed and of the right size: reading a missing page kills the reader."""
    try:
        fd = os.memfd_create("huge", MFD_HUGE_2MB | os.MFD_ALLOW_SEALING)
    except OSError as error:
        pytest.fail(f"the tests need a kernel with huge pages of 2 MiB (CONFIG_HUGETLBFS): {error}")
    os.ftruncate(fd, 1 << 21)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(ValueError, match="huge pages"):
        Region.attach(fd, 1 << 21, True)


def test_arena_that_cannot_be_written_is_refused() -> None:
    front_ends = FrontEnds(LOOP_SETTINGS)
    arena, slots = create_arena(1 << 20)
    before = descriptors()
    for how in ("read-only", "write-sealed"):
        fd = arena.read_only_descriptor() if how == "read-only" else sealed_memfd(arena.size, SEALS | 0x10)
        with pytest.raises(PermissionError):
            front_ends.attach(fd, slots, FRONT_END, os.eventfd(0))
    assert descriptors() == before
    arena.close()
    front_ends.close()


def refused_by_the_loop(settings: dict[str, Any], error: Any, match: str | None = None, **header: int) -> None:
    """Attach an arena with other fields in its header; check that nothing is left behind."""
    front_ends = FrontEnds(LOOP_SETTINGS)
    arena, slots = create_arena(1 << 20)
    layout.write(arena.memory(), "cyp_arena_header", 0, **header)
    before = descriptors()
    with pytest.raises(error, match=match):
        front_ends.attach(os.dup(arena.fd), slots, settings, os.eventfd(0))
    assert descriptors() == before
    assert front_ends.attached() == 0
    arena.close()
    front_ends.close()


@pytest.mark.parametrize(
    ("field", "value"), [("magic", 1), ("layout_version", 99), ("slot_count", 7), ("slot_count", 0xFFFFFFFF)]
)
def test_arena_with_another_header_is_refused(field: str, value: int) -> None:
    refused_by_the_loop(FRONT_END, ValueError, "arena", **{field: value})


@pytest.mark.parametrize("settings", [{"retries": None}, {"acks": "all"}, {**FRONT_END, "linger_ms": float("inf")}])
def test_settings_that_do_not_fit_leave_nothing_behind(settings: dict[str, Any]) -> None:
    refused_by_the_loop(settings, (TypeError, OverflowError))


def test_same_arena_twice_is_refused(sender: Sender) -> None:
    fds, message = attach_message()
    answer, received, client = sender.ask(message, fds)
    assert answer["ok"]
    close_all(received)
    again, _, _ = sender.ask(message, fds)
    assert again["message"] == "the arena is attached already"
    client.close()
    sender.turn()
    answer, received, _ = sender.ask(message, fds)
    assert answer["ok"]
    close_all(fds + received)


def test_attach_twice_on_one_connection_ends_it(sender: Sender) -> None:
    answer, client = sender.attach()
    assert answer["ok"]
    fds, message = attach_message()
    before = descriptors()
    control_messages.send(client, message, fds)
    sender.turn()
    assert control_messages.receive(client)[0]["error"] == "MALFORMED"
    assert hung_up(client)
    assert sender.engine.detached == [1]
    close_all(fds)
    wait_until(lambda: descriptors() < before, what="the closing of what was received")


# ---------------------------------------------------------------- descriptors whose closing waits


def send_and_forget(client: socket.socket, data: bytes, sock: socket.socket, copies: int = 1) -> None:
    """Pass the socket on; the receiver has the last reference, and its close() waits."""
    fds = array.array("i", [sock.fileno()] * copies)
    client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    os.close(sock.detach())


def quick(action: Callable[[], Any]) -> None:
    """Run the function in a thread; fail unless it returns long before a lingering close() would."""
    worker = threading.Thread(target=action, daemon=True)
    worker.start()
    worker.join(LINGER_S / 3)
    assert not worker.is_alive(), "the sender waited for a descriptor of its peer"


@pytest.mark.parametrize("copies", [1, 9, 100])
@pytest.mark.parametrize("data", [b"{", b"{}", b"[" * 100_000, b""])
def test_no_peer_makes_the_sender_wait_in_close(sender: Sender, data: bytes, copies: int) -> None:
    client = sender.connect()
    sock, other = lingering_socket(LINGER_S)
    send_and_forget(client, data, sock, copies)
    quick(sender.turn)
    assert sender.attach()[0]["ok"]
    other.close()


def test_no_unread_message_makes_the_sender_wait_in_close(sender: Sender) -> None:
    """Messages in a connection that is closed are closed with it, and so are their descriptors."""
    client = sender.connect()
    client.send(b"{")
    client.send(b"")
    sock, other = lingering_socket(LINGER_S)
    send_and_forget(client, b"", sock)
    quick(sender.turn)
    assert sender.attach()[0]["ok"]
    other.close()


def test_socket_to_wake_with_something_in_it_is_refused(sender: Sender) -> None:
    def loaded(fds: list[int]) -> list[int]:
        ours, senders = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours:
            ours.send(b"x")
        return [fds[0], fds[1], senders.detach()]

    assert "is not empty" in refused(sender, loaded)


def test_nothing_can_be_put_into_the_socket_to_wake() -> None:
    from cyproducer.sender.control.attaching import _check_wake

    ours, senders = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    _check_wake(senders.fileno())
    with pytest.raises(BrokenPipeError):
        ours.send(b"x")
    senders.send(b"x", socket.MSG_DONTWAIT)
    assert ours.recv(10) == b"x"
    ours.close()
    senders.close()


# ---------------------------------------------------------------- too many or too large requests


def test_deep_nesting_closes_what_came_with_it(sender: Sender) -> None:
    client = sender.connect()
    before = descriptors()
    fds = array.array("i", [0] * 3)
    client.sendmsg([b"[" * 150_000], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    sender.turn()
    assert hung_up(client)
    wait_until(lambda: descriptors() <= before, what="the closing of what was received")


def test_one_front_end_cannot_use_up_all_topics(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TOPICS_PER_FRONT_END", 20)
    _, greedy = sender.attach()
    _, other = sender.attach()
    for number in range(30):
        control_messages.send(greedy, {"op": "want", "topic": f"t{number}"})
    control_messages.send(greedy, {"op": "want", "topic": "t0"})
    control_messages.send(other, {"op": "want", "topic": "o"})
    sender.turn()
    assert sender.engine.wanted == [(1, f"t{number}") for number in range(20)] + [(1, "t0"), (2, "o")]


class Scarcity:
    """A process that gets no more than its remaining descriptors."""

    def __init__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.filler: list[int] = []

    def leave(self, number: int) -> None:
        """Let this process open `number` more descriptors."""
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, self.limits[1]))
        try:
            while True:
                self.filler.append(os.dup(0))
        except OSError:
            pass
        for _ in range(number):
            os.close(self.filler.pop())

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        close_all(self.filler)
        self.filler.clear()


@pytest.fixture
def scarcity() -> Iterator[Scarcity]:
    made = Scarcity()
    yield made
    made.end()


@pytest.mark.parametrize("left", [*range(11), 14])
def test_descriptors_run_out_at_any_point_of_an_attach(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, scarcity: Scarcity, left: int
) -> None:
    """Attached or not, nothing leaks, also from a message that arrives without some of its descriptors."""
    settings = Settings.parse(bootstrap_servers="127.0.0.1:9").sender_settings()
    monkeypatch.setattr(control_rig, "Engine", lambda _, log: Engine(settings, log))
    sender = Sender(short_tmp)
    fds, message = attach_message()
    client = sender.connect()
    sender.turn()
    before = descriptors()
    control_messages.send(client, message, fds)
    scarcity.leave(left)
    sender.turn()
    scarcity.end()
    answer, received = control_messages.receive(client)
    close_all(received)
    assert answer is None or answer["ok"] or answer["error"] == "REFUSED", answer
    assert left < 14 or answer["ok"], "the cases end where an attach has all that it needs"
    assert sender.engine.attached() == (1 if answer and answer["ok"] else 0)
    client.close()
    sender.turn()
    assert sender.engine.attached() == 0
    wait_until(lambda: descriptors() == before - 2, what="the closing of both ends of the connection")
    assert sender.attach()[0]["ok"]
    sender.close()
    close_all(fds)
