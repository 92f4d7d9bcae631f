"""Defines the sender's part for transactions with each version of the protocol, and a producer that is initialized."""

import pytest
from transaction_rig import Producer, Rig


def initialized(rig: Rig) -> Producer:
    producer = rig.producer()
    assert producer.do("init") == {"ok": True, "producer_id": 7001, "epoch": 0}
    rig.asked()
    return producer


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(v2=request.param)


@pytest.fixture
def rig_v1() -> Rig:
    return Rig(v2=False)


@pytest.fixture
def producer(rig: Rig) -> Producer:
    return initialized(rig)


@pytest.fixture
def producer_v1(rig_v1: Rig) -> Producer:
    return initialized(rig_v1)
