"""Tests name look-ups in the helper process: one that hangs delays no other, and nothing is left behind."""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
from support.process import is_running, kill9, name_of, wait_until

from cyproducer.sender.cluster.resolver import Address, Resolver

FOUND = [
    Address(socket.AF_INET, ("192.0.2.1", 9092)),
    Address(socket.AF_INET6, ("2001:db8::1", 9092, 0, 0)),
]


def getaddrinfo(host: str, port: int, **_: object) -> list[tuple]:
    """Replace the system's look-up."""
    if host.startswith("hangs"):
        time.sleep(1000)
    if host == "unknown":
        raise socket.gaierror(-2, "Name or service not known")
    if host == "odd":
        raise UnicodeError("label too long")
    return [(family, socket.SOCK_STREAM, 6, "", address) for family, address, _ in FOUND]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    resolver = Resolver()
    yield resolver
    resolver.close()
    resolver.close()


def helpers() -> list[int]:
    """Return the children of this process that are helpers."""
    return [child.pid for child in psutil.Process().children() if name_of(child) == "cyp-resolver"]


class Ask:
    """Make one look-up and return its answer."""

    def __init__(self, resolver: Resolver, host: str, canonical: bool = False) -> None:
        self.answer: list[Address] | OSError | None = None
        self.resolver = resolver
        (resolver.resolve_canonical if canonical else resolver.resolve)(host, 9092, self.take)

    def take(self, answer: list[Address] | OSError) -> None:
        assert self.answer is None
        self.answer = answer

    def wait(self) -> list[Address] | OSError:
        poller = select.poll()
        poller.register(self.resolver.fd, select.POLLIN)
        while self.answer is None:
            assert poller.poll(20_000), "no answer"
            self.resolver.collect()
        return self.answer


def test_numeric_addresses_need_no_helper(resolver: Resolver) -> None:
    assert Ask(resolver, "127.0.0.1").answer == [Address(socket.AF_INET, ("127.0.0.1", 9092))]
    assert Ask(resolver, "::1").answer == [Address(socket.AF_INET6, ("::1", 9092))]
    assert helpers() == []


def test_names_and_errors(resolver: Resolver) -> None:
    asked = Ask(resolver, "broker"), Ask(resolver, "unknown"), Ask(resolver, "odd")
    found, unknown, odd = [each.wait() for each in asked]
    assert found == FOUND
    assert isinstance(unknown, OSError)
    assert unknown.strerror == "Name or service not known"
    assert "label too long" in str(odd)
    assert len(helpers()) == 1


CANONICAL = {"192.0.2.1": "one.example", "192.0.2.2": "two.example", "192.0.2.3": "unknown"}


def of_alias(host: str, port: int, **_: object) -> list[tuple]:
    """Replace the system's look-up: "alias" has three addresses."""
    found = {
        "alias": [*CANONICAL],
        "lone": ["192.0.2.3"],
        "192.0.2.9": ["192.0.2.9"],
        "one.example": ["192.0.2.1", "192.0.2.7"],
        "two.example": ["192.0.2.2", "192.0.2.7"],
    }.get(host)
    if found is None:
        raise socket.gaierror(-2, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


def test_the_addresses_of_canonical_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", of_alias)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: (CANONICAL.get(address[0], address[0]), "9092"))
    resolver = Resolver()
    try:
        alias, lone, numeric = [Ask(resolver, host, canonical=True) for host in ("alias", "lone", "192.0.2.9")]
        names = {1: "one.example", 7: "one.example", 2: "two.example"}
        assert alias.wait() == [Address(socket.AF_INET, (f"192.0.2.{end}", 9092), name) for end, name in names.items()]
        assert isinstance(lone.wait(), OSError)
        assert numeric.wait() == [Address(socket.AF_INET, ("192.0.2.9", 9092), "192.0.2.9")]
        assert Ask(resolver, "alias").wait() == [Address(socket.AF_INET, (address, 9092)) for address in CANONICAL]
    finally:
        resolver.close()


def test_the_systems_own_look_up() -> None:
    resolver = Resolver()
    found = Ask(resolver, "localhost").wait()
    resolver.close()
    assert isinstance(found, list)
    assert {address.target[1] for address in found} == {9092}


def test_look_ups_that_hang_delay_no_other(resolver: Resolver) -> None:
    hanging = [Ask(resolver, f"hangs{number}") for number in range(20)]
    assert Ask(resolver, "broker").wait() == FOUND
    assert not any(each.answer for each in hanging)


def test_a_helper_that_ends_is_replaced(resolver: Resolver) -> None:
    Ask(resolver, "broker").wait()
    hanging = Ask(resolver, "hangs")
    (pid,) = helpers()
    os.kill(pid, signal.SIGKILL)
    assert "the resolver process ended" in str(hanging.wait())
    assert Ask(resolver, "broker").wait() == FOUND
    (other,) = helpers()
    assert other != pid


def test_a_helper_heeds_no_signal_and_holds_nothing(resolver: Resolver) -> None:
    Ask(resolver, "broker").wait()
    (pid,) = helpers()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert Ask(resolver, "broker").wait() == FOUND
    held = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert len(held) <= 4
    assert len([fd for fd, target in held.items() if fd > 2 and target.startswith("socket:")]) == 1


def test_a_forked_child_closes_its_copy_alone(resolver: Resolver) -> None:
    Ask(resolver, "broker").wait()
    pid = os.fork()
    if pid == 0:
        resolver.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert Ask(resolver, "broker").wait() == FOUND


def test_the_helper_ends_with_its_owner(resolver: Resolver) -> None:
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        mine = Resolver()
        Ask(mine, "hangs")
        Ask(mine, "broker").wait()
        os.write(writer, b"%d" % helpers()[0])
        time.sleep(1000)
        os._exit(1)
    helper = int(os.read(reader, 20))
    assert is_running(helper)
    kill9(owner)
    os.waitpid(owner, 0)
    wait_until(lambda: not is_running(helper), 20, "the end of the helper")
    os.close(reader)
    os.close(writer)
