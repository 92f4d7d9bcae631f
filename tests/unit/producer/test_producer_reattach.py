"""Tests a sender that dies with its supervisor: unsent batches move to the next one, and all waiters see it."""

import asyncio
import logging
import sys
import threading
import time
from collections import defaultdict

import pytest
from standin_sender import attach, die
from support.process import run_script, start_script, wait_until

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import attach as attaching
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.core.attachment import Attachment

MIB = 1 << 20
FAST = {"request_timeout_ms": 1000, "delivery_timeout_ms": 2000}


def values(sender, topic, partition=None):
    return [r.value for r in sender.log if r.topic == topic and partition in (None, r.partition)]


def left(producer):
    return producer.metrics()["producer-metrics"]["batches-pending"]


def test_everything_that_was_not_sent_moves_in_order(started, path):
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path), linger_ms=10_000) as producer:
        futures = [producer.send("t", b"%05d" % n, partition=n % 4) for n in range(20_000)]
        futures.append(producer.send("t", b"alone" + bytes(300_000), partition=2))
        futures += [producer.send("t", b"%05d" % n, partition=n % 4) for n in range(20_000, 20_100)]
        die(sender)
        sender = started()
        futures += [producer.send("t", b"%05d" % n, partition=n % 4) for n in range(20_100, 21_000)]
        producer.flush(20)
        for partition in range(4):
            numbers = [v for v in values(sender, "t", partition) if not v.startswith(b"alone")]
            assert numbers == [b"%05d" % n for n in range(21_000) if n % 4 == partition]
        place = {(r.partition, r.offset): r.value for r in sender.log}
        for future, value in zip(futures[:20_000], range(20_000), strict=True):
            record = future.result(0)
            assert place[record.partition, record.offset] == b"%05d" % value
        assert futures[20_000].result(0).serialized_value_size == 300_005
        assert values(sender, "t", 2).index(b"alone" + bytes(300_000)) == 5000
        assert producer.metrics()["producer-metrics"]["record-accepted-total"] == 21_001


def test_waiters_callbacks_and_awaits_live_on(started, path):
    sender = started()
    sender.hold = True
    heard, returned = [], []
    with KafkaProducer(sender=str(path)) as producer:
        for number in range(100):
            producer.send("one", b"%d" % number, on_delivery=lambda e, r, n=number: heard.append((n, e, r.offset)))
        future = producer.send("t", b"waited for")
        array = producer.send_array("t", [b"a"] * 1000)
        array.add_done_callback(lambda f: heard.append(f.result(0).offset.tolist()))
        threads = [
            threading.Thread(target=lambda: returned.append(future.result(30).offset)),
            threading.Thread(target=lambda: returned.append(len(array.result(30).offset))),
            threading.Thread(target=lambda: returned.append(producer.flush(30))),
            threading.Thread(target=lambda: returned.append(len(cyproducer.wait([future], 30).done))),
        ]
        for thread in threads:
            thread.start()

        async def main():
            sent = await producer.send_async("one", b"awaited")
            loop = asyncio.get_running_loop()
            loop.call_later(0.2, die, sender)
            loop.call_later(0.6, lambda: successors.append(started()))
            return await sent

        successors = []
        assert asyncio.run(main()).offset == 100
        for thread in threads:
            thread.join(30)
        producer.flush(10)
    assert sorted(returned, key=str) == [0, 1, 1000, None]
    assert [entry for entry in heard if isinstance(entry, tuple)] == [(n, None, n) for n in range(100)]
    assert [len(entry) for entry in heard if isinstance(entry, list)] == [1000]


def test_polling_done_without_waiting_is_enough(started, path):
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path)) as producer:
        future = producer.send("t", b"x")
        die(sender)
        sender = started()
        wait_until(future.done, 20)
        assert future.succeeded()


