"""Tests the messages of sd_notify(3), with a datagram socket in the place of systemd's."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cyproducer.sender.process.supervisor import HANG_S, Child, Supervisor
from cyproducer.sender.system import service_manager
from cyproducer.sender.system.daemonise import PeerProcess
from cyproducer.sender.system.service_manager import ServiceManager, read_watchdog_s

LOG = logging.getLogger("tests.service_manager")


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(service_manager, "time", made)
    return made


class Systemd:
    """Systemd's end: what it has received."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def received(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Systemd]:
    made = Systemd(f"{short_tmp}/notify" if request.param == "path" else f"@cyproducer-test-{os.getpid()}")
    yield made
    made.socket.close()
    (short_tmp / "notify").unlink(missing_ok=True)


def test_each_state_is_told_once(systemd: Systemd, clock: Clock) -> None:
    manager = ServiceManager(systemd.address, 0.0, LOG)
    for tell in (manager.ready, manager.ready, manager.reloading, lambda: manager.replaced_by(7), manager.stopping):
        tell()
    ready = f"READY=1\nMAINPID={os.getpid()}"
    assert systemd.received() == [ready, "RELOADING=1\nMONOTONIC_USEC=100000000", "MAINPID=7", "STOPPING=1"]
    manager.replaced_by(0)  # a process of another PID namespace
    manager.stopping()
    clock.now += 1000
    manager.attend(works=True)
    assert (systemd.received(), manager.due()) == ([], float("inf"))


def fill(address: str) -> int:
    """Send empty messages until the queue takes none, also of a socket that has sent nothing. Return their number.

    The queue has 10 places by default, and 512 where systemd has set it. The messages of one socket may be less.
    """
    sent = 0
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            before = sent
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.sendto(b"", "\0" + address[1:] if address.startswith("@") else address)
                    sent += 1
        if sent == before:
            return sent


def test_a_full_queue_delays_and_the_last_state_counts(systemd: Systemd, clock: Clock) -> None:
    manager = ServiceManager(systemd.address, 0.0, LOG)
    others = fill(systemd.address)
    manager.reloading()
    manager.ready()
    assert systemd.received() == [""] * others
    manager.attend(works=False)
    assert systemd.received() == []
    clock.now = manager.due()
    manager.attend(works=False)
    assert systemd.received() == [f"READY=1\nMAINPID={os.getpid()}"]
    assert manager.due() == float("inf")


def test_signs_of_life_come_twice_in_the_time_limit_and_only_if_the_sender_works(
    systemd: Systemd, clock: Clock
) -> None:
    manager = ServiceManager(systemd.address, 30.0, LOG)
    manager.attend(works=True)
    manager.attend(works=True)
    assert (systemd.received(), manager.due()) == (["WATCHDOG=1"], clock.now + 15)
    clock.now += 15
    manager.attend(works=False)
    assert systemd.received() == []
    assert clock.now < manager.due() <= clock.now + 1
    clock.now = manager.due()
    manager.attend(works=True)
    assert systemd.received() == ["WATCHDOG=1"]


def test_an_address_without_a_listener_is_logged_once(
    short_tmp: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager(f"{short_tmp}/none", 30.0, LOG)
    manager.ready()
    for _ in range(3):
        manager.attend(works=True)
        clock.now = manager.due()
    (record,) = caplog.records
    assert os.strerror(errno.ENOENT) in record.getMessage()


@pytest.mark.parametrize("address", ["", "vsock:2:1", "relative"])
def test_without_an_address_nothing_is_due(address: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager(address, 30.0, LOG)
    manager.ready()
    manager.attend(works=True)
    assert (manager.due(), caplog.records) == (float("inf"), [])


def test_the_time_limit_is_that_of_this_process() -> None:
    pid = str(os.getpid())
    assert read_watchdog_s({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": pid}) == 30.0
    assert read_watchdog_s({"WATCHDOG_USEC": "500000"}) == 0.5
    assert read_watchdog_s({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) == 0.0
    assert read_watchdog_s({"WATCHDOG_USEC": "-1"}) == read_watchdog_s({}) == 0.0


def test_what_counts_as_work(made_child: Callable[[], Child]) -> None:
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.child = None
    assert not supervisor._works()
    supervisor.child = child = made_child()
    assert supervisor._works()
    child.started = False
    assert not supervisor._works()
    child.started, child.ticked_at = True, child.since - HANG_S
    assert not supervisor._works()
    child.ticked_at, child.hung = child.since, True
    assert not supervisor._works()


@pytest.fixture
def made_child() -> Iterator[Callable[[], Child]]:
    made = []

    def make() -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        made.append(Child(PeerProcess(os.getpid(), os.pidfd_open(os.getpid()), ours, None), started=True))
        return made[-1]

    yield make
    for child in made:
        child.close()
