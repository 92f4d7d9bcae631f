"""Tests purge() with a stand-in for the sender: what is dropped where, and senders of an earlier version."""

import threading
import time

import pytest
from standin_sender import die

from cyproducer import KafkaProducer, errors

FAST = {"request_timeout_ms": 1000, "delivery_timeout_ms": 5000}


def held(sender):
    sender.hold = True
    return sender


def codes(futures):
    return [future.exception(0).code for future in futures]


def test_what_the_sender_drops_has_its_outcome_when_purge_returns(started, path):
    held(started())
    heard = []
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        futures = [
            producer.send("t", b"v", partition=n % 4, on_delivery=lambda e, _: heard.append(e)) for n in range(9)
        ]
        array = producer.send_array("t", [b"a"] * 100)
        producer.purge(10)
        assert codes(futures) == [errors.PURGED] * 9
        assert isinstance(array.exception(0), errors.PurgedError)
        producer.flush(10)
        assert [type(error) for error in heard] == [errors.PurgedError] * 9


def test_records_after_a_purge_are_sent(started, path):
    sender = held(started())
    with KafkaProducer(sender=str(path)) as producer:
        dropped = producer.send("one", b"before")
        producer.purge(10)
        sender.hold = False
        assert producer.send("one", b"after").result(10).offset == 0
        assert codes([dropped]) == [errors.PURGED]


def test_unsent_batches_of_a_lost_sender_are_dropped(started, path):
    sender = held(started())
    heard = []
    with KafkaProducer(sender=str(path), linger_ms=10_000, max_block_ms=10_000) as producer:
        futures = [
            producer.send("t", b"%d" % n, partition=n % 4, on_delivery=lambda e, _: heard.append(e)) for n in range(100)
        ]
        die(sender)
        producer.purge(10)
        assert codes(futures) == [errors.PURGED] * 100
        sender = started()
        producer.send("t", b"later").result(10)
        producer.flush(10)
        assert [type(error) for error in heard] == [errors.PurgedError] * 100
        assert [record.value for record in sender.log] == [b"later"]


def test_the_sender_ends_during_a_purge(started, path):
    sender = held(started())
    sender.purge_answer = None
    with KafkaProducer(sender=str(path), linger_ms=10_000) as producer:
        future = producer.send("t", b"v")
        threading.Timer(0.2, die, (sender,)).start()
        producer.purge(20)
        assert codes([future]) == [errors.PURGED]


def test_a_sender_that_does_not_answer(started, path):
    sender = held(started())
    sender.purge_answer = None
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        began = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError, match=r"has not answered within 0\.2 s; it may still drop"):
            producer.purge(0.2)
        assert time.monotonic() - began < 5
        sender.release()
        assert future.result(10).offset == 0


@pytest.mark.parametrize("key", ["", "key"])
def test_a_sender_of_an_earlier_version_drops_nothing(started, path, key):
    """Without a key it has no purge at all; with one it refuses the message, and hangs up only that connection."""
    sender = held(started())
    sender.key = key
    sender.purge_answer = {"ok": False, "error": "MALFORMED", "message": "unexpected message: 'purge'"}
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        with pytest.raises(errors.SenderUnavailableError, match="an earlier version"):
            producer.purge(10)
        sender.release()
        assert future.result(10).offset == 0


def test_a_sender_that_is_ending_is_asked_again(started, path):
    sender = held(started())
    sender.purge_answer = {"ok": False, "error": "DRAINING", "message": "the sender is ending"}
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        threading.Timer(0.2, lambda: setattr(sender, "purge_answer", {"ok": True})).start()
        producer.purge(20)
        assert codes([future]) == [errors.PURGED]


def test_without_records_the_sender_is_not_asked(started, path):
    sender = started()
    with KafkaProducer(sender=str(path)) as producer:
        producer.purge(10)
        producer.send("t", b"v").result(10)
        accepted = sender.accepted
        producer.purge(10)
        assert sender.accepted == accepted


def test_a_closed_producer(started, path):
    started()
    producer = KafkaProducer(sender=str(path))
    producer.close()
    with pytest.raises(errors.ProducerClosedError):
        producer.purge()


def test_a_transactional_producer_aborts_instead(begun):
    with pytest.raises(errors.IllegalStateError, match="abort_transaction"):
        begun.purge()