@pytest.mark.parametrize("ahead_ms", [0, 86_400_000], ids=["", "the clock was set back"])
def test_a_slow_stream_of_sends_notices(started, path, ahead_ms):
    """Only send() runs, into a batch that stays open for long: no full batch, no wait, no other check."""
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        producer.send("one", b"0", timestamp_ms=int(time.time() * 1000) + ahead_ms)
        die(sender)
        sender = started()
        sent = 1
        deadline = time.monotonic() + 20
        while not values(sender, "one") and time.monotonic() < deadline:
            if sent < 100:  # far from full
                producer.send("one", b"%d" % sent)
                sent += 1
            time.sleep(0.02)
        assert values(sender, "one"), "the producer has not looked for the sender"
        producer.flush(20)
        assert values(sender, "one") == [b"%d" % n for n in range(sent)]


def test_no_sender_comes_back(started, path):
    sender = started()
    sender.hold = True
    heard = []
    with KafkaProducer(sender=str(path), max_block_ms=100, **FAST) as producer:
        attach(producer)
        future = producer.send("t", b"x", on_delivery=lambda e, r: heard.append(type(e)))
        array = producer.send_array("t", [b"y"] * 10, partition=1)
        die(sender)
        started_at = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError):
            future.result(0.2)
        with pytest.raises(errors.SenderUnavailableError, match="no sender at"):
            producer.send("t", b"z", partition=2)
        assert type(future.exception(20)) is errors.SenderUnavailableError
        assert type(array.exception(20)) is errors.SenderUnavailableError
        assert time.monotonic() - started_at > 1
        producer.flush(10)
        assert heard == [errors.SenderUnavailableError]
        assert left(producer) == 0


def test_close_with_a_timeout_while_there_is_no_sender(started, path):
    sender = started()
    sender.hold = True
    producer = KafkaProducer(sender=str(path))
    future = producer.send("t", b"x")
    die(sender)
    producer.close(0.3)
    assert type(future.exception(0)) is errors.SenderUnavailableError


@pytest.mark.parametrize("lost", [1, 2])
def test_the_delivery_timeout_counts_from_the_send(started, path, lost):
    """The next sender gets the age of each batch, also of one that has come from sender to sender."""
    sender = started()
    sender.hold = True
    ages = []
    with KafkaProducer(sender=str(path)) as producer:
        future = producer.send("t", b"x")
        die(sender)
        with pytest.raises(TimeoutError):
            future.result(0.5)
        sender = started()
        if lost == 2:
            sender.hold = True
            wait_until(lambda: producer.metrics() and sender.front_ends and sender.front_ends[0].waiting)
            die(sender)
            sender = started()
        complete = sender._complete

        def look_and_complete(front_end, head, generation):
            ages.append(front_end.row(head)["waited_ms"])
            complete(front_end, head, generation)

        sender._complete = look_and_complete
        future.result(20)
        producer.send("t", b"y").result(10)
    assert 400 < ages[0] < 20_000
    assert ages[1] == 0


def test_a_topic_that_the_next_sender_does_not_know(started, path):
    """It expires; others go on, a topic with fewer partitions loses those, one without permission fails."""
    sender = started(gone=1, shrunk=4, closed=1, t=1)
    sender.hold = True
    with KafkaProducer(sender=str(path), **FAST) as producer:
        futures = {
            "gone": producer.send("gone", b"x"),
            "shrunk": producer.send("shrunk", b"x", partition=3),
            "stays": producer.send("shrunk", b"x", partition=0),
            "closed": producer.send("closed", b"x"),
            "t": producer.send("t", b"x"),
        }
        die(sender)
        sender = started(closed=0, t=1, shrunk=2)
        sender.errors["closed"] = 29
        sender.publish()
        assert futures["t"].result(20).offset == 0
        assert futures["stays"].result(20).offset == 0
        assert type(futures["shrunk"].exception(20)) is errors.UnknownPartitionError
        assert type(futures["closed"].exception(20)) is errors.TopicAuthorizationFailedError
        assert type(futures["gone"].exception(20)) is errors.DeliveryTimeoutError


