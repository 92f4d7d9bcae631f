"""Tests linger_ms of one process beside the batches of another process."""

import time

import pytest
from kfake.scripted_broker import ScriptedBroker

from cyproducer import KafkaProducer


@pytest.mark.usefixtures("retired_senders")
def test_a_record_lingers_no_longer_beside_a_front_end_that_the_sender_wakes_for() -> None:
    """The other batch ends 100 ms earlier: the sender wakes for it and finds this one, which has 100 ms left."""
    with ScriptedBroker(partitions=2, nodes=2) as broker:
        settings = {"bootstrap_servers": broker.bootstrap_servers, "linger_ms": 900}
        with KafkaProducer(**settings) as other, KafkaProducer(**settings) as ours:
            for producer in (other, ours):
                producer.send("t", b"first", partition=0).result(30)
            taken = []
            for _ in range(4):
                pending = other.send("t", b"other", partition=1)
                time.sleep(0.1)
                began = time.monotonic()
                ours.send("t", b"ours", partition=0).result(30)
                taken.append(time.monotonic() - began)
                pending.result(30)
    assert min(taken) < 1.4, f"linger_ms is 900; the records took {taken} seconds"
