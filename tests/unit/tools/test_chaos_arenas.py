"""Tests that a chaos run finds the records that dead front-ends held in their arenas."""

import os
import random
import threading
import time

from chaos.falls import Arenas
from chaos.records import value_of
from standin_sender import StandIn
from support.process import wait_until

from cyproducer import KafkaProducer


def test_records_that_are_not_done_are_found(short_tmp):
    """Small records in chunks that grow, with keys and without, and one that takes several chunks."""
    path = short_tmp / f"s{time.monotonic_ns()}"
    draw = random.Random(5)
    with StandIn(path, {"t": 4}) as sender, KafkaProducer(sender=str(path), linger_ms=0) as producer:

        def send(numbers):
            for number in numbers:
                size = 200_000 if number == 777 else draw.randrange(1000)
                key = b"%d" % number if number % 3 else None
                producer.send("t", value_of(3_000_001, number, size), key=key, partition=draw.randrange(4))

        def held():
            arenas = Arenas([os.getpid()])
            found = arenas.read()
            arenas.close()
            return found

        send(range(500))
        producer.flush(20)
        assert held() == {}
        sender.hold = True
        send(range(500, 1500))
        assert held() == {3_000_001: set(range(500, 1500))}
        sender.release()
        producer.flush(20)
        wait_until(lambda: held() == {}, what="the end of all records")


def test_an_owner_that_lives_does_not_disturb(short_tmp):
    path = short_tmp / f"s{time.monotonic_ns()}"
    draw = random.Random(5)
    over = threading.Event()
    with StandIn(path, {"t": 4}, linger_s=0.001), KafkaProducer(sender=str(path), buffer_memory=1 << 20) as producer:

        def send():
            number = 0
            while not over.is_set():
                producer.send("t", value_of(7, number, draw.randrange(3000)), partition=number % 4)
                number += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            found = rounds = 0
            while rounds < 150 or found == 0:  # the machine may let one of the two wait
                rounds += 1
                arenas = Arenas([os.getpid()])
                found += sum(map(len, arenas.read().values()))
                arenas.close()
        finally:
            over.set()
            thread.join()
    assert found > 0
