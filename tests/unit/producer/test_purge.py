"""Tests purge() with a stand-in for the sender: what is dropped where, and senders of an earlier version."""

import os
import signal
import threading

import pytest
from standin_sender import die
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import purge
from cyproducer.producer.core.attachment import Attachment

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
        for timeout in (0.2, 0):
            with pytest.raises(errors.KafkaTimeoutError, match=rf"within {timeout} s .* may do so later: it has not"):
                producer.purge(timeout)
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


@pytest.mark.parametrize(("attempts", "timeout"), [(25, None), (100_000, 1)])
def test_a_refusal_that_stays_ends_the_call(started, path, monkeypatch, attempts, timeout):
    """Such as of a process that has changed its uid after the attach."""
    monkeypatch.setattr(purge, "_ATTEMPTS", attempts)
    sender = held(started())
    sender.purge_answer = {"ok": False, "error": "REFUSED", "message": "process 1 has no attached front-end"}
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        with pytest.raises(errors.KafkaError, match="process 1 has no attached front-end"):
            producer.purge(timeout)
        sender.release()
        assert future.result(10).offset == 0


def test_a_sender_whose_socket_is_gone_ends_the_call(started, path, monkeypatch):
    monkeypatch.setattr(purge, "_ATTEMPTS", 25)
    sender = held(started())
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        path.rename(f"{path}x")
        with pytest.raises(errors.SenderUnavailableError, match="it cannot be reached at"):
            producer.purge()
        sender.release()
        assert future.result(10).offset == 0


def test_a_close_in_another_thread_ends_the_call(started, path):
    sender = held(started())
    sender.purge_answer = None
    producer = KafkaProducer(sender=str(path), linger_ms=0)
    producer.send("t", b"v")
    threading.Timer(0.3, producer.close, (0,)).start()
    with pytest.raises(errors.ProducerClosedError):
        producer.purge()


def test_the_call_ends_if_all_records_get_their_outcome_meanwhile(started, path):
    sender = held(started())
    sender.purge_answer = None
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        future = producer.send("t", b"v")
        threading.Timer(0.3, sender.release).start()
        producer.purge()
        assert future.result(0).offset == 0


def test_a_child_that_is_forked_during_the_call(started, path):
    """A signal's handler forks. The records belong to the parent."""
    sender = held(started())
    sender.purge_answer = None
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        producer.send("t", b"v")
        children = []
        former = signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        status = 1
        try:
            threading.Timer(0.6, sender.release).start()
            producer.purge()
        except errors.ForkedFutureError:
            status = 7
        finally:
            if children == [0]:
                os._exit(status)
        signal.signal(signal.SIGALRM, former)
        wait_until(lambda: os.waitpid(children[0], os.WNOHANG) == (children[0], 7 << 8), 10, "the end of the child")


def test_an_interrupt_while_unsent_batches_are_dropped_leaves_no_waiter_behind(started, path, monkeypatch):
    sender = held(started())
    heard, flushed = [], []
    with KafkaProducer(sender=str(path), linger_ms=10_000, max_block_ms=500) as producer:
        future = producer.send("t", b"v", on_delivery=lambda e, _: heard.append(e))
        die(sender)
        wait_until(lambda: producer._channel().poll() or producer._channel().recovering, 10, "the loss of the sender")
        waiting = threading.Thread(target=lambda: flushed.append(producer.flush(20)))
        waiting.start()
        wait_until(lambda: producer._channel().session.waiters or not waiting.is_alive(), 10, "a call of flush()")
        interrupted = threading.current_thread()

        def interrupt(self):
            if threading.current_thread() is interrupted:
                raise KeyboardInterrupt
            former(self)

        former = Attachment.close
        with monkeypatch.context() as patch:
            patch.setattr(Attachment, "close", interrupt)
            try:
                producer.purge(10)
            except KeyboardInterrupt:
                interrupted = None  # without a traceback that keeps the memory of the former session
        assert interrupted is None
        waiting.join(10)
        assert flushed == [None]
        assert [type(error) for error in heard] == [errors.PurgedError] == [type(future.exception(0))]
