"""Tests callbacks that are added while a finalizer of the garbage collector completes their batch."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import KafkaProducer


class Garbage:
    """A cycle whose finalizer waits for a future, if it runs in the thread that made the cycle.

    In the thread of the sender, which is a stand-in in this process, it would wait for itself.
    """

    def __init__(self, future: Any, fired: list[bool]) -> None:
        self.me = self
        self.future, self.fired, self.thread = future, fired, threading.get_ident()

    def __del__(self) -> None:
        if threading.get_ident() == self.thread:
            self.fired.append(True)
            self.future.result(10)


WAYS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "add_callback": lambda future, called: future.add_callback(called.append),
    "add_callback with arguments": lambda future, called: future.add_callback(lambda _, found: called.append(found), 1),
    "add_done_callback": lambda future, called: future.add_done_callback(called.append),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_callback_is_called_if_the_collector_completes_its_batch(producer: KafkaProducer, way: str) -> None:
    """The collector runs at one allocation after the other, so at each that add_callback makes."""
    producer.send("one", b"x", on_delivery=lambda error, record: None).result(10)  # the callback thread runs from here
    collected = 0
    former = gc.get_threshold()
    try:
        for at in range(1, 30):
            called: list[Any] = []
            fired: list[bool] = []
            gc.disable()
            future = producer.send("one", b"x")
            Garbage(future, fired)
            gc.set_threshold(gc.get_count()[0] + at, 1000, 1000)
            gc.enable()
            try:
                WAYS[way](future, called)
            finally:
                gc.disable()
                gc.set_threshold(*former)
            collected += len(fired)
            future.result(10)
            producer.flush(10)
            assert len(called) == 1, at
            gc.collect()
    finally:
        gc.set_threshold(*former)
        gc.enable()
    assert collected > 0, "the collector never ran inside the call"
