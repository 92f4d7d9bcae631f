"""Tests buffer_memory (bounded, waited for in order, given back) and of the sender's end."""

import logging
import struct
import threading
import time

import pytest
from standin_sender import RELEASE, RESULT, attach, page_align
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import waits

MIB = 1 << 20


def small(sender, **configs):
    return KafkaProducer(sender=sender.path, buffer_memory=MIB, **configs)


def test_exhausted_memory_raises_and_the_producer_stays_good(sender):
    with small(sender, max_block_ms=50) as producer:
        attach(producer)
        sender.hold = True
        futures = []

        def fill():
            for _ in range(100):
                futures.append(producer.send("one", bytes(50_000)))

        with pytest.raises(errors.BufferExhaustedError, match="buffer_memory=1048576"):
            fill()
        assert 10 < len(futures) < 21
        sender.release()
        assert [f.result(10).offset for f in futures] == list(range(len(futures)))
        producer.send("one", bytes(900_000)).result(10)
        producer.flush(10)
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == MIB


def test_send_goes_on_when_memory_comes_back(sender):
    with small(sender) as producer:
        sender.hold = True
        threading.Timer(0.2, sender.release).start()
        futures = [producer.send("one", b"%05d" % n + bytes(30_000)) for n in range(100)]
        producer.flush(20)
        assert [int(r.value[:5]) for r in sender.log] == list(range(100))
        assert all(f.done() for f in futures)


def test_an_outcome_of_a_former_batch_of_its_slot_is_left_alone(sender, producer):
    """A sender that has taken over may publish outcomes once more."""
    producer.send("one", b"0").result(10)
    front_end = sender.front_ends[0]
    at = 4096 + page_align(4 * front_end.hello["slots"])  # of the first outcome
    slot, generation = struct.unpack_from("=II", front_end.out, at)
    sender.hold = True
    future = producer.send("one", b"1")
    wait_until(lambda: slot in front_end.waiting)
    sender.answer(front_end, slot, generation, 1, 77, 0, RESULT | RELEASE)
    assert not future.done()
    sender.release()
    assert future.result(10).offset == 1
    producer.flush(10)
    available = producer.metrics()["producer-metrics"]["buffer-available-bytes"]
    assert available == producer.settings.buffer_memory


def test_open_batches_become_ready_when_memory_is_wanted(sender):
    """Batches of many partitions fill the memory before one of them is full."""
    sender.linger_s = 3600
    sender.topics["many"] = 300
    sender.publish()
    with small(sender, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) as producer:
        for partition in range(300):
            producer.send("many", b"lingers", partition=partition)
        assert 0 < len(sender.chains) < 300
        producer.flush(10)
        assert {received.partition for received in sender.log} == set(range(300))


def test_a_short_limit_leaves_time_for_the_batches_that_free_memory(sender, monkeypatch):
    monkeypatch.setattr(waits, "_SEAL_AFTER_S", 3600)
    sender.linger_s = 3600
    sender.topics["many"] = 300
    sender.publish()
    with small(sender, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1, max_block_ms=2000) as producer:
        for partition in range(300):
            producer.send("many", b"lingers", partition=partition)
        producer.flush(10)


def test_waiters_are_served_in_order(sender):
    order = []
    with small(sender) as producer:
        sender.hold = True
        while producer.metrics()["producer-metrics"]["buffer-available-bytes"] > 64 * 1024:
            producer.send("one", bytes(60_000))

        def wait_and_send(number):
            producer.send("one", bytes(1000 * (4 - number) * 100))
            order.append(number)

        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=wait_and_send, args=(number,)))
            threads[-1].start()
            while producer.metrics()["producer-metrics"]["waiting-threads"] != number + 1:
                time.sleep(0.001)
        sender.release()
        for thread in threads:
            thread.join(10)
        producer.flush(10)
    sizes = [len(r.value) for r in sender.log][-4:]
    assert sizes == [400_000, 300_000, 200_000, 100_000]


