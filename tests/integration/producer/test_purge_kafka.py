"""Tests purge() on a real Kafka whose broker is stopped: dropped records are in no log, all others at their offsets."""

import pytest
from support.consumer import read_topic

from cyproducer import errors

RECORDS = 4000
SIZE = 1000


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_what_a_stopped_broker_has_not_got_is_dropped(kafka, make_producer, new_topic, enable_idempotence):
    topic = new_topic(1)
    producer = make_producer(enable_idempotence=enable_idempotence, linger_ms=0)
    values = [b"%06d" % number + bytes(SIZE) for number in range(RECORDS)]
    futures = [producer.send(topic, b"first")]
    futures[0].result(60)
    kafka.pause()
    try:
        futures += [producer.send(topic, value) for value in values]
        producer.purge(60)
        dropped = {at for at, future in enumerate(futures) if future.done() and future.failed()}
    finally:
        kafka.resume()
    futures.append(producer.send(topic, b"last"))
    producer.flush(60)
    sent = [b"first", *values, b"last"]
    assert dropped, "the broker has got everything, though it was stopped"
    assert {type(futures[at].exception(0)) for at in dropped} == {errors.PurgedError}
    kept = [at for at in range(len(futures)) if at not in dropped]
    assert [futures[at].result(0).offset for at in kept] == list(range(len(kept)))
    assert list(read_topic(kafka.bootstrap_servers, topic, len(kept)).value) == [sent[at] for at in kept]


def test_a_producer_is_used_again_and_again_after_a_purge(kafka, make_producer, new_topic):
    topic = new_topic(3)
    producer = make_producer()
    kept = []
    for turn in range(5):
        kept.append(producer.send(topic, b"kept %d" % turn))
        producer.flush(60)
        dropped = [producer.send(topic, b"dropped") for _ in range(10)]
        producer.purge(60)
        producer.flush(60)
        assert {type(future.exception(0)) for future in dropped} <= {errors.PurgedError, type(None)}
        kept += [future for future in dropped if not future.failed()]
    assert len(read_topic(kafka.bootstrap_servers, topic, len(kept))) == len(kept)