def test_a_full_arena_moves_whole_and_new_records_wait_behind_it(started, path):
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path), buffer_memory=MIB, max_block_ms=1000) as producer:
        futures = []

        def fill():
            while True:
                futures.append(producer.send("t", b"%05d" % len(futures) + bytes(3000), partition=len(futures) % 3))

        with pytest.raises(errors.BufferExhaustedError):
            fill()
        many = len(futures)
        assert many > 200
        die(sender)
        sender = started()
        sender.hold = True
        with pytest.raises(errors.BufferExhaustedError):
            for _ in range(100):
                futures.append(producer.send("t", b"%05d" % len(futures) + bytes(3000), partition=len(futures) % 3))
        sender.release()
        producer.flush(20)
        for partition in range(3):
            numbers = [int(v[:5]) for v in values(sender, "t", partition)]
            assert numbers == [n for n in range(len(futures)) if n % 3 == partition]
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == MIB


def test_sends_of_many_threads_and_arrays_through_many_deaths(started, path):
    """Each thread's records of a partition are in their order, each record once, through six senders."""
    sender = started()
    senders = [sender]
    stop = threading.Event()
    sent = defaultdict(list)
    failed = []

    def stream(name, partition):
        number = 0
        while not stop.is_set():
            try:
                if number % 7 == 3:
                    count = 500
                    rows = [b"%s %07d" % (name, number + n) for n in range(count)]
                    sent[name].append((producer.send_array("t", rows, partition=partition), count))
                else:
                    count = 1
                    sent[name].append((producer.send("t", b"%s %07d" % (name, number), partition=partition), 1))
            except Exception as error:
                failed.append(error)
                return
            number += count
            if number % 50 == 0:
                time.sleep(0.001)

    with KafkaProducer(sender=str(path), buffer_memory=2 * MIB, linger_ms=1) as producer:
        threads = [threading.Thread(target=stream, args=(b"%d" % n, n % 3)) for n in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            time.sleep(0.15)
            senders[-1].hold = True
            time.sleep(0.05)
            die(senders[-1])
            senders.append(started())
        time.sleep(0.1)
        stop.set()
        for thread in threads:
            thread.join(30)
        producer.flush(30)
        assert not failed
        assert left(producer) == 0
        log = [r for each in senders for r in each.log]
        for name, entries in sent.items():
            assert [future.exception(0) for future, _ in entries if future.exception(0) is not None] == []
            numbers = [int(r.value.split()[1]) for r in log if r.value.startswith(name + b" ")]
            assert numbers == list(range(sum(count for _, count in entries)))


OVERTAKEN = """
import sys, threading
from cyproducer import KafkaProducer
from cyproducer.host import control_messages

def overtaken(sock):
    control_messages.receive = receive
    got = receive(sock)
    faster = threading.Thread(target=session.on_control)
    faster.start()
    faster.join()
    assert not session.alive
    return got

producer = KafkaProducer(sender=sys.argv[1])
producer.send("t", b"x").result(10)
session = producer._channel().session
print("go", flush=True)
input()
receive, control_messages.receive = control_messages.receive, overtaken
session.on_control()
print(producer._channel().outstanding(), flush=True)
"""


def test_a_thread_that_finds_the_end_after_another_one_has_dealt_with_it(started, path):
    """It released the GIL in the middle of a method, and then reads memory that was given back."""
    sender = started()
    with start_script(OVERTAKEN, path) as process:
        assert process.stdout.readline() == "go\n"
        die(sender)
        out, err = process.communicate("\n", 30)
        assert (process.returncode, out) == (0, "(0, 0)\n"), err


def test_an_orderly_end_leaves_what_was_not_sent_to_the_next_sender(started, path):
    from cyproducer.host import control_messages

    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path)) as producer:
        future = producer.send("t", b"x")
        control_messages.send(sender.front_ends[0].sock, {"op": "ended"})
        sender.front_ends[0].out[56:60] = (2).to_bytes(4, "little")
        deadline = time.monotonic() + 20
        while (sender.attached < 2 or len(sender.front_ends) > 1) and time.monotonic() < deadline:
            assert not future.done()
            time.sleep(0.005)
        sender.release()
        assert future.result(20).offset == 0
        assert sender.attached == 2