def test_failed_records(sender):
    with small(sender) as producer:
        sender.error = 19
        future = producer.send("t", b"x")
        error = future.exception(10)
        assert isinstance(error, errors.NotEnoughReplicasError)
        assert "'t'" in str(error) and "partition 0" in str(error)
        assert future.failed() and future.retriable() and future.value is None
        with pytest.raises(errors.NotEnoughReplicasError):
            future.result()


def test_sender_gone_sent_batches_are_unknown_and_unsent_ones_go_to_the_next(sender, caplog):
    with small(sender) as producer:
        sender.hold = True
        first = producer.send("t", b"sent", partition=0)
        sender.mark_sent = True
        producer._channel().session.arena.seal_all()
        front_end = sender.front_ends[0]
        deadline = time.monotonic() + 10
        while not any(front_end.out[4096 : 4096 + 1024]) and time.monotonic() < deadline:
            sender.nudge()
            time.sleep(0.005)
        sender.mark_sent = False
        second = producer.send("t", b"not sent", partition=1)
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(first.exception(20)))
        thread.start()
        time.sleep(0.05)
        with caplog.at_level(logging.WARNING, logger="cyproducer"):
            sender.front_ends[0].sock.shutdown(2)
            thread.join(20)
        assert isinstance(waiting[0], errors.SenderLostError)
        sender.release()
        assert second.result(10).partition == 1
        producer.send("t", b"again").result(10)
        assert sender.attached == 2
        assert [record.value for record in sender.log if record.partition == 1] == [b"not sent"]


def test_the_waits_for_metadata_and_for_memory_of_a_send_have_one_deadline(sender, monkeypatch):
    deadlines = {"metadata": set(), "memory": set()}
    wait_metadata, wait_memory = waits.wait_metadata, waits.BlockingWaiter.wait

    async def note_metadata(session, waiter, topic, needed, deadline):
        deadlines["metadata"].add(deadline)
        await wait_metadata(session, waiter, topic, needed, deadline)

    async def note_wait(waiter, session, deadline):
        if waiter in session.memory_queue.waiters():
            deadlines["memory"].add(deadline)
        return await wait_memory(waiter, session, deadline)

    with small(sender, max_block_ms=2000) as producer:
        attach(producer, "one")
        sender.hold = True
        while producer.metrics()["producer-metrics"]["buffer-available-bytes"] > 64 * 1024:
            producer.send("one", bytes(60_000))
        monkeypatch.setattr(waits, "wait_metadata", note_metadata)
        monkeypatch.setattr(waits.BlockingWaiter, "wait", note_wait)
        threading.Timer(0.1, lambda: (sender.topics.update(late=3), sender.publish())).start()
        with pytest.raises(errors.BufferExhaustedError):
            producer.send("late", bytes(500_000))
        sender.release()
    # The wait for metadata has taken 0.1 s. A wait for memory looks again before the deadline, so it may end earlier.
    (deadline,) = deadlines["metadata"]
    assert max(deadlines["memory"]) <= deadline


def test_a_flush_does_not_wait_for_what_is_sent_later(sender, producer, monkeypatch):
    wait, later = waits.wait_batches, []

    def send_and_wait(*given):
        later.append(producer.send("t", b"later", partition=1))
        return wait(*given)

    sender.slow = frozenset({1})  # its batch stays open until the next flush
    monkeypatch.setattr(waits, "wait_batches", send_and_wait)
    first = producer.send("t", b"x", partition=0)
    producer.flush(60)
    assert first.done()
    assert [future.done() for future in later] == [False]
    monkeypatch.undo()


def test_flush_and_close_with_a_timeout(sender):
    with small(sender) as producer:
        sender.hold = True
        future = producer.send("t", b"x")
        with pytest.raises(errors.KafkaTimeoutError, match="flush"):
            producer.flush(timeout=0.05)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.01)
        producer.close(timeout=0.05)
        assert isinstance(future.exception(0), errors.OutcomeUnknownError)
    sender.release()
