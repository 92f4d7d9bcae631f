"""Tests threads that share one producer."""

import threading
from collections.abc import Callable

from numbered import numbers_by_key
from support.consumer import ReadRecords

THREADS = 8
RECORDS = 4000


def test_records_of_a_thread_and_key_keep_their_order(
    make_producer: Callable[..., object], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    producer = make_producer()
    raised: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        try:
            start.wait()
            keys = [b"%d even" % thread, b"%d odd" % thread]
            futures = [producer.send(topic, key=keys[i % 2], value=b"%d" % i) for i in range(RECORDS)]
            for future in futures:
                future.result(30)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []
    found = numbers_by_key(arrived(topic, THREADS * RECORDS))
    for thread in range(THREADS):
        assert found.pop(b"%d even" % thread) == list(range(0, RECORDS, 2))
        assert found.pop(b"%d odd" % thread) == list(range(1, RECORDS, 2))
    assert found == {}


def test_the_example(run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]) -> None:
    assert run_example("threads.py", topic) == "8000 records written\n"
    found = numbers_by_key(arrived(topic, 8000))
    assert found == {b"thread %d" % i: list(range(1000)) for i in range(8)}
