"""Tests name look-ups in the helper process: addresses, errors, and those that hang."""

import os
import socket
import time
from collections.abc import Iterator

import pytest
from support.asking import Asked, Asking, helpers
from support.process import kill9, wait_until

from cyproducer.sender.cluster.resolver import JOBS, Address, resolve

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
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    asking = Asking(JOBS)
    yield asking
    asking.close()


def start(asking: Asking, host: str, canonical: bool = False) -> Asked:
    return asking.start(resolve(asking.helper, host, 9092, canonical=canonical))


def failure(asked: Asked) -> OSError:
    """Return the error of a look-up."""
    with pytest.raises(OSError) as caught:
        asked.wait()
    return caught.value


def test_numeric_addresses_need_no_helper(asking: Asking) -> None:
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        asked = start(asking, host)
        assert asked.is_over and asked.wait() == [Address(family, (host, 9092))]
    assert helpers() == []


def test_names_and_errors(asking: Asking) -> None:
    found, unknown, odd = [start(asking, host) for host in ("broker", "unknown", "odd")]
    assert found.wait() == FOUND
    assert failure(unknown).strerror == "Name or service not known"
    assert "label too long" in str(failure(odd))
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


def test_the_addresses_of_canonical_names(monkeypatch: pytest.MonkeyPatch, asking: Asking) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", of_alias)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: (CANONICAL.get(address[0], address[0]), "9092"))
    alias, lone, numeric = [start(asking, host, canonical=True) for host in ("alias", "lone", "192.0.2.9")]
    names = {1: "one.example", 7: "one.example", 2: "two.example"}
    assert alias.wait() == [Address(socket.AF_INET, (f"192.0.2.{end}", 9092), name) for end, name in names.items()]
    assert failure(lone)
    assert numeric.wait() == [Address(socket.AF_INET, ("192.0.2.9", 9092), "192.0.2.9")]
    assert start(asking, "alias").wait() == [Address(socket.AF_INET, (address, 9092)) for address in CANONICAL]


def test_the_systems_own_look_up() -> None:
    asking = Asking(JOBS)
    found = start(asking, "localhost").wait()
    asking.close()
    assert {address.target[1] for address in found} == {9092}


def test_look_ups_that_hang_delay_no_other(asking: Asking) -> None:
    hanging = [start(asking, f"hangs{number}") for number in range(20)]
    assert start(asking, "broker").wait() == FOUND
    assert not any(each.is_over for each in hanging)


def test_a_look_up_that_ends_the_helper(asking: Asking) -> None:
    hanging = start(asking, "hangs")
    for _ in range(2):
        (pid,) = wait_until(helpers, 20, "a helper")
        kill9(pid)
        asking.turn()
    assert "the resolver process ended during the look-up" in str(failure(hanging))
    assert start(asking, "broker").wait() == FOUND


def test_a_helper_that_cannot_be_started(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    error = failure(start(asking, "broker"))
    assert str(error) == "the look-up could not be started: [Errno 11] Resource temporarily unavailable"