def test_a_living_sender_that_detaches_keeps_the_unsent_batches(started, path):
    """A sender that goes on has detached the producer: no other sender may send these records."""
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path)) as producer:
        future = producer.send("t", b"x")
        sender.front_ends[0].out[56:60] = (2).to_bytes(4, "little")
        sender.front_ends[0].sock.shutdown(2)
        assert type(future.exception(20)) is errors.OutcomeUnknownError
        sender.release()
        producer.send("t", b"y").result(20)
        assert values(sender, "t").count(b"x") <= 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_dropped_producer_with_kept_futures(started, path, lost):
    """Its records are sent and its futures resolved, by another sender too. Then it is detached."""
    sender = started()
    sender.hold = True
    producer = KafkaProducer(sender=str(path))
    future = producer.send("t", b"kept")
    producer.send("t", b"not kept", partition=1)
    if lost:
        die(sender)
    del producer
    if lost:
        sender = started()
    else:
        sender.release()
    assert future.result(20).offset == 0
    del future
    wait_until(lambda: not sender.front_ends and len(sender.log) == 2)
    assert {r.value for r in sender.log} == {b"kept", b"not kept"}


FINALIZED = """
    import sys, time
    sys.path[:0] = sys.argv[3:]
    from pathlib import Path
    from standin_sender import StandIn
    from cyproducer import KafkaProducer
    path, moved = Path(sys.argv[1]), sys.argv[2] == "moved"
    sender = StandIn(path, {"t": 4}).__enter__()
    sender.hold = True
    producer = KafkaProducer(sender=str(path))
    futures = [producer.send("t", b"%d" % n, partition=n % 4) for n in range(100)]
    first = producer._channel().session
    if moved:
        sender.__exit__(None, None, None)
        path.unlink()
        sender = StandIn(path, {"other": 1}).__enter__()
        producer.partitions_for("other")
    first.__del__()
    if moved:
        sender.topics["t"] = 4
        sender.publish()
        for future in futures:
            future.result(10)
    producer.metrics()
    [future.done() for future in futures]
    producer.__del__()
    del first, producer
    print(len(sender.log))
    sender.__exit__(None, None, None)
"""


@pytest.mark.parametrize(("kind", "written"), [("alone", "0"), ("moved", "100")])
def test_finalizers_of_garbage_run_in_any_order(path, kind, written):
    """The session's finalizer may run before the producer's, and before that of the session that took its batches."""
    assert run_script(FINALIZED, path, kind, *sys.path).stdout.strip() == written


FIRST_USE = """
    import sys
    from cyproducer import KafkaProducer
    with KafkaProducer(sender=sys.argv[1]) as producer:
        before = set(sys.modules)
        producer.send("t", b"x", on_delivery=lambda error, record: None).result(20)
        producer.flush(20)
        print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_loaded_for_the_first_send(started, path):
    """A worker that was forked from a loaded application has no such cost, and no upgrade can come in between."""
    sender = started()
    assert run_script(FIRST_USE, path).stdout == "[]\n"
    assert len(sender.log) == 1


WHOLE_LIFE = """
    import sys
    from cyproducer import KafkaProducer
    with KafkaProducer(sender=sys.argv[1]) as producer:
        producer.send("t", b"x", on_delivery=lambda error, record: None).result(20)
    large = {"_hashlib", "_ssl", "asyncio", "cramjam", "ctypes", "difflib", "multiprocessing", "numpy", "platform",
             "pyarrow", "subprocess"}
    print(sorted(large & set(sys.modules)), "libcrypto" in open("/proc/self/maps").read())
