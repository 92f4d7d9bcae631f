"""Tests what may run or fail during a send: signal handlers, the garbage collector, memory allocation."""

import importlib.util
from collections.abc import Callable

import pytest
from devkafka.node import KafkaCluster
from numbered import numbers_by_key
from support.consumer import ReadRecords
from support.process import run_script

BEGINNING = """
    import gc, itertools, signal, sys
    from cyproducer import KafkaProducer, errors
    topic = sys.argv[2]
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], sender_idle_timeout_ms=200, buffer_memory=4 << 20)
    producer.send(topic, b"0", key=b"first").result(30)
"""

HANDLER_SENDS = """
    numbers = itertools.count()
    handling = []
    def handler(*_):
        if not handling:  # the handler may interrupt itself
            handling.append(True)
            producer.send(topic, b"%d" % next(numbers), key=b"handler")
            handling.clear()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    rows = [b"%d" % n for n in range(200_000)]
    future = producer.send_array(topic, rows, keys=[b"array"] * len(rows))
    for number in range(20_000):
        producer.send(topic, b"%d" % number, key=b"single")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert len(future.result(60).offset) == len(rows)
    producer.flush(30)
    print(next(numbers))
"""

# It raises while the array is being sent: later, the caller would not get the future.
HANDLER_RAISES = """
    def sent():
        return producer.metrics()["producer-metrics"]["record-accepted-total"]
    def handler(*_):
        if before < sent() < before + len(rows) - first:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    signal.signal(signal.SIGALRM, handler)
    rows = [b"%d" % n for n in range(300_000)]
    first = interrupted = 0
    while first < len(rows):
        before = sent()
        rest = rows[first:]
        keys = [b"array"] * len(rest)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        try:
            future = producer.send_array(topic, rest, keys=keys)
        except KeyboardInterrupt as error:
            assert "rows were queued before" in error.__notes__[0]
            interrupted += 1
            future = error.queued
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        first += len(future.result(60).offset)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    print(interrupted)
"""

# Every allocation may run the garbage collector, which runs finalizers that send.
COLLECTOR = """
    made = [itertools.count() for _ in range(2)]
    class Cycle:
        def __init__(self):
            self.itself = self
        def __del__(self):
            if producer:
                number = next(made[0])
                producer.send(topic, b"%d" % number, key=b"finalizer")
                if number % 50 == 49:
                    producer.send_array(topic, [b"%d" % next(made[1])], keys=[b"rows"])
    gc.set_threshold(1, 1, 1)
    for number in range(3000):
        Cycle()
        key = None if number % 2 else "single"
        producer.send(topic, b"%d" % (number // 2), key=key and key.encode(), partition=None if key else 1, headers=[])
    rows = [b"%d" % n for n in range(1000)]
    for row in rows:
        Cycle()
        producer.send_array(topic, [row], keys=[b"array"], headers=[[("h", b"x")]])
    gc.set_threshold(700, 10, 10)
    gc.collect()
    gc.disable()
    producer.flush(60)
    print(next(made[0]), next(made[1]))
"""

# Each allocation of the interpreter is refused once, wherever a send makes it.
REFUSED = """
    import _testcapi
    sent = {b"short": 0, b"long": 0, b"array": 0}
    def short(value):
        return producer.send(topic, value, b"short")
    def long(value):
        return producer.send(
            topic, value, b"long", headers=[("h", b"v")], timestamp_ms=1_700_000_000_000, on_delivery=heard
        )
    def array(value):
        return producer.send_array(topic, [value], [b"array"], headers=[("h", b"v")])
    kept = [None] * 180     # else the next future could reuse one's memory
    called = []
    heard = lambda error, record: called.append(error)
    for name, send in ((b"short", short), (b"long", long), (b"array", array)):
        refusals, last = 0, None
        send(b"0")      # the thread of callbacks runs from here on
        sent[name] = 1
        for at in range(3, 180):
            nth = at // 3
            value = b"%d" % sent[name]
            if nth % 2:
                producer.flush(30)  # the next one opens a batch
            try:
                _testcapi.set_nomemory(nth, nth + 1)
                kept[at] = send(value)
            except MemoryError as error:
                refusals += 1
                last = repr(error)
            else:
                sent[name] += 1
            finally:
                _testcapi.remove_mem_hooks()
        assert refusals and sent[name] > 20, (name, refusals, last)
    producer.flush(30)
    assert called == [None] * sent[b"long"], (len(called), sent)
    print(*sent.values())
"""


def run(script: str, kafka: KafkaCluster, topic: str) -> str:
    done = run_script(BEGINNING + script, kafka.bootstrap_servers, topic)
    assert done.stderr == ""
    return done.stdout


def test_signal_handlers_that_send(kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]) -> None:
    handled = int(run(HANDLER_SENDS, kafka, topic))
    assert handled > 3
    found = numbers_by_key(arrived(topic, 220_001 + handled))
    lengths = {b"first": 1, b"array": 200_000, b"single": 20_000, b"handler": handled}
    assert found == {key: list(range(length)) for key, length in lengths.items()}


def test_signal_handlers_that_raise(kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]) -> None:
    """The queued rows have a future, and no other row of the array is sent."""
    assert int(run(HANDLER_RAISES, kafka, topic)) > 1
    found = numbers_by_key(arrived(topic, 300_001))
    assert found == {b"first": [0], b"array": list(range(300_000))}


def test_finalizers_that_send_at_every_allocation(
    kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    finalizers, rows = map(int, run(COLLECTOR, kafka, topic).split())
    assert finalizers > 3900
    found = numbers_by_key(arrived(topic, 1 + 3000 + 1000 + finalizers + rows))
    lengths = {b"first": 1, b"single": 1500, None: 1500, b"array": 1000, b"finalizer": finalizers, b"rows": rows}
    assert found == {key: list(range(length)) for key, length in lengths.items()}


def test_memory_that_is_refused_at_every_allocation(
    kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    """A send that raises has queued nothing, one that does not raise has queued its record."""
    if importlib.util.find_spec("_testcapi") is None:
        pytest.fail("this test needs Python's own test modules (Debian: apt-get install libpython3-testsuite)")
    short, long, array = map(int, run(REFUSED, kafka, topic).split())
    found = numbers_by_key(arrived(topic, 1 + short + long + array))
    lengths = {b"first": 1, b"short": short, b"long": long, b"array": array}
    assert found == {key: list(range(length)) for key, length in lengths.items()}
