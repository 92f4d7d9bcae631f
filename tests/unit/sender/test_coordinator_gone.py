"""Tests that a transaction goes on when the broker of its coordinator has left the cluster."""

import pytest
from transaction_rig import GROUP, Rig

from cyproducer.protocol.kafka_messages import ApiKey

SOON_S = 3.0
"""Virtual time: less than the 30 s after which a request counts as unanswered."""


@pytest.mark.parametrize("do", ["commit", "abort", "offsets"])
@pytest.mark.parametrize("known", [True, False], ids=["known coordinator", "named while it is gone"])
def test_another_coordinator_is_asked_when_the_broker_is_not_in_the_metadata(do: str, known: bool) -> None:
    rig = Rig()
    producer = rig.producer()
    assert producer.do("init")["ok"]
    producer.send()
    brokers = rig.brokers.metadata.brokers
    if known:
        assert producer.offsets()["ok"]
    gone = 3 if do == "offsets" else 2
    del brokers[gone]
    if known:
        rig.coordinators.node = rig.coordinators.group_node = 1
    answers = producer.ask(do) if do != "offsets" else producer.ask(do, offsets=[("t", 0, 5, -1, "")], group=GROUP)
    rig.run(SOON_S / 3, lambda: bool(answers))
    if not known:
        rig.coordinators.node = rig.coordinators.group_node = 1
    rig.run(SOON_S, lambda: bool(answers))
    assert answers and answers[0]["ok"]
    assert rig.brokers.refreshes > 0
    assert rig.look_ups() > 1


def test_a_new_broker_that_the_metadata_does_not_have_yet_is_waited_for() -> None:
    rig = Rig()
    producer = rig.producer()
    late = rig.brokers.metadata.brokers.pop(2)
    rig.brokers.metadata.request_update = lambda: rig.brokers.metadata.brokers.setdefault(2, late)
    assert producer.do("init", SOON_S)["ok"]
    assert rig.look_ups() == 1
    assert rig.asked() == [ApiKey.INIT_PRODUCER_ID]