"""


def test_nothing_large_is_loaded_at_all(started, path):
    """This bounds the memory that we add to an application: no library is loaded that a record does not need."""
    started()
    assert run_script(WHOLE_LIFE, path).stdout == "[] False\n"


def test_a_log_handler_that_sends_while_its_thread_waits_for_a_sender(started, path, monkeypatch):
    """Its message about the wait must not begin another wait, which would log as well."""
    monkeypatch.setattr(attaching, "_WARN_AFTER_S", 0.0)
    producer = KafkaProducer(sender=str(path), max_block_ms=5_000)
    refused = []

    class Sending(logging.Handler):
        def emit(self, record):
            if refused:
                return
            refused.append(None)
            try:
                producer.send("t", record.getMessage().encode())
            except errors.KafkaError as error:
                refused.append(error)
            started()

    log, handler = logging.getLogger("cyproducer"), Sending()
    log.addHandler(handler)
    try:
        assert producer.send("t", b"first").result(10).offset == 0
    finally:
        log.removeHandler(handler)
    assert type(refused[1]) is errors.SenderUnavailableError
    assert "this thread is just attaching" in str(refused[1])
    producer.close(10)


def test_a_signal_after_a_session_handed_over_does_not_break_the_next_one(started, path, monkeypatch):
    """The handler raises in the last step, which notifies the waiters."""
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path)) as producer:
        called = []
        kept = producer.send("one", b"kept", on_delivery=lambda *given: called.append(given))
        owner = producer._channel()
        ended = owner.session
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "begin_recovery", lambda channel: True)
            die(sender)
            ended.on_control()

        class Poked(type(owner.delivery)):
            def poke(self):
                del self.__class__.poke
                raise KeyboardInterrupt

        sender = started()
        owner.delivery.__class__ = Poked
        with pytest.raises(KeyboardInterrupt):
            producer.send("one", b"interrupted")
        assert producer._channel().session.alive
        assert producer.send("one", b"next").result(10).offset == 1
        assert kept.result(10).offset == 0
        assert values(sender, "one") == [b"kept", b"next"]
        producer.flush(10)
        assert len(called) == 1
        assert sender.attached == 1


def test_a_signal_while_a_sender_is_lost_delays_no_batch_for_the_next_one(started, path, monkeypatch):
    """The handler raises while the descriptors are closed. Nothing waits, and there is no further send."""
    sender = started()
    sender.hold = True
    with KafkaProducer(sender=str(path)) as producer:
        producer.send("one", b"kept")
        session = producer._channel().session
        close = Attachment.close_descriptors

        def interrupted(attachment):
            close(attachment)
            if attachment is session.attachment:
                raise KeyboardInterrupt

        die(sender)
        with monkeypatch.context() as patched:
            patched.setattr(Attachment, "close_descriptors", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.on_control()
        sender = started()
        wait_until(lambda: sender.log)
        assert values(sender, "one") == [b"kept"]


def test_a_log_handler_that_fails_delays_no_batch_for_the_next_sender(started, path):
    """The thread that finds the sender gone gets the handler's error, and the batches move all the same."""

    class Failing(logging.Handler):
        def emit(self, record):
            if "kept for the next sender" in record.getMessage():
                raise RuntimeError("the log is full")

    sender = started()
    sender.hold = True
    log, handler = logging.getLogger("cyproducer"), Failing()
    log.addHandler(handler)
    try:
        with KafkaProducer(sender=str(path)) as producer:
            future = producer.send("one", b"kept")
            threading.Timer(0.1, die, (sender,)).start()
            with pytest.raises(RuntimeError, match="the log is full"):
                future.result(20)
            sender = started()
            wait_until(lambda: sender.log, 20)
            assert values(sender, "one") == [b"kept"]
            assert future.result(20).offset == 0
    finally:
        log.removeHandler(handler)
