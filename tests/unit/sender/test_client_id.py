"""Tests which client id the requests of a sender carry."""

from types import SimpleNamespace
from typing import Any

from cyproducer.sender.cluster.client_id import ClientId


def client_id(fixed: str | None) -> tuple[ClientId, list[str]]:
    told: list[str] = []
    loop: Any = SimpleNamespace(set_client_id=told.append)
    return ClientId(loop, fixed), told


def test_it_is_that_of_all_front_ends_or_the_default() -> None:
    found, told = client_id(None)
    for change, name, present in (
        (found.add, "shop", "shop"),
        (found.add, "shop", "shop"),
        (found.add, "billing", "cyproducer"),
        (found.add, "cyproducer", "cyproducer"),
        (found.remove, "shop", "cyproducer"),
        (found.remove, "shop", "cyproducer"),
        (found.remove, "cyproducer", "billing"),
        (found.remove, "billing", "billing"),  # its batches may still be sent
        (found.add, "shop", "shop"),
    ):
        change(name)
        assert found.present == present == told[-1]
    assert told == ["cyproducer", "shop", "cyproducer", "billing", "shop"]


def test_that_of_the_sender_counts_alone() -> None:
    found, told = client_id("host-sender")
    found.add("shop")
    found.add("billing")
    found.remove("shop")
    assert (found.present, told) == ("host-sender", ["host-sender"])
